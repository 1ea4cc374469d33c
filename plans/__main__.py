"""python -m plans plan|runlog: the JSON Schema of a plan, or of one line of a run log."""

from plans.runlog import Line
from plans.schema import Plan
from profiles import console
from profiles.codec import json_schema

parser = console.Parser(prog="python -m plans", description=__doc__)
parser.add_argument("format", choices=["plan", "runlog"])
print(json_schema({"plan": Plan, "runlog": Line}[parser.parse_args().format]), end="")
