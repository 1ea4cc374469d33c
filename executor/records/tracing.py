"""A trace of torch's own profiler of the start of a run, its ranges named like the plan's ops."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import profile, record_function, supported_activities

from executor.errors import RunError
from executor.outputs import locked, part_of, try_folder

SECONDS = 10.0  # a trace of more is larger than its viewers can show


class Trace:
    """Writes `<folder>/<name>.trace.json` of all threads; UsageError when that cannot be.

    `begin`, `tick` and `end` are called from one thread; `active` is read by others.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.target = folder / f"{name}.trace.json"
        self.active = False
        self._since = 0.0
        try_folder(folder, {self.target.name: 0})
        threads = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(
            activities=supported_activities(),  # type: ignore[no-untyped-call]
            experimental_config=threads,
        )

    def __call__(self, op: str) -> AbstractContextManager[object] | None:
        """The range of an op that begins now; None where no more is recorded."""
        return record_function(op) if self.active else None

    def alone(self) -> AbstractContextManager[None]:
        """No other run writes this trace meanwhile; UsageError if one does."""
        remedy = "give each run a --torch-profile of its own"
        return locked(self.target.with_suffix(".lock"), remedy)

    def begin(self) -> None:
        self._profile.start()
        self._since, self.active = time.monotonic(), True

    def tick(self) -> None:
        """Stop when it has been long enough."""
        if self.active and time.monotonic() > self._since + SECONDS:
            self._stop()

    def end(self) -> None:
        """Write what was recorded."""
        if self.active:
            self._stop()
        try:
            part = part_of(self.target)
            self._profile.export_chrome_trace(str(part))
            part.replace(self.target)
        except OSError as error:
            raise RunError(f"{self.target}: cannot be written: {error.strerror}") from None

    def _stop(self) -> None:
        self.active = False
        self._profile.stop()
