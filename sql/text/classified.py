"""The result of classifying a statement: its kind, and the facts of that kind.

Names are tuples of their parts, unquoted and in the user's case: `("s", "Odd name")`. Offsets are positions
in the statement's text, in characters, from 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...engine.errors import DucktailError, SyntaxError_
from .tokens import NUMBER, STRING, Token, closing

Name = tuple[str, ...]


class Kind(enum.Enum):
    """The kinds of statements that the front end knows; a statement without a kind is refused."""

    EMPTY = "empty"
    OURS = "ours"
    READ = "read"
    DML = "dml"
    DDL = "ddl"
    EXPANDED = "expanded"
    TRANSACTION = "transaction"
    SETTING = "setting"
    COPY = "copy"
    EXPLAIN = "explain"
    PREPARE = "prepare"
    EXECUTE = "execute"
    DEALLOCATE = "deallocate"
    CURSOR = "cursor"
    CALL = "call"
    UTILITY = "utility"
    DO = "do"
    FORWARD = "forward"
    REFUSED = "refused"

    # Each statement looks several tables up by its kind: the Enum's own hash is a call of Python.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class DmlFacts:
    """INSERT, UPDATE, DELETE, TRUNCATE or MERGE: `main` is the index of the verb's token."""

    main: int
    target: Name
    target_position: int
    alias: str | None
    has_with: bool
    has_returning: bool


@dataclass(frozen=True, slots=True)
class LockingFacts:
    """A clause FOR UPDATE, FOR NO KEY UPDATE, FOR SHARE or FOR KEY SHARE of a query.

    Args:
        strength: the words after FOR.
        of: the names after OF; empty for all tables.
        wait: NOWAIT, SKIP LOCKED, or "".
        position: the position of FOR, from 0.
        outermost: the clause belongs to the statement's own query, not to one inside.
    """

    strength: str
    of: tuple[str, ...]
    wait: str
    position: int
    outermost: bool


@dataclass(frozen=True, slots=True)
class DdlFacts:
    """A change of the catalog.

    Args:
        verb: CREATE, ALTER, DROP or COMMENT.
        object_type: TABLE, VIEW, INDEX, TRIGGER, SCHEMA, SEQUENCE, TYPE or MACRO; of COMMENT also COLUMN and
            CONSTRAINT.
        names: the names of the created, changed or dropped objects; for COMMENT ON COLUMN with the column
            last, for COMMENT ON CONSTRAINT its table's.
        places: the positions of the names.
        table: the table that it changes: the table itself, or the table of an index or a trigger.
        table_place: the position of the name of an index's table.
        as_select: CREATE TABLE ... AS a query; `query_offset` is the position of that query.
        list_offset: the position after the name in CREATE TABLE: a list of columns, or AS.
        action: the action of ALTER TABLE: one or more words in capitals, such as "SET NOT NULL" or "RENAME
            TO"; "" for an unknown action.
        renamed: the new name in ALTER TABLE and ALTER VIEW ... RENAME TO.
    """

    verb: str
    object_type: str
    names: tuple[Name, ...]
    table: Name | None
    places: tuple[int, ...] = ()
    table_place: int | None = None
    or_replace: bool = False
    temporary: bool = False
    if_exists: bool = False
    if_not_exists: bool = False
    cascade: bool = False
    as_select: bool = False
    query_offset: int | None = None
    list_offset: int | None = None
    action: str = ""
    renamed: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionFacts:
    """BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION and their synonyms, and two-phase commit.

    Args:
        modes: the requested modes: setting -> value, such as `transaction_isolation` -> `repeatable read`.
        chain: the statement has AND CHAIN.
        savepoint: the savepoint's name, or None.
        identifier: the name of a prepared transaction, or None.
    """

    modes: Mapping[str, str] = field(default_factory=dict)
    chain: bool = False
    savepoint: str | None = None
    identifier: str | None = None


@dataclass(frozen=True, slots=True)
class SettingFacts:
    """SET, RESET, SHOW and DISCARD.

    Args:
        scope: SESSION, LOCAL or GLOBAL as written, or None.
        name: the setting in lower case, `all` for all of them.
        values: the values as texts without quotes; None for DEFAULT, and without a value.
    """

    scope: str | None
    name: str
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """COPY of a table (with columns) or a query.

    Args:
        table_position: the position of the table's name.
        reads: COPY ... FROM, which writes the table.
        client: FROM STDIN or TO STDOUT; else a file.
        rest: index of the first token after FROM or TO, and STDIN or STDOUT.
        binary: the word BINARY precedes the table, as in PostgreSQL's old syntax.
    """

    table: Name | None
    table_position: int
    columns: tuple[str, ...] | None
    query: str | None
    query_offset: int | None
    reads: bool
    client: bool
    rest: int
    binary: bool = False


@dataclass(frozen=True, slots=True)
class ExplainFacts:
    """EXPLAIN: `options` maps upper-case names to their texts ('' without a value)."""

    analyze: bool
    options: dict[str, str]
    inner: str
    offset: int


@dataclass(frozen=True, slots=True)
class PrepareFacts:
    """PREPARE name (types) AS inner."""

    name: str
    types: tuple[str, ...]
    inner: str
    offset: int


