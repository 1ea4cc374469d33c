"""Hydraulis' spaces as dispatch problems: pipelines of several types, and lengths for a step.

FILE has `strategies` (tp, pp, a, b in ms: a sequence of s tokens takes a s^2 + b s on each of pp
stages) with `max_tokens.per_strategy`; lists of strategies, [tp, pp, number of pipelines] each, in
`strategy_lists` or `strategies_from_other_models`; and, in some files, `dispatch_1024`: types on
1,024 GPUs, and lengths by seed. Strategies with a scheme that the file does not time, or that holds
nothing, are left out.

Lengths for the lists are drawn as those of `dispatch_1024` were: lognormal with median 430 and
sigma 1.1, from 16 to 60,000 or what the longest pipeline holds, until they are so many tokens.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from planner.dispatch import Curve, PipelineType, Pool
from planner.dispatch.pipes import Array

_MEDIAN, _SIGMA, _SHORTEST, _LONGEST = 430, 1.1, 16, 60_000


class Case(NamedTuple):
    """A step to dispatch."""

    name: str
    gpus: int
    pool: Pool
    lengths: Array


def cases(read: dict[str, Any], gpus: set[int], tokens: int, seed: int) -> Iterator[Case]:
    """The file's own steps, then its lists for so many GPUs, with so many tokens for each GPU."""
    schemes = _schemes(read)
    if own := read.get("dispatch_1024"):
        keys = ("tp", "pp", "count", "max_tokens")
        pool = Pool(tuple(_type(schemes, *(t[key] for key in keys)) for t in own["types"]))
        for name, step in own["seeds"].items():
            yield Case(f"seed {name}", own["gpus"], pool, np.array(step["lengths"]))
    for used, listed in sorted(set(_lists(read))):
        held = [schemes.get(scheme[:2]) for scheme in listed]
        if used in gpus and all(one and one["max_tokens"] > 0 for one in held):
            pool = Pool(tuple(_type(schemes, *scheme) for scheme in listed))
            name = " ".join(f"{count}x(tp{tp},pp{pp})" for tp, pp, count in listed)
            yield Case(name, used, pool, _drawn(seed, tokens * used, pool.longest))


Scheme = tuple[int, int, int]


def _schemes(read: dict[str, Any]) -> dict[tuple[int, ...], dict[str, Any]]:
    """The file's strategies by (tp, pp), with the longest sequence that each holds."""
    longest = read["max_tokens"]["per_strategy"]
    return {
        (one["tp"], one["pp"]): {**one, "max_tokens": most}
        for one, most in zip(read["strategies"], longest, strict=True)
    }


def _type(
    schemes: dict[tuple[int, ...], dict[str, Any]], tp: int, pp: int, count: int, longest: int = 0
) -> PipelineType:
    one = schemes[tp, pp]
    curve = Curve(1000 * one["a"], 1000 * one["b"])
    return PipelineType(curve, pp, longest or one["max_tokens"], count)


def _lists(read: dict[str, Any]) -> Iterator[tuple[int, tuple[Scheme, ...]]]:
    """The GPUs and the schemes of every list."""
    for one in read.get("strategies_from_other_models", []):
        yield one["gpus"], tuple(map(tuple, one["pipelines"]))
    for script in read.get("strategy_lists", []):
        for listed in script["strategies"]:
            gpus = sum(tp * pp * count for tp, pp, count in listed)
            yield gpus, tuple(map(tuple, listed))


def _drawn(seed: int, tokens: int, longest: int) -> Array:
    rng = np.random.default_rng(seed)
    most = min(longest, _LONGEST)
    lengths, sum_ = [], 0
    while sum_ < tokens:
        drawn = rng.lognormal(np.log(_MEDIAN), _SIGMA)
        lengths.append(int(np.clip(drawn, _SHORTEST, most)))
        sum_ += lengths[-1]
    return np.array(lengths)
