"""DO: a block of PL/pgSQL as far as it runs SQL statements, which is how migration tools use it.

| read | as |
|---|---|
| `BEGIN ... [EXCEPTION WHEN condition [OR ...] THEN ...] END` | a block, also inside another one |
| `IF ... THEN ... [ELSIF ... THEN ...] [ELSE ...] END IF` | statements under a condition |
| `PERFORM ...` | the query `SELECT ...`, whose rows are dropped |
| `EXECUTE ...` | the statements in a text |
| `RAISE [level] ['format', ... | condition] [USING option = ..., ...]` | a notice, or an error |
| `RAISE` | the error whose handler is running |
| `NULL`, any SQL statement | itself |

There are no variables and no loops: such a block raises 0A000. Source: PostgreSQL documentation, "Trapping
Errors", "Executing Dynamic Commands", "Errors and Messages" of PL/pgSQL, and the appendix "PostgreSQL Error
Codes" for the names of conditions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...engine.errors import (
    DucktailError,
    NotSupported,
    ProgramLimitExceeded,
    QueryCanceled,
    SyntaxError_,
    UndefinedObject,
)
from ...engine.quoting import fold
from ..text.classified import Classified, TokenReader
from ..text.tokens import STRING, tokenize

# The maximum number of blocks and IFs inside each other.
DEPTH_MAX = 16

OTHERS = "others"
_SQLSTATE = re.compile(r"[0-9A-Z]{5}", re.ASCII)
# Condition -> the SQLSTATE that it catches, or a class of them.
_CONDITIONS = {
    "cannot_coerce": "42846",
    "check_violation": "23514",
    "data_exception": "22",
    "dependent_objects_still_exist": "2BP01",
    "division_by_zero": "22012",
    "duplicate_column": "42701",
    "duplicate_database": "42P04",
    "duplicate_function": "42723",
    "duplicate_object": "42710",
    "duplicate_schema": "42P06",
    "duplicate_table": "42P07",
    "feature_not_supported": "0A000",
    "foreign_key_violation": "23503",
    "insufficient_privilege": "42501",
    "integrity_constraint_violation": "23",
    "invalid_schema_name": "3F000",
    "invalid_table_definition": "42P16",
    "invalid_text_representation": "22P02",
    "lock_not_available": "55P03",
    "not_null_violation": "23502",
    "object_in_use": "55006",
    "query_canceled": "57014",
    "raise_exception": "P0001",
    "serialization_failure": "40001",
    "syntax_error": "42601",
    "undefined_column": "42703",
    "undefined_function": "42883",
    "undefined_object": "42704",
    "undefined_table": "42P01",
    "unique_violation": "23505",
}
_REFUSED = frozenset(
    {"DECLARE", "LOOP", "FOR", "FOREACH", "WHILE", "EXIT", "CONTINUE", "RETURN", "CASE"}
    | {"GET", "OPEN", "FETCH", "MOVE", "CLOSE", "ASSERT", "CALL", "COMMIT", "ROLLBACK", "<<", "<"}
)


EXCEPTION = "EXCEPTION"
# Level of RAISE -> the SQLSTATE that it has by default. PostgreSQL's LOG is for the server's log, which
# contains no values of statements here.
LEVELS = {"DEBUG": "00000", "INFO": "00000", "NOTICE": "00000", "WARNING": "01000", EXCEPTION: "P0001"}
_OPTIONS = frozenset({"MESSAGE", "DETAIL", "HINT", "ERRCODE"})
_OPTIONS_REFUSED = frozenset({"COLUMN", "CONSTRAINT", "DATATYPE", "TABLE", "SCHEMA"})


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL statement of a block."""

    text: str


@dataclass(frozen=True, slots=True)
class Execute:
    """EXECUTE: the expression of a text with statements."""

    expression: str


@dataclass(frozen=True, slots=True)
class Raise:
    """RAISE with a level.

    Args:
        texts: the format, cut at the places of its arguments; None without one.
        arguments: the expressions of the arguments.
        condition: the condition as it is named, and its SQLSTATE; None without one.
        options: option of USING -> expression.
    """

    level: str
    texts: tuple[str, ...] | None
    arguments: tuple[str, ...]
    condition: tuple[str, str] | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RaiseAgain:
    """RAISE alone."""


