"""Stream scans in a FROM clause: their positions, their clauses, and their text.

The tokens alone decide, so that the pre-check, the parser and the session agree to the character. An unquoted
`STREAM` or `TOPIC` begins a scan if a table may be there (after FROM, JOIN, USING, a comma or parenthesis of
a FROM list) and a name follows. If a table, view or CTE called `stream` (or `topic`) is visible, the text
means that table with an alias, unless a clause of ducktail follows the name.
Source: docs/sql.md, "Reading".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...engine.errors import InvalidParameterValue, NotSupported, SyntaxError_
from ...engine.quoting import fold
from ..text.tokens import PARAMETER, Token
from ..text.units import parse_interval_ms
from .clauses import (
    Name,
    Number,
    Scalar,
    Text,
    clause,
    member_clause,
    name_sql,
    named,
    scalar_sql,
    when,
    words,
)
from .grammar import GROUP, NUMBER, STRING, Grammar

IsTable = Callable[[str], bool]

_OPENINGS = ("STREAM", "TOPIC")
# A comma belongs to the clause whose word precedes it at its own depth.
_FROM_WORDS = frozenset({"FROM", "JOIN", "USING"})
# Statements that begin with a table's name.
_STATEMENT_WORDS = frozenset({"PIVOT", "PIVOT_WIDER", "UNPIVOT", "PIVOT_LONGER"})
_OTHER_CLAUSES = frozenset(
    {"SELECT", "WHERE", "BY", "HAVING", "QUALIFY", "WINDOW", "VALUES", "LIMIT", "OFFSET", "SET", "RETURNING"}
)
_PARTITIONS_LISTED_MAX = 1024
_VALUE = (NUMBER, STRING, PARAMETER, "-")
# The words of clauses that may follow MEMBER as an alias.
_CLAUSES = frozenset({"PARTITION", "AFTER", "ENVELOPE", "COMMIT", "WAIT", "WITH"})


@dataclass(frozen=True, slots=True)
class Scan:
    """`STREAM s` in a FROM clause, with its clauses.

    Args:
        stream: the stream's or topic's name.
        partitions: the partitions of PARTITION, or None for all.
        group: the consumer group, or None for a read without one.
        member: the group's member that reads.
        after: an LSN (int), a map of LSNs by partition as JSON text, or None.
        envelope: 'json' or 'changes'.
        wait: the maximum wait for events, an interval as text.
        wait_for: the number of events to wait for; None means one.
        topic: the word was TOPIC.
        alias: the table alias, as given.
        columns: the alias's column names.
        start, end: the span in the text from STREAM through the alias and its column names.
        away: the other node whose stream it is, in a query that runs on this node.
        typed: name and type of its columns in that case, in ENVELOPE CHANGES.
        commits: True for COMMIT: the statement first commits the session's read position in the group.
        deliveries: True for WITH DELIVERIES: the events have the column `deliveries`.
    """

    stream: Name
    start: int
    end: int
    partitions: tuple[Number, ...] | None = None
    group: Text | None = None
    member: Text | None = None
    after: Scalar | None = None
    envelope: str = "json"
    wait: Text | None = None
    wait_for: Number | None = None
    topic: bool = False
    alias: str | None = None
    columns: tuple[str, ...] = ()
    away: str | None = None
    typed: tuple[tuple[str, str], ...] = ()
    commits: bool = False
    deliveries: bool = False

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.end
        assert self.envelope in ("json", "changes")
        assert self.member is None or self.group is not None
        assert not self.commits or (self.group is not None and self.after is None)
        assert self.wait_for is None or self.wait is not None
        assert not self.deliveries or self.envelope == "json"

    @property
    def kind(self) -> str:
        """The word for its object in messages."""
        return "topic" if self.topic else "stream"

    @property
    def visible_name(self) -> str:
        """The name under which the rest of the query knows the scan."""
        return self.alias if self.alias is not None else self.stream.last


def _stands_in_from(tokens: Sequence[Token], index: int) -> bool:
    """True if a table may be at `index`."""
    if index == 0:
        return False
    before = tokens[index - 1].kind
    if before in _FROM_WORDS:
        return not _is_distinct_from(tokens, index - 1)
    if before in _STATEMENT_WORDS:
        return True
    if before == "(":
        return _stands_in_from(tokens, index - 1) and tokens[index - 2].kind not in _STATEMENT_WORDS
    if before == ":" and index >= 2 and tokens[index - 2].is_name:
        return _stands_in_from(tokens, index - 2)
    return before == "," and _comma_in_from(tokens, index - 1)


def _is_distinct_from(tokens: Sequence[Token], index: int) -> bool:
    return index > 0 and tokens[index].kind == "FROM" and tokens[index - 1].kind == "DISTINCT"


def _comma_in_from(tokens: Sequence[Token], comma: int) -> bool:
    depth = tokens[comma].depth
    for index in range(comma - 1, -1, -1):
        token = tokens[index]
        if token.depth < depth:
            return token.kind == "(" and _stands_in_from(tokens, index)
        if token.depth == depth and token.kind in _FROM_WORDS and not _is_distinct_from(tokens, index):
            return True
        if token.depth == depth and token.kind in _OTHER_CLAUSES:
            return False
    return False


def _clause_ahead(g: Grammar) -> str | None:
    """The clause that begins at the next token; None if there is none, or the token is an alias."""
    word, following = g.peek(), g.peek(1)
    begins = {
        "PARTITION": following in ("(", *_VALUE),
        "CONSUMER": following == "GROUP" and g.peek(2) != "BY",
        "AFTER": following in _VALUE,
        "ENVELOPE": following in ("JSON", "CHANGES"),
        "COMMIT": True,
        "WAIT": following in _VALUE,
        "WITH": following == "DELIVERIES",
    }.get(word, False)
    return word if begins else None


def _skip_name(g: Grammar) -> bool:
    """Move past a qualified name; False if there is none."""
    if not g.is_name_ahead():
        return False
    g.index += 1
    while g.peek() == "." and g.index + 1 < len(g.tokens) and g.tokens[g.index + 1].is_name:
        g.index += 2
    return True


def _has_cte(tokens: Sequence[Token], word: str) -> bool:
    """True if the text has a common table expression of that name, anywhere."""
    for index, token in enumerate(tokens):
        if index == 0 or not token.is_name or token.name.upper() != word:
            continue
        if tokens[index - 1].kind not in ("WITH", "RECURSIVE", ","):
            continue
        following = index + 1
        if following < len(tokens) and tokens[following].kind == "(":
            depth = tokens[following].depth
            following = next(
                (i + 1 for i in range(following + 1, len(tokens)) if tokens[i].depth == depth), len(tokens)
            )
        if following < len(tokens) and tokens[following].kind in ("AS", "USING"):
            return True
    return False


def openings(tokens: Sequence[Token], text: str, is_table: IsTable) -> Iterator[int]:
    """The indexes of the tokens that begin a scan, in order."""
    for index, token in enumerate(tokens):
        if token.kind not in _OPENINGS or not _stands_in_from(tokens, index):
            continue
        g = Grammar(text, tokens, index + 1)
        if not _skip_name(g) or g.peek() == "(":
            continue
        shadowed = is_table(fold(token.kind)) or _has_cte(tokens, token.kind)
        if not shadowed or _clause_ahead(g) is not None:
            yield index


def may_open(tokens: Sequence[Token]) -> bool:
    """True if these tokens may contain a scan, for any set of tables."""
    for index, token in enumerate(tokens):
        if token.kind in _OPENINGS and index + 1 < len(tokens) and _stands_in_from(tokens, index):
            return True
    return False


def find_scans(tokens: Sequence[Token], text: str, is_table: IsTable) -> tuple[Scan, ...]:
    """All stream scans of a text, in its order.

    Raises:
        SyntaxError_: a scan's clause is malformed.
        InvalidParameterValue: a value is out of bounds.
        InvalidTextRepresentation: a map of LSNs is malformed.
    """
    return tuple(parse_scan(Grammar(text, tokens, index)) for index in openings(tokens, text, is_table))


def parse_scan(g: Grammar) -> Scan:
    """{ STREAM | TOPIC } s [clauses] [[AS] alias [(column, ...)]]"""
    start, prefix = _prefix_alias(g)
    opening = g.take()
    stream = g.full_name("the name of a stream")
    clauses = _ScanClauses(g)
    while (word := _clause_ahead(g)) is not None:
        clauses.take(word)
    clauses.check_commit()
    clauses.check_deliveries()
    position = g.position
    alias, columns = _alias(g)
    if alias is not None and prefix is not None:
        raise SyntaxError_("a stream scan cannot have two aliases", position=position)
    return Scan(
        stream,
        start,
        g.tokens[g.index - 1].end,
        clauses.partitions,
        clauses.group,
        clauses.member,
        clauses.after,
        clauses.envelope or "json",
        clauses.wait,
        clauses.wait_for,
        opening.kind == "TOPIC",
        alias if prefix is None else prefix,
        columns,
        commits=clauses.commit is not None,
        deliveries=clauses.deliveries is not None,
    )


def _prefix_alias(g: Grammar) -> tuple[int, str | None]:
    """The start of the scan, and DuckDB's alias in front of it (`x: STREAM s`), which belongs to it."""
    if g.index >= 2 and g.tokens[g.index - 1].kind == ":":
        alias = g.tokens[g.index - 2]
        return alias.start, alias.name
    return g.tokens[g.index].start, None


