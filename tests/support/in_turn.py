"""What torchrun starts in tests: `executor` command lines, one after another in the same processes.

Each argument is a JSON list of one command's arguments; the codes come out as one line of the first
process of each node. APART in the environment: `clock`: process 1 is on another machine, as far as
it knows, whose clock is ahead; `last`: each process is, for the last command.
"""

import json
import os
import sys
import time

from executor.cli import main
from executor.distributed import launch
from executor.profiling import layer

AHEAD_S = 1000.0

if __name__ == "__main__":
    apart, codes = os.environ.get("APART"), []
    if apart == "clock" and os.environ["RANK"] == "1":
        true = time.perf_counter
        time.perf_counter = lambda: true() + AHEAD_S
        launch.machine_id = lambda: "another"  # type: ignore[attr-defined]
    if apart == "last":
        layer.CROWD_BYTES = 1  # nobody looks at the times of layers
    for one in sys.argv[1:]:
        if apart == "last" and one is sys.argv[-1]:
            os.environ |= {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
        codes.append(main(json.loads(one)))
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(codes))
    sys.exit(max(codes))
