"""How figures read: short, with their unit, and ``–`` for what is not known."""

from __future__ import annotations

import math

from k3ctl.telemetry.histogram import Quantile

UNKNOWN = "–"


def number(value: float | None) -> str:
    """A figure in three or more significant digits: ``7.31``, ``84.2``, ``842``, ``12,480``."""
    if value is None:
        return UNKNOWN
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1 as a percentage; never rounded to 0 % or 100 % when it is neither."""
    if share is None:
        return UNKNOWN
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.999 < share < 1:
        return ">99.9 %"
    return f"{share:.0%}".replace("%", " %") if share in {0, 1} else f"{share * 100:.1f} %"


def seconds(value: float | None) -> str:
    """A time: ``7.1 ms``, ``378 ms``, ``5.30 s``, ``120 s``."""
    if value is None:
        return UNKNOWN
    if value < 1:
        ms = value * 1e3
        return (
            f"{ms:.0f} ms" if ms >= 100 or ms == int(ms) else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"
        )
    return (
        f"{value:.0f} s"
        if value >= 100 or value == int(value)
        else f"{value:.2f} s"
        if value < 10
        else f"{value:.1f} s"
    )


def bucket(quantile: Quantile | None) -> str:
    """A quantile as the bucket that holds it: ``250–500 ms``, ``≤ 10 ms``, ``> 80 s``."""
    if quantile is None:
        return UNKNOWN
    if math.isinf(quantile.high):
        return f"> {seconds(quantile.low)}"
    if quantile.low <= 0:
        return f"≤ {seconds(quantile.high)}"
    low, high = seconds(quantile.low), seconds(quantile.high)
    same_unit = low.split()[-1] == high.split()[-1]
    return f"{low.split()[0] if same_unit else low}–{high}"


def duration(value: float | None) -> str:
    """An age or a position in time: ``12 s``, ``3:05``, ``1:02:03``."""
    if value is None:
        return UNKNOWN
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def size(value: float | None) -> str:
    """Bytes in binary units: ``251.4 GiB``."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return UNKNOWN


def gigabytes(value: float | None) -> str:
    """Bytes (or bytes per second) in decimal gigabytes, without the unit."""
    return UNKNOWN if value is None else f"{value / 1e9:,.1f}"