class _ScanClauses:
    """The clauses of a scan, in any order, each once."""

    def __init__(self, g: Grammar) -> None:
        self.g = g
        self.partitions: tuple[Number, ...] | None = None
        self.group: Text | None = None
        self.member: Text | None = None
        self.after: Scalar | None = None
        self.envelope: str | None = None
        self.commit: int | None = None  # Position of the word.
        self.wait: Text | None = None
        self.wait_for: Number | None = None
        self.deliveries: int | None = None  # Position of the word.

    def take(self, word: str) -> None:
        """Read the clause that begins with the next token."""
        rules = {
            "PARTITION": ("partitions", self._partition),
            "CONSUMER": ("group", self._group),
            "AFTER": ("after", self._after),
            "ENVELOPE": ("envelope", self._envelope),
            "COMMIT": ("commit", self._commit),
            "WAIT": ("wait", self._wait),
            "WITH": ("deliveries", self._deliveries),
        }
        field, rule = rules[word]
        self.g.index += 1
        names = {"CONSUMER": "CONSUMER GROUP", "WITH": "WITH DELIVERIES"}
        self.g.none_twice(names.get(word, word), getattr(self, field))
        rule()

    def _partition(self) -> None:
        if self.g.peek() == "(":
            position = self.g.position
            self.partitions = self.g.bracketed(self.g.partition)
            if len(self.partitions) > _PARTITIONS_LISTED_MAX:
                raise InvalidParameterValue("too many partitions are listed", position=position)
        else:
            self.partitions = (self.g.partition(),)

    def _group(self) -> None:
        self.g.expect("GROUP")
        self.group = self.g.text_or_name(GROUP)
        # A member's name may be an identifier here, because nothing else is possible; but an alias called
        # member is also accepted: `CONSUMER GROUP g member WHERE ...`.
        if self.g.peek() == "MEMBER" and (self.g.peek(1) in (STRING, PARAMETER) or self._named_member()):
            self.g.index += 1
            self.member = self.g.text_or_name("member")

    def _named_member(self) -> bool:
        return self.g.is_name_ahead(1) and self.g.peek(1) not in _CLAUSES

    def _after(self) -> None:
        self.after = self.g.lsn_or_positions("AFTER")

    def _envelope(self) -> None:
        self.envelope = fold(self.g.take().kind)

    def _commit(self) -> None:
        self.commit = self.g.tokens[self.g.index - 1].start + 1

    def _deliveries(self) -> None:
        self.deliveries = self.g.tokens[self.g.index - 1].start + 1
        self.g.expect("DELIVERIES")

    def check_deliveries(self) -> None:
        """Refuse WITH DELIVERIES in ENVELOPE CHANGES, whose columns are the table's."""
        if self.deliveries is not None and self.envelope == "changes":
            raise NotSupported(
                "WITH DELIVERIES is not supported with ENVELOPE CHANGES",
                hint="ducktail.delivery_counts has the counts of all events that are not committed.",
                position=self.deliveries,
            )

    def check_commit(self) -> None:
        """Refuse COMMIT without a consumer group, or together with AFTER."""
        if self.commit is None:
            return
        if self.group is None:
            raise SyntaxError_(
                'syntax error at or near "COMMIT"',
                hint="COMMIT wants CONSUMER GROUP g. As an alias it wants AS.",
                position=self.commit,
            )
        if self.after is not None:
            raise NotSupported(
                "COMMIT is not supported with AFTER",
                detail="A read with AFTER leaves no read position.",
                hint="Leave AFTER out: the group's next events are read.",
                position=self.commit,
            )

    def _wait(self) -> None:
        position = self.g.position
        if self.g.peek() in (NUMBER, "-"):
            raise InvalidParameterValue(
                f"WAIT takes an interval, not a number: {self.g.tokens[self.g.index].text}",
                hint="Give a unit, such as WAIT '5 s'.",
                position=position,
            )
        self.wait = self.g.string("an interval")
        if isinstance(self.wait, str):
            _check_interval(self.wait, position)
        if self.g.peek() == "::" and self.g.peek(1) == "INTERVAL":
            self.g.index += 2  # Drivers that put parameters into the text cast an interval.
        if self.g.peek() == "FOR" and self.g.peek(1) in _VALUE:
            self.g.index += 1
            self.wait_for = self.g.number("FOR", low=1)