@dataclass(frozen=True, slots=True)
class If:
    """IF: (condition, statements) in order; None is the condition of ELSE."""

    branches: tuple[tuple[str | None, tuple[Step, ...]], ...]


@dataclass(frozen=True, slots=True)
class Handler:
    """WHEN of EXCEPTION: the SQLSTATEs or classes of them, and the statements."""

    states: tuple[str, ...]
    steps: tuple[Step, ...]

    def catches(self, error: DucktailError) -> bool:
        """True if it is for this error; a cancelled statement is only caught by its SQLSTATE."""
        state = error.sqlstate
        if OTHERS in self.states:
            return not isinstance(error, QueryCanceled)
        return any(state.startswith(one) for one in self.states)


@dataclass(frozen=True, slots=True)
class DoBlock:
    """BEGIN ... END: its statements, and the handlers of their errors."""

    steps: tuple[Step, ...]
    handlers: tuple[Handler, ...] = ()

    def handler_of(self, error: DucktailError) -> Handler | None:
        """The first handler of an error."""
        return next((handler for handler in self.handlers if handler.catches(error)), None)


Step = Sql | Execute | Raise | RaiseAgain | If | DoBlock


def code_of(condition: str) -> str:
    """The SQLSTATE of a condition's name, or of an SQLSTATE itself.

    Raises:
        UndefinedObject: there is no such condition.
    """
    if _SQLSTATE.fullmatch(condition):
        return condition
    name = fold(condition)
    if name not in _CONDITIONS:
        raise UndefinedObject(f'unrecognized exception condition "{condition}"')
    return _CONDITIONS[name].ljust(5, "0")


def read_block(classified: Classified) -> DoBlock:
    """Parse the block in DO [LANGUAGE plpgsql] 'code'.

    Raises:
        SyntaxError_: the statement or its code is invalid; an error in the code has no position.
        NotSupported: the code does more than run SQL statements.
        UndefinedObject: a language or condition is unknown.
        ProgramLimitExceeded: the blocks are too deep.
    """
    reader = TokenReader(classified.text, classified.tokens, 1)
    _language(reader)
    if reader.peek() != STRING:
        raise reader.unexpected()
    code = reader.take().value
    _language(reader)
    reader.expect_end()
    try:
        body = _Code(code)
        found = body.block()
        body.accept(";")
        body.expect_end()
    except SyntaxError_ as error:
        error.position = None
        raise
    return found


def _language(reader: TokenReader) -> None:
    if not reader.accept("LANGUAGE"):
        return
    name = reader.value()
    if fold(name) != "plpgsql":
        raise UndefinedObject(f'language "{name}" does not exist', hint="A block is written in plpgsql.")


def _texts(template: str) -> tuple[str, ...]:
    """The texts around the placeholders of a format.

    >>> _texts("%% of %: %")
    ('% of ', ': ', '')
    """
    texts = [""]
    for part in re.split("(%%|%)", template):
        if part == "%":
            texts.append("")
        else:
            texts[-1] += "%" if part == "%%" else part
    return tuple(texts)


