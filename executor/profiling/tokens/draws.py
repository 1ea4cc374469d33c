"""Checks that the tokens of a microbatch say how many random numbers a layer draws for it."""

from collections.abc import Mapping, Sequence

from executor.errors import WorkloadError
from executor.profiling.batch_checks import Trial
from profiles.curves import draws_of
from profiles.schema import LayerCost

_WITHOUT = "so those of a microbatch cannot be found before it runs, as samples with lengths need"


def check_steady(trial: Trial, varying: Mapping[int, str]) -> None:
    """WorkloadError for layers that draw more for some values than for others."""
    if varying:
        index, how = next(iter(varying.items()))
        raise WorkloadError(
            f"{trial.place(index)}: draws {how} random numbers, {_WITHOUT}; draw as many whatever "
            "the values are"
        )


def check_draws(where: str, costs: Sequence[LayerCost], *, shared: bool) -> None:
    """WorkloadError for a layer whose draws are on no line over tokens. `shared`: the generator is
    the host's; a GPU's moves on by blocks of many tokens."""
    short, long = costs[0], costs[-1]
    if draws_of(costs) is None:
        raise WorkloadError(
            f"{where}: draws {_told(short)} random numbers at {short.microbatch} tokens and "
            f"{_told(long)} at {long.microbatch}, no constant and so many for each token, "
            f"{_WITHOUT}; leave such draws out (dropout of attention draws for pairs of tokens)"
        )
    if not shared and long.rng_draws:
        raise WorkloadError(
            f"{where}: draws random numbers, on a GPU for blocks of many tokens at once, "
            f"{_WITHOUT}; leave dropout out"
        )


def _told(cost: LayerCost) -> str:
    return "an unknown number of" if cost.rng_draws is None else str(cost.rng_draws)