def _check_interval(text: str, position: int) -> None:
    try:
        parse_interval_ms(text)
    except InvalidParameterValue as error:
        raise InvalidParameterValue(error.message, hint=error.hint, position=position) from None


def _alias(g: Grammar) -> tuple[str | None, tuple[str, ...]]:
    """[[AS] alias [(column, ...)]]; after AS any word may stand, and a string too, as in DuckDB."""
    if g.accept("AS"):
        token = g.word_ahead()
        if token is None or not (token.is_name or token.kind == STRING):
            raise g.expected("an alias")
        g.index += 1
        alias = token.value if token.kind == STRING else token.name
    elif g.is_name_ahead():
        word = g.take()
        alias = word.name
        _check_alias(g, word)
    else:
        return None, ()
    if g.peek() != "(":
        return alias, ()
    return alias, g.bracketed(lambda: g.simple_name("the name of a column"))


# The form of each clause, for the hint of a syntax error in it.
_TAKES = {
    "PARTITION": "PARTITION takes a number, (a list of them) or a parameter.",
    "CONSUMER": "Expected CONSUMER GROUP and a name.",
    "MEMBER": "MEMBER stands straight after CONSUMER GROUP g.",
    "AFTER": "AFTER takes an LSN, a map of LSNs such as '{\"0\": 17}' or a parameter.",
    "ENVELOPE": "ENVELOPE is JSON or CHANGES.",
    "WAIT": "WAIT takes an interval such as '5 s' or a parameter.",
}


