"""python -m plans plan|runlog: the JSON Schema of a plan, or of one line of a run log."""

import sys

from plans.runlog import Line
from plans.schema import Plan
from profiles.codec import json_schema

print(json_schema({"plan": Plan, "runlog": Line}[sys.argv[1]]), end="")
