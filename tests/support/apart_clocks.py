"""As in_turn, where process 1 is on another machine, as far as it knows: its clock is 1,000 s ahead
of that of process 0."""

import json
import os
import sys
import time

from executor.cli import main
from executor.distributed import launch

AHEAD_S = 1000.0

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        true = time.perf_counter
        time.perf_counter = lambda: true() + AHEAD_S
        launch.machine_id = lambda: "another"  # type: ignore[attr-defined]
    sys.exit(max(main(json.loads(one)) for one in sys.argv[1:]))
