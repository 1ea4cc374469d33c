"""Sizes and rates as people type and read them; inside Gantry they are integer bytes and µs."""

import re
from fractions import Fraction

LARGEST = 1 << 50
"""No size, count or time exceeds this (1 PiB, 35 years in µs): sums of them stay exact."""

_BINARY = {"": 1, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS = _BINARY | _DECIMAL
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", re.IGNORECASE)
_SPANS = {"us": 1, "µs": 1, "ms": 10**3, "s": 10**6, "": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m|h)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d\d(?:\.\d+)?)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``24GiB`` or ``500MB``; ValueError says what is accepted."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size; write it like 24GiB, 500MB or 4096")
    value = float(match[1]) * _FACTORS[(match[2] or "").upper()]
    if value > LARGEST:
        raise ValueError(f"{text!r} is more than 1024TiB")
    if round(value) <= 0:
        raise ValueError(f"{text!r} is not a positive size")
    return round(value)


def parse_rate(text: str) -> int:
    """Bytes per second of a rate such as ``25GB/s``; ValueError says what is accepted."""
    if not text.strip().endswith("/s"):
        raise ValueError(f"{text!r} is not a rate; write it like 25GB/s")
    return parse_bytes(text.strip()[:-2])


def parse_us(text: str) -> int:
    """µs of a time such as ``90s``, ``1:23:00``, ``83m`` or plain seconds; 0 is one too.

    ValueError says what is accepted.
    """
    clock, span = _CLOCK.fullmatch(text.strip()), _SPAN.fullmatch(text.strip())
    if clock:
        minutes = 60 * int(clock[1] or 0) + int(clock[2])
        value = (60 * minutes + Fraction(clock[3])) * 10**6
    elif span:
        value = Fraction(span[1]) * _SPANS[span[2] or ""]
    else:
        raise ValueError(f"{text!r} is not a time; write it like 90s, 1:23:00, 83m or 250ms")
    if value > LARGEST:
        raise ValueError(f"{text!r} is more than 35 years")
    return round(value)


def show_bytes(count: int) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def exact_bytes(count: int) -> str:
    """The same with the bytes: ``1.5 GiB (1610612737 bytes)``."""
    return f"{show_bytes(count)} ({count} bytes)"


def enough_bytes(count: int) -> str:
    """A size to ask for, also rounded up: ``1610612737 (1.6GiB)``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            whole, tenths = divmod(-(-10 * count // factor), 10)
            return f"{count} ({whole}.{tenths}{unit})"
    return f"{count} bytes"


def show_us(us: int) -> str:
    """A duration for people: ``3.20 s``, ``15.1 ms`` or ``870 µs``."""
    for unit, factor, digits in (("h", 3_600_000_000, 2), ("s", 1_000_000, 2), ("ms", 1_000, 1)):
        if abs(us) >= factor:
            return f"{us / factor:.{digits}f} {unit}"
    return f"{us} µs"


def show_clock(us: int) -> str:
    """A moment to the µs, as `parse_us` reads it: ``1:23:00.000000``."""
    seconds, rest = divmod(us, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}.{rest:06}"


def microbatch_sizes(batch: int) -> list[int]:
    """Sizes of microbatches that make a difference: numbers that divide the batch, each at least
    half again as large as the one before, and the batch; ascending."""
    found = list[int]()
    for size in range(1, batch):
        if batch % size == 0 and (not found or 2 * size >= 3 * found[-1]):
            found.append(size)
    return [*found, batch]
