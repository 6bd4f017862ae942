"""A position of a whole stream as text: a JSON object of LSNs by partition, `{"0": 17, "3": 20}`.

`SHOW READ POSITION` returns this form; `AT`, `AFTER` and `SEEK` accept it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...engine.checkpoints.positions import LSN_MAX, PartitionLsns
from ...engine.errors import InvalidParameterValue, InvalidTextRepresentation

_HINT = 'A position is a map of partitions to LSNs, such as {"0": 17, "1": 20}.'
# The maximum number of digits of a number; longer ones are refused before int() reads them.
_DIGITS_MAX = 19


def parse_positions(text: str) -> dict[int, int]:
    """LSNs by partition.

    >>> parse_positions('{"0": 17, "1": 20}')
    {0: 17, 1: 20}

    Raises:
        InvalidTextRepresentation: the text is no map of LSNs.
    """
    try:
        return dict(PartitionLsns.parse(text).lsns)
    except InvalidTextRepresentation as error:
        # The JSON error's position is in this text, not in the statement's.
        raise InvalidTextRepresentation(error.message, detail=error.detail, hint=_HINT) from None


def parse_after(value: int | str) -> int | dict[int, int]:
    """The value of AFTER: an LSN, also as text (drivers send `'17'`), or LSNs by partition.

    Raises:
        InvalidTextRepresentation: the value is no LSN and no map of LSNs.
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
    return str(PartitionLsns(positions))


def check_position_text(text: str, position: int) -> None:
    """Raise 22P02 at `position` (characters, from 1) if the text is no map of LSNs."""
    try:
        parse_positions(text)
    except InvalidTextRepresentation as error:
        raise _placed(error, position) from None


def check_after_text(text: str, position: int) -> None:
    """Raise 22P02 at `position` (characters, from 1) if the text is no LSN and no map of LSNs."""
    try:
        parse_after(text)
    except InvalidTextRepresentation as error:
        raise _placed(error, position) from None


def require_one_lsn(after: int | Mapping[int, int], position: int | None = None) -> None:
    """Raise 22023 if the AFTER of one partition is a map of LSNs."""
    if not isinstance(after, int):
        raise InvalidParameterValue(
            "SEEK of one partition takes an LSN, not a map",
            hint="Leave PARTITION out, or give AFTER a number.",
            position=position,
        )


def _placed(error: InvalidTextRepresentation, position: int) -> InvalidTextRepresentation:
    return InvalidTextRepresentation(error.message, detail=error.detail, hint=error.hint, position=position)
