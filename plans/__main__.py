"""python -m plans plan|runlog|profile: the JSON Schema of a format, for other languages."""

from plans.runlog import Line
from plans.schema import Plan
from profiles import console
from profiles.codec import json_schema
from profiles.schema import Profile

FORMATS = {"plan": Plan, "runlog": Line, "profile": Profile}

parser = console.Parser(prog="python -m plans", description="Print a JSON Schema.")
parser.add_argument("format", choices=FORMATS, help="a plan, one line of a run log, or a profile")
print(json_schema(FORMATS[parser.parse_args().format]), end="")
