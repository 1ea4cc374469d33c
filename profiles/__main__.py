"""python -m profiles profile: the JSON Schema of a profile, for other languages."""

from profiles import console
from profiles.codec import json_schema
from profiles.schema import Profile

parser = console.Parser(prog="python -m profiles", description="Print a JSON Schema.")
parser.add_argument("format", choices=["profile"], help="of which format")
parser.parse_args()
print(json_schema(Profile), end="")
