"""The ways that were tried for a task with lengths, as its plan tells of them."""

from collections.abc import Iterable

from planner.sequences.asked import Asked
from planner.sequences.bounds import compute_us
from planner.sequences.made import InTurn, Made
from plans.prediction import Alternative


def told(
    asked: Asked, way: InTurn, alone: Made, judged: Made, tried: Iterable[Made]
) -> list[Alternative]:
    """All of them, those that are in the plan first. alone, judged: the one that is shortest for
    all steps, and the same for those by which ways are judged."""
    pair = way.ways if len(way.ways) > 1 else ()
    least = judged.us * way.us / alone.us
    found = [_told(asked, one, said=_steps(asked, one)) for one in pair]
    for one in tried:
        longer = f"{max(0.0, one.us / least - 1):.1%} longer"
        found.append(_told(asked, one, longer if pair or one is not judged else ""))
    return sorted(found, key=lambda one: (one.why_not != "", one.period_us))


def _steps(asked: Asked, one: Made) -> str:
    """The steps of one of several ways."""
    longest = max(int(asked.step(number).max()) for number in one.arrangement.steps)
    return f", {one.steps:,} steps of at most {longest:,} tokens"


def _told(asked: Asked, one: Made, why_not: str = "", said: str = "") -> Alternative:
    way, strategy = one.trial.way, one.round.strategy
    return Alternative(
        task=asked.task.name,
        devices=way.mix.devices,
        layout=str(way.mix),
        order=f"{strategy.named}, {one.how}{one.padding}{said}",
        microbatch=strategy.costs.microbatch,
        recompute=sum(m.activations == "recompute" for m in strategy.modes[:-1]),
        period_us=one.us // one.steps,
        bound_us=compute_us(asked, way.mix.devices) // asked.task.steps,
        peak_bytes=one.round.device_bytes,
        why_not=why_not,
    )
