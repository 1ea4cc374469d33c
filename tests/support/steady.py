"""Profiles in which all takes the same time, so that plans do not vary with noise."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import msgspec

from profiles.schema import Profile, Rate, Time

US = 200


@contextmanager
def timeless() -> Iterator[None]:
    """Profiles do all that they do but take times: what would be timed is not run, and lasts as
    long as in a steady profile; links have one rate."""
    from executor.profiling import layer, links

    with (
        mock.patch.object(layer, "timed", return_value=(Time(US, US, US, 1),) * 2),  # or one
        mock.patch.object(layer, "copying", return_value=nullcontext()),
        mock.patch.object(layer, "loaded", return_value=nullcontext()),
        mock.patch.object(links._Line, "rate", return_value=Rate(10**9, 20)),
    ):
        yield


def steady(measured: Profile, us: int = US) -> Profile:
    """The profile with so many us for everything that was timed."""
    return msgspec.convert(_steady(msgspec.to_builtins(measured), us), Profile)


def _steady(value: object, us: int) -> object:
    if isinstance(value, dict):
        if "median_us" in value:
            return {name: us if name.endswith("_us") else n for name, n in value.items()}
        return {name: _steady(entry, us) for name, entry in value.items()}
    return [_steady(entry, us) for entry in value] if isinstance(value, tuple | list) else value
