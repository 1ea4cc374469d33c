"""What torchrun starts in tests of failures: `executor` commands, one after another in the same
processes.

Each argument is JSON: `call`, a command's arguments, in which {rank} is the process; and, if asked
for, `fails` (see failing_tasks), and `folder`, where it runs. The exit codes of all processes come
out as files: `codes.ATTEMPT.RANK`."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from executor.cli import main
from executor.devices import CpuDevice
from executor.distributed import launch
from executor.errors import RunError
from executor.records import checkpoint

RANK, ATTEMPT = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]


def full(self: checkpoint._Sink, data: Any) -> int:
    """Write to a full disk."""
    self.error = OSError(28, "No space left on device")
    raise self.error


def stopped() -> None:
    """Stop for good where a process would end."""
    os.kill(os.getpid(), signal.SIGSTOP)


def short(self: CpuDevice, beside: int) -> None:
    """Have less memory than the plan says."""
    raise RunError(f"{self.spec.name} has 7 bytes free")


if __name__ == "__main__":
    start, codes, write, limit = Path.cwd(), [], checkpoint._Sink.write, CpuDevice.limit
    for one in map(json.loads, sys.argv[1:]):
        os.environ["FAILS"] = one.get("fails", "")
        checkpoint._Sink.write = full if one.get("fails") == f"disk {RANK}" else write  # type: ignore[method-assign]
        CpuDevice.limit = short if one.get("fails") == f"memory {RANK}" else limit  # type: ignore[method-assign]
        if one.get("fails") == f"end {RANK}" and ATTEMPT == "0":
            launch._disconnect = stopped
        os.chdir(start / one.get("folder", ".").format(rank=RANK))
        codes.append(main([part.format(rank=RANK) for part in one["call"]]))
        print(flush=True)
        # On a line of its own, in one write: torch's warnings come in parts from both processes.
        os.write(2, f"\n== {RANK} {len(codes)}\n".encode())
        os.chdir(start)
    Path(f"codes.{ATTEMPT}.{RANK}").write_text(json.dumps(codes))
    os._exit(max(codes))
