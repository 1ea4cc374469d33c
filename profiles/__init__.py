"""The profile format: per-layer memory and time, measured once, planned from ever after."""

from pathlib import Path

from profiles.check import findings, violations
from profiles.codec import decode, pretty, read_bytes, sha256, write_atomic
from profiles.errors import FormatError
from profiles.schema import VERSION, Profile

__all__ = ["FormatError", "Profile", "load", "loads", "save", "sha256", "violations"]


def loads(data: bytes, where: str = "profile") -> Profile:
    """A sound profile from bytes; FormatError names the first broken rule and how many more."""
    profile = decode(data, Profile, version=VERSION, where=where)
    found = findings(profile)
    if found.total:
        more = f" (and {found.total - 1} more)" if found.total > 1 else ""
        text = f"{where}: {found.lines()[0]}{more}; give a profile as a command wrote it"
        raise FormatError(text)
    return profile


def load(path: str | Path) -> Profile:
    """A sound profile from a file; FormatError otherwise."""
    return loads(read_bytes(path), str(path))


def save(path: str | Path, profile: Profile) -> None:
    write_atomic(path, pretty(profile))
