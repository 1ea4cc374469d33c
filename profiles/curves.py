"""Times over tokens: a s^2 + b s + c, fitted to what was measured, and taken at other lengths."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.schema import LayerCost

FEWEST = 4
"""A curve is fitted to so many lengths or more, one more than it has coefficients."""

IN_PROPORTION = ("in_bytes", "out_bytes")
"""Bytes at a number of tokens that are exactly so many times those of each token, padded."""

NO_FASTER = (
    "offload_bytes",
    "saved_bytes",
    "forward_peak_bytes",
    "backward_peak_bytes",
    "left_bytes",
    "kept_grad_bytes",
    "input_peak_bytes",
)
"""Bytes of which some may be the same at any number of tokens."""

OPS = (
    "forward",
    "recompute_backward",
    "backward",
    "pack_backward",
    "unpack_backward",
    "backward_input",
    "backward_weight",
)
"""The fields of `LayerCost` whose medians curves fit."""

_UNITS = (10**9, 10**6, 10**3)  # of square_fs, linear_ps and fixed_ns in a µs
_FS = 10**9  # in a µs


class Curve(NamedTuple):
    """The time of one kind of op over s tokens, of one sequence:

        square_fs s^2 / 1e9 + linear_ps s / 1e6 + fixed_ns / 1e3    us

    off_ppm: the most by which it is off at a measured length, in millionths of that time."""

    op: str
    square_fs: int
    linear_ps: int
    fixed_ns: int
    off_ppm: int


def us(curve: Curve, tokens: int, squares: int) -> int:
    """The time of sequences of so many tokens together; `squares`: the sum of their squares."""
    fs = curve.square_fs * squares + 10**3 * curve.linear_ps * tokens + 10**6 * curve.fixed_ns
    return (fs + _FS // 2) // _FS


def fit(op: str, medians: Mapping[int, int]) -> Curve:
    """The curve nearest to medians in µs by tokens of one sequence, where each counts by its own
    size: least squares of relative errors, no coefficient below 0."""
    lengths = np.array(list(medians), float)
    times = np.maximum(1.0, np.array(list(medians.values()), float))
    rows = np.stack([lengths**2, lengths, np.ones_like(lengths)], axis=1) / times[:, None]
    found = zip(_least(rows), _UNITS, strict=True)
    square, linear, fixed = (round(x * unit) for x, unit in found)
    curve = Curve(op, square, linear, fixed, off_ppm=0)
    off = [abs(us(curve, n, n * n) - t) / max(1, t) for n, t in medians.items()]
    return curve._replace(off_ppm=round(max(off) * 10**6))


@lru_cache(maxsize=1 << 12)
def curves_of(costs: tuple[LayerCost, ...]) -> tuple[Curve, ...]:
    """The curves of a layer: of each kind of op that was measured at all of these sizes."""
    found: list[Curve] = []
    for op in OPS:
        times = {cost.microbatch: getattr(cost, op) for cost in costs}
        if all(time is not None for time in times.values()):
            found.append(fit(op, {size: time.median_us for size, time in times.items()}))
    return tuple(found)


def draws_of(costs: Sequence[LayerCost]) -> tuple[int, int] | None:
    """The random draws of a forward of no tokens, and how many more each token adds; None where
    those measured, ascending, are on no such line."""
    points = [(cost.microbatch, cost.rng_draws or 0) for cost in costs]
    (few, low), (many, high) = points[0], points[-1]
    each = (high - low) // max(1, many - few)
    fixed = low - each * few
    known = all(cost.rng_draws is not None for cost in costs) and min(fixed, each) >= 0
    return (fixed, each) if known and all(n == fixed + each * t for t, n in points) else None


def _least(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 for which the rows times x are nearest to 1: the best of those where some of its
    values are 0 and the others free."""
    scale = np.linalg.norm(rows, axis=0)
    columns, least = rows / scale, np.inf
    best: NDArray[np.float64] = np.zeros(rows.shape[1])
    for free in product((False, True), repeat=rows.shape[1]):
        x = np.zeros(rows.shape[1])
        mask = np.array(free)
        if mask.any():
            x[mask] = np.linalg.lstsq(columns[:, mask], np.ones(len(rows)))[0]
        error = float(((columns @ x - 1) ** 2).sum())
        if x.min() >= 0 and error < least:
            best, least = x, error
    found: NDArray[np.float64] = best / scale
    return found
