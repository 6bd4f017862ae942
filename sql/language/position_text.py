"""A position of a whole stream as text: a JSON object of LSNs by partition, `{"0": 17, "3": 20}`.

What `SHOW READ POSITION` shows, and `AT`, `AFTER` and `SEEK` take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...engine.errors import InvalidParameterValue, InvalidTextRepresentation

LSN_MAX = (1 << 63) - 1
_HINT = 'A position is a map of partitions to LSNs, such as {"0": 17, "1": 20}.'
# No number in a position has more digits; what is longer is refused before int() reads it.
_DIGITS_MAX = 19


def parse_positions(text: str) -> dict[int, int]:
    """LSNs by partition.

    >>> parse_positions('{"0": 17, "1": 20}')
    {0: 17, 1: 20}

    Raises:
        InvalidTextRepresentation: 22P02.
    """
    try:
        pairs = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_integer, parse_float=_refuse, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        raise _invalid(text) from None
    if not isinstance(pairs, _Pairs):
        raise _invalid(text)
    found: dict[int, int] = {}
    for name, lsn in pairs:
        if not (name.isascii() and name.isdecimal() and len(name) <= 9) or int(name) in found:
            raise _invalid(text)
        if not isinstance(lsn, int) or isinstance(lsn, bool) or not 0 <= lsn <= LSN_MAX:
            raise _invalid(text)
        found[int(name)] = lsn
    return found


def parse_after(value: int | str) -> int | dict[int, int]:
    """The value of AFTER: an LSN, also as text (drivers send `'17'`), or LSNs by partition.

    Raises:
        InvalidTextRepresentation: 22P02.
    """
    if isinstance(value, str):
        digits = value.strip()
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
            return parse_positions(value)
        value = int(digits)
    if isinstance(value, bool) or not 0 <= value <= LSN_MAX:
        raise InvalidTextRepresentation(f'invalid lsn: "{value}"', hint="An LSN is a number from 0.")
    return value


def format_positions(positions: Mapping[int, int]) -> str:
    """The text of a position, partitions in order.

    >>> format_positions({3: 20, 0: 17})
    '{"0": 17, "3": 20}'
    """
    return json.dumps({str(partition): positions[partition] for partition in sorted(positions)})


def check_position_text(text: str, position: int) -> None:
    """Raise 22P02 at `position` (characters, from 1) where the text is no map of LSNs."""
    try:
        parse_positions(text)
    except InvalidTextRepresentation as error:
        raise InvalidTextRepresentation(error.message, hint=error.hint, position=position) from None


def check_after_text(text: str, position: int) -> None:
    """Raise 22P02 at `position` (characters, from 1) where the text is no LSN and no map of LSNs."""
    try:
        parse_after(text)
    except InvalidTextRepresentation as error:
        raise InvalidTextRepresentation(error.message, hint=error.hint, position=position) from None


def require_one_lsn(after: int | Mapping[int, int], position: int | None = None) -> None:
    """Raise 22023 where AFTER of one partition is a map of LSNs."""
    if not isinstance(after, int):
        raise InvalidParameterValue(
            "SEEK of one partition takes an LSN, not a map",
            hint="Leave PARTITION out, or give AFTER a number.",
            position=position,
        )


class _Pairs(list[tuple[str, object]]):
    """An object's members in order, so that a name that stands twice is seen."""


def _integer(digits: str) -> int:
    return int(digits) if len(digits) <= _DIGITS_MAX else -1


def _refuse(text: str) -> object:
    raise ValueError(text)


def _invalid(text: str) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(f'invalid position: "{text}"', hint=_HINT)