class _Code(TokenReader):
    """Reads a block's code."""

    def __init__(self, code: str) -> None:
        super().__init__(code, tokenize(code))
        self._depth = 0
        self._handlers = 0  # the handlers around the present statement

    def block(self) -> DoBlock:
        """BEGIN ... [EXCEPTION ...] END"""
        if self.peek() in _REFUSED:
            raise self._refused()
        if not self.accept("BEGIN"):
            raise self.unexpected()
        steps = self._steps("EXCEPTION", "END")
        handlers = []
        if self.accept("EXCEPTION"):
            while self.accept("WHEN"):
                states = [self._condition()]
                while self.accept("OR"):
                    states.append(self._condition())
                self._expect("THEN")
                self._handlers += 1
                handlers.append(Handler(tuple(states), self._steps("WHEN", "END")))
                self._handlers -= 1
            if not handlers:
                raise self.unexpected()
        self._expect("END")
        return DoBlock(steps, tuple(handlers))

    def _condition(self) -> str:
        if self.accept("SQLSTATE"):
            state = self.value()
            if _SQLSTATE.fullmatch(state) is None:
                raise SyntaxError_(f'invalid SQLSTATE code "{state}"')
            # The code of a class catches all of it.
            return state[:2] if state.endswith("000") else state
        name = fold(self.identifier())
        if name == OTHERS:
            return name
        if name not in _CONDITIONS:
            raise UndefinedObject(f'unrecognized exception condition "{name}"')
        return _CONDITIONS[name]

    def _steps(self, *ends: str) -> tuple[Step, ...]:
        """The statements up to one of these words, which stays."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ProgramLimitExceeded(f"blocks and IFs are at most {DEPTH_MAX} deep")
        steps = []
        while self.peek() not in ends:
            step = self._step()
            if step is not None:
                steps.append(step)
        self._depth -= 1
        return tuple(steps)

    def _step(self) -> Step | None:
        kind = self.peek()
        if kind in _REFUSED or self.peek(1) in (":=", ":"):
            raise self._refused()
        if kind == "BEGIN":
            found: Step | None = self.block()
        elif kind == "IF":
            found = self._if()
        elif self.accept("EXECUTE"):
            found = Execute(self._until(";", "INTO", "USING"))
            if self.peek() != ";":
                raise self._refused(f"{self.peek()} of EXECUTE")
        elif self.accept("RAISE"):
            found = self._raise()
        elif self.accept("NULL"):
            found = None
        else:
            head = "SELECT " if self.accept("PERFORM") else ""
            found = Sql(head + self._until(";"))
        self._expect(";")
        return found

    def _raise(self) -> Raise | RaiseAgain:
        if self.peek() == ";":
            if not self._handlers:
                raise SyntaxError_("RAISE without parameters cannot be used outside an exception handler")
            return RaiseAgain()
        if self.peek() == "LOG":
            raise self._refused("RAISE LOG")
        level = self.accept_one(*LEVELS) or EXCEPTION
        texts: tuple[str, ...] | None = None
        arguments: list[str] = []
        condition: tuple[str, str] | None = None
        if self.peek() == STRING:
            texts = _texts(self.take().value)
            while self.accept(","):
                arguments.append(self._until(",", ";", "USING"))
            if len(arguments) != len(texts) - 1:
                few = "few" if len(arguments) < len(texts) - 1 else "many"
                raise SyntaxError_(f"too {few} parameters specified for RAISE")
        elif self.peek() != "USING":
            name = self.value() if self.accept("SQLSTATE") else self.identifier()
            condition = name, code_of(name)
        options: dict[str, str] = {}
        if self.accept("USING"):
            given = {"MESSAGE": texts is not None, "ERRCODE": condition is not None}
            while not options or self.accept(","):
                option = self._option()
                if option in options or given.get(option):
                    raise SyntaxError_(f"RAISE option already specified: {option}")
                options[option] = self._until(",", ";")
        return Raise(level, texts, tuple(arguments), condition, options)

    def _option(self) -> str:
        if self.peek() in _OPTIONS_REFUSED:
            raise self._refused(f"option {self.peek()} of RAISE")
        option = self.peek()
        if option not in _OPTIONS:
            raise self.unexpected()
        self.index += 1
        if self.accept_one("=", ":=") is None and not self.accept(":", "="):
            raise self.unexpected()
        return option

    def _if(self) -> If:
        branches: list[tuple[str | None, tuple[Step, ...]]] = []
        while self.accept_one("IF", "ELSIF", "ELSEIF"):
            condition = self._until("THEN")
            self._expect("THEN")
            branches.append((condition, self._steps("ELSIF", "ELSEIF", "ELSE", "END")))
        if self.accept("ELSE"):
            branches.append((None, self._steps("END")))
        self._expect("END")
        self._expect("IF")
        return If(tuple(branches))

    def _until(self, *ends: str) -> str:
        """The text up to one of these words outside of parentheses and CASE."""
        first, cases = self.index, 0
        while not self.at_end and (cases or self.peek() not in ends or self.tokens[self.index].depth):
            kind = self.take().kind
            cases += (kind == "CASE") - (kind == "END" and cases > 0)
        if first == self.index or self.at_end:
            raise self.unexpected()
        return self.text[self.tokens[first].start : self.tokens[self.index - 1].end]

    def _expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.unexpected()

    def _refused(self, what: str | None = None) -> NotSupported:
        return NotSupported(
            f"{what or self.tokens[self.index].text} is not supported in DO",
            detail="A block runs SQL statements, under IF and EXCEPTION, and raises messages. It has no "
            "variables or loops.",
            hint="Send the statements one by one.",
        )
