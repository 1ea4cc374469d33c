"""What torchrun starts in tests: `executor` command lines, one after another in the same processes.

Each argument is a JSON list of one command's arguments; the codes come out as one line of the first
process of each node."""

import json
import os
import sys

from executor.cli import main

if __name__ == "__main__":
    codes = [main(json.loads(one)) for one in sys.argv[1:]]
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(codes))
    sys.exit(max(codes))
