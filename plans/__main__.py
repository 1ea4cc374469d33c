"""python -m plans plan|runlog: the JSON Schema of a plan, or of one line of a run log."""

from plans.runlog import Line
from plans.schema import Plan
from profiles import console
from profiles.codec import json_schema

FORMATS = {"plan": Plan, "runlog": Line}

parser = console.Parser(prog="python -m plans", description="Print a JSON Schema.")
parser.add_argument("format", choices=FORMATS, help="a plan, or one line of a run log")
print(json_schema(FORMATS[parser.parse_args().format]), end="")
