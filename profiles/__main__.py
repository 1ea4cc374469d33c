"""python -m profiles > profiles/profile.schema.json: the format for other languages."""

from profiles.codec import json_schema
from profiles.schema import Profile

print(json_schema(Profile), end="")