@dataclass(frozen=True, slots=True)
class ExecuteFacts:
    """EXECUTE name (arguments).

    Args:
        arguments: the name of a parameter, None for a positional one; the text of an expression.
    """

    name: str
    arguments: tuple[tuple[str | None, str], ...]


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """DECLARE, FETCH, MOVE and CLOSE.

    Args:
        name: the cursor; None for CLOSE ALL.
        inner: DECLARE's query; `offset` is its position.
        way: the direction of FETCH and MOVE: FORWARD, BACKWARD, ABSOLUTE or RELATIVE.
        count: the number of rows, or the row's number; None means to the end.
    """

    name: str | None
    inner: str = ""
    offset: int = 0
    binary: bool = False
    scroll: bool = False
    hold: bool = False
    way: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Classified:
    """A statement's kind and facts.

    Args:
        verb: its opening in canonical words: `CREATE STREAM`, `INSERT`, `ROLLBACK TO`.
        may_write: True if it contains a word that could write (a data-modifying verb, `query`): the binder
            decides.
        cte_writes: True if one of its common table expressions looks like INSERT, UPDATE, DELETE or MERGE.
        error: the error to raise for a statement of kind REFUSED.
        name: the name in DEALLOCATE (None for ALL), USE and PRAGMA.
        locking: the locking clauses of a query or a write; `text` has blanks in their places.
    """

    kind: Kind
    text: str
    tokens: tuple[Token, ...]
    verb: str = ""
    may_write: bool = False
    cte_writes: bool = False
    error: DucktailError | None = None
    dml: DmlFacts | None = None
    ddl: DdlFacts | None = None
    transaction: TransactionFacts | None = None
    setting: SettingFacts | None = None
    copy: CopyFacts | None = None
    explain: ExplainFacts | None = None
    prepare: PrepareFacts | None = None
    execute: ExecuteFacts | None = None
    cursor: CursorFacts | None = None
    name: str | None = None
    locking: tuple[LockingFacts, ...] = ()


class TokenReader:
    """Reads the tokens of one statement.

    A method moves on only if it finds the tokens that it reads.
    """

    def __init__(self, text: str, tokens: Sequence[Token], index: int = 0) -> None:
        self.text = text
        self.tokens = tokens
        self.index = index

    @property
    def at_end(self) -> bool:
        """True if no token is left."""
        return self.index >= len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """The kind of a token ahead, '' past the end."""
        index = self.index + ahead
        return self.tokens[index].kind if index < len(self.tokens) else ""

    def accept(self, *kinds: str) -> bool:
        """Read these tokens if all of them follow."""
        if any(self.peek(ahead) != kind for ahead, kind in enumerate(kinds)):
            return False
        self.index += len(kinds)
        return True

    def accept_one(self, *kinds: str) -> str | None:
        """Read the next token if it is one of these."""
        kind = self.peek()
        if kind not in kinds:
            return None
        self.index += 1
        return kind

    def take(self) -> Token:
        """Read the next token of any kind.

        Raises:
            SyntaxError_: the text ends here.
        """
        if self.at_end:
            raise self.unexpected()
        self.index += 1
        return self.tokens[self.index - 1]

    def identifier(self) -> str:
        """Read one name.

        Raises:
            SyntaxError_: there is no name.
        """
        if self.at_end or not self.tokens[self.index].is_name:
            raise self.unexpected()
        return self.take().name

    def qualified(self) -> Name:
        """Read a name with its qualifiers."""
        parts = [self.identifier()]
        while self.peek() == ".":
            self.index += 1
            parts.append(self.identifier())
        return tuple(parts)

    @property
    def place(self) -> int:
        """The position of the next token, from 0."""
        return len(self.text) if self.at_end else self.tokens[self.index].start

    def value(self) -> str:
        """Read a word, a string or a number as its text without quotes."""
        token = self.take()
        if token.kind not in (STRING, NUMBER) and not token.is_name:
            self.index -= 1
            raise self.unexpected()
        return token.value if token.kind == STRING else token.name

    def brackets(self) -> tuple[int, int]:
        """Read a parenthesized group; return the indexes of its first inner token and its closing
        parenthesis."""
        if self.peek() != "(":
            raise self.unexpected()
        first, last = self.index + 1, closing(self.tokens, self.index)
        self.index = last + 1
        return first, last

    def slices(self, first: int, end: int) -> list[tuple[int, int]]:
        """Divide the tokens [first, end) at the commas of their own depth."""
        if first >= end:
            return []
        depth = self.tokens[first].depth
        cuts = [i for i in range(first, end) if self.tokens[i].kind == "," and self.tokens[i].depth == depth]
        return list(zip([first, *(cut + 1 for cut in cuts)], [*cuts, end], strict=True))

    def cut(self, first: int, end: int) -> str:
        """The user's text of the tokens [first, end)."""
        return self.text[self.tokens[first].start : self.tokens[end - 1].end] if first < end else ""

    def rest(self) -> tuple[str, int]:
        """Read the remaining text; return it with its position.

        Raises:
            SyntaxError_: no text is left.
        """
        if self.at_end:
            raise self.unexpected()
        start = self.tokens[self.index].start
        self.index = len(self.tokens)
        return self.text[start : self.tokens[-1].end], start

    def expect_end(self) -> None:
        """Raise 42601 if anything is left."""
        if not self.at_end:
            raise self.unexpected()

    def unexpected(self) -> SyntaxError_:
        """The error for the next token."""
        if self.at_end:
            return SyntaxError_("syntax error at end of input", position=len(self.text) + 1)
        token = self.tokens[self.index]
        return SyntaxError_(f'syntax error at or near "{token.text}"', position=token.start + 1)


def refused(reader: TokenReader, error: DucktailError) -> Classified:
    """The classification of a statement that must not run."""
    tokens = tuple(reader.tokens)
    return Classified(Kind.REFUSED, reader.text, tokens, verb=tokens[0].kind, error=error)
