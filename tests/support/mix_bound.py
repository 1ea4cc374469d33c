"""A bound on mixes of pipelines."""

from collections.abc import Sequence

import numpy as np

from planner.dispatch.pipes import Array
from planner.mixes import Offer


def mix_bound_us(offers: Sequence[Offer], devices: int, lengths: Array) -> int:
    """No mix is sooner done with the sequences, however they are divided: each where it keeps
    devices busy for the least time."""
    values, counts = np.unique(lengths, return_counts=True)
    busy = np.array([np.where(values > o.longest, np.inf, _us(o, values)) for o in offers])
    return int((busy.min(axis=0) * counts).sum() / devices)


def _us(offer: Offer, lengths: Array) -> Array:
    """The time of all devices of a pipeline with a microbatch of each length."""
    curve = offer.curve
    return offer.devices * ((curve.square * lengths + curve.linear) * lengths + curve.fixed)
