"""Sizes and rates as people type and read them; inside Gantry they are integer bytes and µs."""

import re

LARGEST = 1 << 50
"""No size, count or time exceeds this (1 PiB, 35 years in µs): sums of them stay exact."""

_BINARY = {"": 1, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS = _BINARY | _DECIMAL
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", re.IGNORECASE)


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


def show_bytes(count: int) -> str:
    """A size for people: ``1.5 GiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def show_us(us: int) -> str:
    """A duration for people: ``3.20 s``, ``15.1 ms`` or ``870 µs``."""
    if abs(us) >= 3_600_000_000:
        return f"{us / 3.6e9:.2f} h"
    if abs(us) >= 1_000_000:
        return f"{us / 1e6:.2f} s"
    if abs(us) >= 1_000:
        return f"{us / 1e3:.1f} ms"
    return f"{us} µs"