def _check_alias(g: Grammar, alias: Token) -> None:
    """Refuse an alias without AS that is an incomplete clause of ducktail, or a misspelt word."""
    takes = _TAKES.get(alias.kind)
    if takes is not None:
        error = g.unexpected()
        hint = f"{takes} As an alias it wants AS."
        raise SyntaxError_(error.message, hint=hint, position=error.position)
    if g.is_name_ahead() or g.peek() in (NUMBER, STRING, PARAMETER):
        raise g.unexpected()


def render_scan(scan: Scan) -> str:
    """A scan without its alias."""
    partitions = scan.partitions or ()
    listed = ", ".join(scalar_sql(partition) for partition in partitions)
    return words(
        "TOPIC" if scan.topic else "STREAM",
        name_sql(scan.stream),
        when(bool(partitions), f"PARTITION {listed}" if len(partitions) == 1 else f"PARTITION ({listed})"),
        "" if scan.group is None else f"CONSUMER GROUP {named(scan.group)}",
        member_clause(scan.member),
        clause("AFTER", scan.after),
        when(scan.envelope != "json", f"ENVELOPE {scan.envelope.upper()}"),
        when(scan.deliveries, "WITH DELIVERIES"),
        when(scan.commits, "COMMIT"),
        clause("WAIT", scan.wait),
        clause("FOR", scan.wait_for),
    )
