"""How often the host waits for a device in a replay, by the function that waits."""

import sys
from collections import Counter
from collections.abc import Callable

import pytest

from executor.devices import Mark, until


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The waits from now on, as they come."""
    waits: Counter[str] = Counter()

    def counting(mark: Mark, check: Callable[[], None] = lambda: None) -> None:
        waits[sys._getframe(1).f_code.co_qualname] += 1
        until(mark, check)

    for name, module in list(sys.modules.items()):
        if name.startswith("executor.") and getattr(module, "until", None) is until:
            monkeypatch.setattr(module, "until", counting)
    return waits
