"""Lengths of time as PostgreSQL writes intervals: days, then hours, minutes and seconds."""

from __future__ import annotations

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def interval_text(us: int) -> str:
    """The text of a length in microseconds, at least 0.

    >>> interval_text(7 * DAY_US), interval_text(DAY_US + 90 * SECOND_US), interval_text(1500)
    ('7 days', '1 day 00:01:30', '00:00:00.0015')
    """
    days, rest = divmod(us, DAY_US)
    seconds, fraction = divmod(rest, SECOND_US)
    parts = [f"{days} day{'' if days == 1 else 's'}"] if days else []
    if rest or not days:
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(clock + (f".{fraction:06}".rstrip("0") if fraction else ""))
    return " ".join(parts)
