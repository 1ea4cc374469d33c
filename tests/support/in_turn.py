"""What torchrun starts in tests: `executor` command lines, one after another in the same processes.

Each argument is a JSON list of one command's arguments; the codes come out as one line of the first
process of each node. APART in the environment: process 1 is on another machine, as far as it knows,
whose clock is ahead.
"""

import json
import os
import sys
import time

from executor.cli import main
from executor.distributed import launch

AHEAD_S = 1000.0

if __name__ == "__main__":
    codes = []
    if "APART" in os.environ and os.environ["RANK"] == "1":
        true = time.perf_counter
        time.perf_counter = lambda: true() + AHEAD_S
        launch.machine_id = lambda: "another"  # type: ignore[attr-defined]
    for one in sys.argv[1:]:
        codes.append(main(json.loads(one)))
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(codes))
    sys.exit(max(codes))
