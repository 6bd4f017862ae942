"""The grammar that statements share: names, scalars, streams and groups, options, errors.

A rule reads tokens from a `Grammar` and returns a value; at an unexpected token it raises 42601 with the
position, and with the expected form in the hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...engine.errors import (
    InvalidParameterValue,
    InvalidTextRepresentation,
    SyntaxError_,
    UndefinedParameter,
)
from ..text.classified import TokenReader
from ..text.tokens import NOT_NAMES, NUMBER, PARAMETER, QUOTED, STRING, Token
from . import clauses as option_rules
from .clauses import Fragment, Name, Number, Option, Options, Parameter, Raw, Scalar, Text
from .position_text import check_after_text, check_position_text

T = TypeVar("T")

LSN_MAX = (1 << 63) - 1
GROUP = "consumer group"
_STREAM = "the name of a stream"
_PARTITION_MAX = (1 << 31) - 1
# A number of more digits exceeds every bound; int() refuses much longer ones with its own message.
_DIGITS_MAX = 40
# The extended protocol counts parameters in 16 bits.
PARAMETERS_MAX = 65535


class Grammar(TokenReader):
    """A token reader for the values of the language."""

    def word_ahead(self, ahead: int = 0) -> Token | None:
        """The token ahead; None past the end."""
        index = self.index + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    @property
    def position(self) -> int:
        """The position of the next token, in characters from 1."""
        token = self.word_ahead()
        return len(self.text) + 1 if token is None else token.start + 1

    def expected(self, what: str) -> SyntaxError_:
        """The error at the next token, with the expected form."""
        error = self.unexpected()
        return SyntaxError_(error.message, hint=f"Expected {what}.", position=error.position)

    def expect(self, *kinds: str) -> None:
        """Read exactly these tokens.

        Raises:
            SyntaxError_: another token is there; the error is at the first difference.
        """
        for kind in kinds:
            if not self.accept(kind):
                raise self.expected(" ".join(kinds[kinds.index(kind) :]))

    def is_name_ahead(self, ahead: int = 0) -> bool:
        """True if the token ahead can be a name."""
        token = self.word_ahead(ahead)
        return token is not None and token.is_name and token.kind not in NOT_NAMES

    def simple_name(self, what: str) -> str:
        """A name without qualifiers."""
        if not self.is_name_ahead():
            raise self.expected(what)
        return self._named(what)

    def _named(self, what: str) -> str:
        name = self.take().name
        if not name:
            self.index -= 1
            raise SyntaxError_(
                "zero-length delimited identifier", hint=f"Expected {what}.", position=self.position
            )
        return name

    def full_name(self, what: str) -> Name:
        """A name with optional qualifiers; after a dot any word is a name."""
        position = self.position
        parts = [self.simple_name(what)]
        while self.accept("."):
            token = self.word_ahead()
            if token is None or not token.is_name:
                raise self.expected(what)
            parts.append(self._named(what))
        return Name(tuple(parts), position)

    def parameter(self) -> Parameter | None:
        """`$n`, or the n-th `?` of the text; None if the next token is no parameter."""
        token = self.word_ahead()
        if token is None or token.kind != PARAMETER:
            return None
        self.index += 1
        digits = token.text[1:].strip()
        if token.text[0] == "?" and not digits:
            marks = [mark for mark in self.tokens[: self.index] if mark.kind == PARAMETER]
            return Parameter(len(marks))
        if not digits.isdecimal() or not digits.isascii() or not digits.strip("0"):
            raise SyntaxError_(
                f'parameter "{token.text}" has no number',
                hint="Parameters are $1, $2 and so on.",
                position=token.start + 1,
            )
        if len(digits) > _DIGITS_MAX or int(digits) > PARAMETERS_MAX:
            raise UndefinedParameter(
                f"there is no parameter ${digits[:_DIGITS_MAX]}", position=token.start + 1
            )
        return Parameter(int(digits))

    def text_or_name(self, what: str) -> Text:
        """A group or member: an identifier, a string literal or a parameter."""
        parameter = self.parameter()
        if parameter is not None:
            return parameter
        if self.peek() == STRING:
            text = self.take().value
            if not text:
                self.index -= 1
                raise InvalidParameterValue(f"{what} has no name", position=self.position)
            return text
        return self.simple_name(f"the name of the {what}")

    def string(self, what: str) -> Text:
        """A string literal or a parameter."""
        parameter = self.parameter()
        if parameter is not None:
            return parameter
        if self.peek() != STRING:
            raise self.expected(f"{what} as a string")
        return self.take().value

    def literal(self, what: str) -> str:
        """A string literal; parameters are refused."""
        if self.peek() != STRING:
            raise self.expected(f"{what} as a string")
        return self.take().value

    def number(self, what: str, low: int = 0, high: int = LSN_MAX) -> Number:
        """An integer from `low` to `high`, or a parameter.

        Raises:
            SyntaxError_: there is no integer.
            InvalidTextRepresentation: a string is no integer.
            InvalidParameterValue: the number is out of bounds.
        """
        parameter = self.parameter()
        if parameter is not None:
            return parameter
        position = self.position
        value = self._quoted_integer(what) if self.peek() == STRING else self._integer(what)
        if not low <= value <= high:
            bound = f"less than {low}" if value < low else f"greater than {high}"
            raise InvalidParameterValue(f"{what} must not be {bound}: {value}", position=position)
        return value

    def _integer(self, what: str) -> int:
        negative = self.peek() == "-" and self.peek(1) == NUMBER
        if negative:
            self.index += 1
        digits = self.word_ahead()
        if digits is None or digits.kind != NUMBER or not digits.text.replace("_", "").isdecimal():
            raise self.expected(f"an integer for {what}")
        self.index += 1
        text = digits.text.replace("_", "")
        return int(text[:_DIGITS_MAX]) * (-1 if negative else 1)

    def _quoted_integer(self, what: str) -> int:
        """An integer in quotes, from drivers that put parameters into the text (`'17'`)."""
        position = self.position
        text = self.take().value.strip()
        if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > _DIGITS_MAX:
            raise InvalidTextRepresentation(f'invalid integer for {what}: "{text}"', position=position)
        return int(text)

    def lsn_or_positions(self, what: str) -> Scalar:
        """An LSN, a map of LSNs by partition as a string, or a parameter."""
        if self.peek() != STRING:
            return self.number(what)
        position = self.position
        text = self.take().value
        check_after_text(text, position)
        return text

    def positions(self, what: str) -> Text:
        """A map of LSNs by partition as a string, or a parameter.

        Raises:
            InvalidTextRepresentation: the string is no such map.
        """
        position = self.position
        text = self.string(f"{what}, such as '{{\"0\": 17}}',")
        if isinstance(text, str):
            check_position_text(text, position)
        return text

    def partition(self) -> Number:
        """A partition's number; the engine checks that the stream has it."""
        return self.number("PARTITION", high=_PARTITION_MAX)

    def stream(self) -> Name:
        """The name of a stream or topic."""
        return self.full_name(_STREAM)

    def on_stream(self) -> Name:
        """ON s"""
        self.expect("ON")
        return self.stream()

    def perhaps_on_stream(self) -> Name | None:
        """[ ON s ]"""
        return self.stream() if self.accept("ON") else None

    def group_on_stream(self) -> tuple[Text, Name]:
        """g ON s"""
        return self.text_or_name(GROUP), self.on_stream()

    def stream_and_group(self) -> tuple[Name, Text]:
        """s CONSUMER GROUP g; ON has been read."""
        stream = self.stream()
        self.expect("CONSUMER", "GROUP")
        return stream, self.text_or_name(GROUP)

    def member(self) -> Text | None:
        """[ MEMBER 'm' ]"""
        return self.text_or_name("member") if self.accept("MEMBER") else None

    def like(self) -> str | None:
        """[ LIKE 'pattern' ]"""
        return self.literal("the pattern") if self.accept("LIKE") else None

    def bracketed(self, rule: Callable[[], T]) -> tuple[T, ...]:
        """`( rule, ... )`, at least one."""
        self.expect("(")
        values = self.listed(rule)
        self.expect(")")
        return values

    def listed(self, rule: Callable[[], T]) -> tuple[T, ...]:
        """`rule, ...`, at least one."""
        values = [rule()]
        while self.accept(","):
            values.append(rule())
        return tuple(values)

    def options(self, owner: str) -> list[Option]:
        """`( name = value, ... )`."""
        if self.peek() != "(":
            raise self.expected("(option = value, ...)")
        return list(self.bracketed(lambda: self.option(owner)))

    def option(self, owner: str) -> Option:
        """`name = value`."""
        position = self.position
        name = self.simple_name("the name of an option")
        if not self.accept("="):
            raise self.expected(f"= and the value of {name}")
        return option_rules.check(owner, name, self.raw_value(name), position)

    def raw_value(self, name: str) -> Raw:
        """An option's value as written."""
        if self.peek() == "(":
            columns = self.bracketed(lambda: self._column_or_string(name))
            return Raw("list", ", ".join(columns), columns)
        if self.accept("NULL"):
            return Raw("null", "NULL")
        sign = "-" if self.accept("-") else ""
        token = self.word_ahead()
        if token is None or not (token.kind in (STRING, NUMBER) or token.is_name):
            raise self.expected(f"a value of {name}")
        self.index += 1
        if token.kind == NUMBER:
            return Raw("number", sign + token.text.replace("_", ""))
        if token.kind == STRING:
            return Raw("string", token.value)
        return Raw("word", token.name)

    def _column_or_string(self, name: str) -> str:
        if self.peek() == STRING:
            return self.take().value
        return self.simple_name(f"a column of {name}")

    def fragment(self, ends: Sequence[str], what: str) -> Fragment:
        """The user's text up to one of the words at the depth of its first token, or to the end."""
        first = self.index
        depth = self.tokens[first].depth if not self.at_end else 0
        while not self.at_end:
            token = self.tokens[self.index]
            if token.depth <= depth and token.kind in ends and self.index > first and not token.cases:
                break
            self.index += 1
        if self.index == first or self.tokens[first].kind in ends:
            self.index = first
            raise self.expected(what)
        return Fragment(self.cut(first, self.index), self.tokens[first].start + 1)

    def none_twice(self, clause: str, seen: object) -> None:
        """Raise 42601 at the previous token if the clause was given before."""
        if seen is not None:
            position = self.tokens[self.index - 1].start + 1
            raise SyntaxError_(f"{clause} is given twice", position=position)


def collected(given: list[Option]) -> Options:
    """The options of all WITH clauses of a statement."""
    return option_rules.collect(given)


__all__ = ["LSN_MAX", "NUMBER", "QUOTED", "STRING", "Grammar", "collected"]
