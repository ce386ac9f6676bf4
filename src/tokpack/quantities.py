"""Quantities as people write and read them: bytes, counts, durations. Units are powers of ten."""

from __future__ import annotations

import re
from decimal import Decimal

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_COUNTS = {**_BYTES, "b": 10**9}  # 1B is a billion


def size_of(text: str) -> int:
    """A number of bytes such as ``500MB`` or ``1g``. ValueError, with the text, for any other."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 500MB or 2GB")
    return int(match[1]) * _BYTES[match[2]]


def without_unit(text: str) -> str:
    """``1.5M`` (also k, B, G and T) and ``1.5e6`` as ``1500000``; any other text as it is."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbgt]|e\d\d?)", text.lower())
    if match is None:
        return text
    unit = match[2]
    value = Decimal(match[1] + unit) if unit[0] == "e" else Decimal(match[1]) * _COUNTS[unit]
    return str(int(value)) if value == int(value) else text


def count_of(text: str) -> int:
    """A whole number such as ``1,500,000``, ``1.5M`` or ``1.5e6``. ValueError for any other."""
    return int(without_unit(text.strip().replace(",", "").replace("_", "")))


def share_of(text: str) -> float:
    """A share such as ``0.1`` or ``10%``. ValueError, with the text, for any other."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a share such as 0.1 or 10%") from None


def bytes_text(count: float) -> str:
    """A number of bytes, to three figures."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_text(count: float) -> str:
    """A count, to three figures: 999, 12.3k, 4.56M."""
    for unit in ("", "k", "M", "G"):
        if count < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.1f}T"


def time_text(seconds: float) -> str:
    """A duration."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, noun: str) -> str:
    """A number and what is counted: 1 shard, 2,000 shards."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def percent(part: float, whole: float) -> str:
    """A share for people; never rounded to nothing or to all."""
    if not whole or not part:
        return "0%"
    if part == whole:
        return "100%"
    share = 100 * part / whole
    if 0 < share < 0.01:
        return "<0.01%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.{2 if share < 10 else 1}f}%"
