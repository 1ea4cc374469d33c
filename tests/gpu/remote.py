"""The suite's side of the worker: one process for all cases that train in process."""

import json
import select
import subprocess
import sys
from typing import Any

from tests.gpu.tools import ROOT, Bench, Trouble, first_to_go


class Worker:
    """Started when it is needed; a new one after an error, since a device may be in any state."""

    def __init__(self, bench: Bench) -> None:
        self._log = bench.file("logs", "worker.txt")
        self._child: subprocess.Popen[str] | None = None

    def ask(self, case: str, bench: Bench) -> dict[str, Any]:
        """The worker's answer; Trouble when it dies or takes longer than `bench` has left."""
        child = self._child or self._started()
        assert child.stdin
        assert child.stdout
        print(json.dumps({"case": case, "bench": bench.to_json()}), file=child.stdin, flush=True)
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, bench.left))
        line = child.stdout.readline() if ready else ""
        if not line:
            code = self.rest()
            raise Trouble(f"ended with {code}, see logs/worker.txt" if ready else "out of time")
        found: dict[str, Any] = json.loads(line)
        if found.pop("last", False):
            self.rest()
        return found

    def _started(self) -> subprocess.Popen[str]:
        with open(self._log, "a") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        first_to_go(self._child.pid)
        return self._child

    def rest(self) -> int | None:
        """End the process, so that it holds no memory; how it ended."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin
        assert child.stdout
        child.stdin.close()
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        return child.returncode
