"""DO: a block of PL/pgSQL as far as it runs SQL statements, which is how migration tools use it.

| read | as |
|---|---|
| `BEGIN ... [EXCEPTION WHEN condition [OR ...] THEN ...] END` | a block, also inside another one |
| `IF ... THEN ... [ELSIF ... THEN ...] [ELSE ...] END IF` | statements under a condition |
| `PERFORM ...` | the query `SELECT ...`, whose rows are dropped |
| `NULL`, any SQL statement | itself |

There are no variables, loops or messages: such a block raises 0A000. Source: PostgreSQL documentation,
"Trapping
Errors" of PL/pgSQL, and the appendix "PostgreSQL Error Codes" for the names of conditions.
"""

from __future__ import annotations

import re
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
    {"DECLARE", "LOOP", "FOR", "FOREACH", "WHILE", "EXIT", "CONTINUE", "RAISE", "EXECUTE", "RETURN", "CASE"}
    | {"GET", "OPEN", "FETCH", "MOVE", "CLOSE", "ASSERT", "CALL", "COMMIT", "ROLLBACK", "<<", "<"}
)


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL statement of a block."""

    text: str


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
class Block:
    """BEGIN ... END: its statements, and the handlers of their errors."""

    steps: tuple[Step, ...]
    handlers: tuple[Handler, ...] = ()

    def handler_of(self, error: DucktailError) -> Handler | None:
        """The first handler of an error."""
        return next((handler for handler in self.handlers if handler.catches(error)), None)


Step = Sql | If | Block


def read_block(classified: Classified) -> Block:
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


class _Code(TokenReader):
    """Reads a block's code."""

    def __init__(self, code: str) -> None:
        super().__init__(code, tokenize(code))
        self._depth = 0

    def block(self) -> Block:
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
                handlers.append(Handler(tuple(states), self._steps("WHEN", "END")))
            if not handlers:
                raise self.unexpected()
        self._expect("END")
        return Block(steps, tuple(handlers))

    def _condition(self) -> str:
        if self.accept("SQLSTATE"):
            state = self.value()
            if re.fullmatch(r"[0-9A-Z]{5}", state, re.ASCII) is None:
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
        elif self.accept("NULL"):
            found = None
        else:
            head = "SELECT " if self.accept("PERFORM") else ""
            found = Sql(head + self._until(";"))
        self._expect(";")
        return found

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

    def _until(self, end: str) -> str:
        """The text up to a word outside of parentheses and CASE."""
        first, cases = self.index, 0
        while not self.at_end and (cases or self.peek() != end or self.tokens[self.index].depth):
            kind = self.take().kind
            cases += (kind == "CASE") - (kind == "END" and cases > 0)
        if first == self.index or self.at_end:
            raise self.unexpected()
        return self.text[self.tokens[first].start : self.tokens[self.index - 1].end]

    def _expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.unexpected()

    def _refused(self) -> NotSupported:
        return NotSupported(
            f"{self.tokens[self.index].text} is not supported in DO",
            detail="A block runs SQL statements, under IF and EXCEPTION; it has no variables or loops.",
            hint="Send the statements one by one.",
        )
