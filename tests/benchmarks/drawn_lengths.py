"""Mixtures of lengths of samples, drawn with a seed: what data sets of text look like."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SAMPLES, SEED = 576, 0


def drawn(name: str, longest: int) -> NDArray[np.int64]:
    """The lengths of so many samples of a mixture.

    short: lognormal, the longest one a quarter of `longest`. long-tail: one in 40 of them is the
    longest there may be. uniform: all up to that alike. two-humped: short questions and long
    answers, as in chats."""
    rng = np.random.default_rng(SEED)
    short = longest // 16 * rng.lognormal(0, 0.6, SAMPLES)
    long = longest // 2 * rng.lognormal(0, 0.2, SAMPLES)
    mixtures: Mapping[str, NDArray[np.float64]] = {
        "short": np.minimum(short, longest // 4),
        "long-tail": np.where(rng.random(SAMPLES) < 1 / 40, longest, short),
        "uniform": rng.uniform(1, longest, SAMPLES),
        "two-humped": np.where(rng.random(SAMPLES) < 0.5, short, long),
    }
    return np.clip(np.rint(mixtures[name]).astype(np.int64), 1, longest)


DRAWN = ("short", "long-tail", "uniform", "two-humped")
