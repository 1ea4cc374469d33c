"""Profiles in which all takes the same time, so that plans do not vary with noise."""

import msgspec

from profiles.schema import Profile

US = 200


def steady(measured: Profile) -> Profile:
    """The profile with so many us for everything that was timed."""
    return msgspec.convert(_steady(msgspec.to_builtins(measured)), Profile)


def _steady(value: object) -> object:
    if isinstance(value, dict):
        if "median_us" in value:
            return {name: US if name.endswith("_us") else n for name, n in value.items()}
        return {name: _steady(entry) for name, entry in value.items()}
    return [_steady(entry) for entry in value] if isinstance(value, tuple | list) else value
