"""A statement of the language as one row of a table: its words, its grammar, its text and its rules.

The files of this folder contain the rows, each beside its node class and its grammar function; `table.py`
combines the rows. The rest of `sql` reads from the row all facts about a statement before it runs: the
classifier reads the opening words, the parser the grammar, rights the `Right`, read-only transactions the
`Effect`, a cluster the `InCluster`. The function that runs a statement is in `sql/statements/`.
Source: docs/design/sql.md, "A statement is one row".
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..grammar import Grammar


@dataclass(frozen=True, slots=True)
class Statement:
    """The base of all node classes.

    A field that may be a parameter is a `Scalar`: an int, a str, or `Parameter(n)` for `$n`; the session
    replaces the parameter by its value when it runs the statement. Names keep their case, and the engine
    compares them without it. Positions are in characters of the statement's text: `position` counts from 1
    (as errors do, 0 is unknown), `start` and `end` from 0, half open. A `Name` in a field `stream`, `name` or
    `topic` is that of a stream or topic.
    """


class Right(enum.Enum):
    """The right that a user other than a superuser needs; `sql/rights/permission.py` has the rules."""

    SUPERUSER = "only superusers may run it"
    CHECKED_BY_RUNNER = "its runner looks names up for the session, or checks the right itself"
    CREATE_STREAM = "ownership of the tables, CREATE on the schema of the stream"
    CREATE_TOPIC = "CREATE on the schema of the topic"
    OWNER = "ownership of the stream or topic"
    CONSUME = "CONSUME on the stream or topic"
    CREATE_MIRROR = "CONSUME on the stream, CREATE on the schema of the table"
    CREATE_SINK = "CONSUME on the stream or topic, CREATE on the database"
    PUBLISH = "that of the INSERT as which it is run"


class Effect(enum.Enum):
    """The changes that a statement makes.

    A READ ONLY transaction allows statements that write nothing. A statement that only reads is sent to
    another node again after a broken connection, and is allowed there in a transaction block.
    """

    READS = "nothing"
    TRANSIENT = "nothing that is stored: members, notifications"
    WRITES = "the database"


class InCluster(enum.Enum):
    """The nodes on which a statement runs.

    A topic may have partitions on several nodes. If a statement names a topic, its runner asks the owners,
    except for `OWNERS`, where the common runner of SHOWs asks them.
    """

    ENTRY_NODE = "the node that receives it"
    OWNER = "the node that has the stream"
    OWNERS = "as OWNER; each owner of a topic shows its own partitions"
    ALL_NODES = "without the name of a stream all nodes, with a column `node`; else as OWNER"
    ENTRY_NODE_FOR_TOPICS = "for a topic the node that receives it, whoever owns it; else as OWNER"


@dataclass(frozen=True, slots=True)
class View:
    """The rows of a SHOW: columns of a system view, for the statement's stream and group.

    Args:
        name: the name of the view in schema `ducktail`.
        columns: names of its columns, separated by commas.
        where: a condition on its rows.
    """

    name: str
    columns: str
    where: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.columns.split(", ")


@dataclass(frozen=True)
class Row:
    """The facts about a statement that `sql` needs before it runs.

    Args:
        node: the node class of the parsed statement.
        words: the opening words; `[ ]` is optional, a comma separates alternatives. Several statements
            may have the same opening words, and then the same grammar.
        grammar: reads the text after the opening words; None if there is none.
        form: the help line of a syntax error without a hint of its own.
        sql: the statement as a text that parses to the same node; None: the opening words.
        view: the system view whose rows a SHOW returns without a runner of its own.
        tag: the command tag, if it is not the opening words.
        verb: its name in errors, if it is not the opening words.
        heading: its heading in docs/sql.md, if it is not the tag.
        needs_name: a name must follow the opening words, which are something else without one.
        behind_name: words that must follow that name; the opening words are another statement's without them.
    """

    node: type[Statement]
    words: str
    right: Right
    effect: Effect
    in_cluster: InCluster
    grammar: Callable[[Grammar], Statement] | None = None
    form: str = ""
    sql: Callable[[Any], str] | None = None
    view: View | None = None
    tag: str = ""
    verb: str = ""
    heading: str = ""
    needs_name: bool = False
    behind_name: str = ""

    def __post_init__(self) -> None:
        words = canonical(next(expansions(self.words)))
        self._default("form", words)
        self._default("tag", words.removesuffix(" ON").removesuffix(" FOR"))
        self._default("heading", self.tag)

    def _default(self, name: str, value: str) -> None:
        if not getattr(self, name):
            object.__setattr__(self, name, value)

    @cached_property
    def openings(self) -> dict[tuple[str, ...], str]:
        """Each spelling of the opening words, and the verb under which errors mention it."""
        return {words: self.verb or canonical(words) for words in expansions(self.words)}

    def parse(self, g: Grammar) -> Statement:
        """Read the statement after its opening words."""
        return self.node() if self.grammar is None else self.grammar(g)

    def render(self, statement: Statement) -> str:
        """A statement of this row as SQL."""
        return self.form if self.sql is None else self.sql(statement)


def has_behind_name(kinds: Sequence[str], words: str) -> bool:
    """True if the words follow the name with which the tokens begin, behind IF NOT EXISTS.

    >>> has_behind_name(["A", ".", "B", "MIRROR", "OF", "STREAM"], "MIRROR OF")
    True
    """
    at = 3 if tuple(kinds[:3]) == ("IF", "NOT", "EXISTS") else 0
    at += 1
    while kinds[at : at + 1] == ["."]:
        at += 2
    wanted = words.split()
    return list(kinds[at : at + len(wanted)]) == wanted


def expansions(pattern: str) -> Iterator[tuple[str, ...]]:
    """All word sequences of a pattern of opening words; that without its optional words comes first.

    >>> [" ".join(words) for words in expansions("SHOW [CHANGE] STREAMS, SHOW TOPICS")]
    ['SHOW STREAMS', 'SHOW CHANGE STREAMS', 'SHOW TOPICS']
    """
    for alternative in pattern.split(", "):
        parts = alternative.split()
        choices = [[(), (part[1:-1],)] if part.startswith("[") else [(part,)] for part in parts]
        for chosen in itertools.product(*choices):
            yield tuple(itertools.chain.from_iterable(chosen))


def canonical(words: tuple[str, ...]) -> str:
    """The opening without its optional words: CREATE OR REPLACE CHANGE STREAM is CREATE STREAM."""
    return " ".join(words).replace("CHANGE STREAM", "STREAM").replace(" OR REPLACE", "")
