"""Which device trains which task: longest first, then an integer program for what is left.

Every task runs on one device from its first step to its last, so that its resident shards are
loaded once.
"""

from collections.abc import Mapping

from planner.search import Effort
from planner.solver import minimise, solve

_EXACT = 400  # binaries up to which the assignment program is worth its time


def place(
    durations: Mapping[str, int], devices: int, floor_us: int, effort: Effort
) -> dict[str, int]:
    """Device of each task, so that the longest device is as short as can be found.

    floor_us: a proven lower bound on the makespan; nothing is searched below it.
    """
    placed = _longest_first(durations, devices)
    incumbent = _makespan(durations, placed, devices)
    floor = max(floor_us, -(-sum(durations.values()) // devices), max(durations.values()))
    if incumbent <= floor or len(durations) * devices > _EXACT or effort.left <= 0:
        return placed
    model = minimise("placement")
    names = list(durations)
    on = {
        (name, d): model.add_variable(f"on_{i}_{d}", 0, 1, cat="Binary")
        for i, name in enumerate(names)
        for d in range(devices)
    }
    longest = model.add_variable("makespan_us", floor, incumbent)
    model += longest
    for name in names:
        model += sum(on[name, d] for d in range(devices)) == 1
    for device in range(devices):
        model += sum(durations[name] * on[name, device] for name in names) <= longest
    if not solve(model, seconds=min(10.0, effort.left), seed=effort.seed).found:
        return placed
    exact = {name: max(range(devices), key=lambda d: on[name, d].value()) for name in names}
    return min(placed, exact, key=lambda p: _makespan(durations, p, devices))


def _longest_first(durations: Mapping[str, int], devices: int) -> dict[str, int]:
    busy = [0] * devices
    placed = {}
    for name in sorted(durations, key=lambda n: (-durations[n], n)):
        device = busy.index(min(busy))
        placed[name] = device
        busy[device] += durations[name]
    return placed


def _makespan(durations: Mapping[str, int], placed: Mapping[str, int], devices: int) -> int:
    busy = [0] * devices
    for name, device in placed.items():
        busy[device] += durations[name]
    return max(busy)
