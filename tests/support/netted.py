"""Plans changed into plans for several nodes, or with other segments."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace
from support.retime import foretold

from plans.order import Run, laid_out
from plans.prediction import Bound
from plans.schema import Plan


def on_nodes(plan: Plan, nodes: Sequence[int]) -> Plan:
    """The plan with its devices on these nodes."""
    devices = zip(plan.devices, nodes, strict=True)
    return replace(plan, devices=tuple(replace(device, node=node) for device, node in devices))


def relaid(plan: Plan, runs: Iterable[tuple[str, tuple[int, ...], int]]) -> Plan:
    """The plan with these segments instead: a program, its devices, rounds."""
    made = laid_out(Run(plan.program(name), devices, rounds) for name, devices, rounds in runs)
    prediction = replace(plan.prediction, configuration_us=0, bounds=(Bound("compute", 1),))
    return foretold(replace(plan, segments=tuple(made), prediction=prediction))
