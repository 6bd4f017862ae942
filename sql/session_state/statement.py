"""A statement that a session has parsed, to be described and executed any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...engine.errors import CachedPlanChanged, InvalidStatementName, UndefinedParameter
from ...engine.placement.placement import Node
from ...engine.quoting import fold
from ...engine.values.value_types import oid_without_users
from ..language.parse import Query
from ..language.statements.publishing import Published
from ..peers.requests import Part
from ..results.results import Result, ResultColumn
from ..text.classified import Classified, ExecuteFacts
from ..text.spans import Replacement
from .spelling import Spelling


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """The other node on which a statement runs.

    Args:
        streams: the names of its streams, as written.
        catalog: the version of this node's catalog, which lacks these streams.
    """

    node: Node
    streams: tuple[str, ...]
    catalog: int


# The key under which a statement keeps the columns of its answer, where they equal the description.
CHECKED = "checked"
# The key under which a small write keeps its form, if its values are literals (dml/literals.py).
FORM = "literals"


# The type of a parameter that its client declares as numeric: DuckDB has no numeric without a fixed scale.
NUMERIC = "DECIMAL(38,10)"


@dataclass(frozen=True, slots=True)
class Casts:
    """The casts of a described statement's parameters, which make its columns have the described types.

    A numeric keeps the digits that its client sends: such a value determines its own type, and no type of
    DuckDB holds all of them. Only values without digits (NULL, NaN) are cast.

    Args:
        always: parameter ("1", "2", ..) -> a type that holds every value which the client can send for it.
        numeric: the same for parameters that are numerics to the client.
    """

    always: Mapping[str, str]
    numeric: Mapping[str, str]

    def of(self, parameters: Sequence[object]) -> Mapping[str, str]:
        """Parameter -> the type that it is cast to in one execution; `always` itself if no other cast is
        needed."""
        untold = {
            name: type_
            for name, type_ in self.numeric.items()
            if int(name) <= len(parameters) and _is_untold(parameters[int(name) - 1])
        }
        return {**self.always, **untold} if untold else self.always


# Python values that do not determine a number of digits.
UNTOLD = (type(None), float)


def _is_untold(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_untold, value))
    return isinstance(value, UNTOLD)


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a statement for the client, before it runs.

    Args:
        parameter_types: DuckDB type text of `$1`, `$2`, ...
        columns: the columns of its rows; None if it returns no rows.
        casts: the casts of its parameters; None if there are none.
        types_shown: the parameters' types for a client of the wire, if one is a type of a user.
    """

    parameter_types: tuple[str, ...]
    columns: tuple[ResultColumn, ...] | None
    casts: Casts | None = None
    types_shown: tuple[str, ...] = ()


class ParsedStatement:
    """One statement's text, its class, and its parsed form.

    `parameter_types` and `columns` are computed at their first use, by DuckDB's binder: use them on a thread
    that may run DuckDB.

    Args:
        node: a statement of ducktail or a query with stream scans; None if DuckDB runs the text.
        parameter_types_given: DuckDB types that the client has declared; "" for an undeclared one.
        describe: computes the description.
        inline: running it now takes no DuckDB work.
        published: the parts of a PUBLISH beside its INSERT; `classified` is that INSERT.
        part: the facts of a share that another node has sent.
    """

    def __init__(
        self,
        classified: Classified,
        node: object,
        parameter_types_given: tuple[str, ...],
        describe: Callable[[ParsedStatement], Description],
        inline: Callable[[ParsedStatement], bool],
        published: Published | None = None,
        part: Part | None = None,
    ) -> None:
        self.classified = classified
        self.node = node
        self.parameter_types_given = parameter_types_given
        self._describe = describe
        self._inline = inline
        self.published = published
        self.part = part
        self.plans: dict[str, object] = {}  # kept by a runner between executions
        # True if its rows are sent as Arrow has them (engine/values/arrow_types.py), not as PostgreSQL does.
        self.arrow = False
        # The insertions into the given text that qualify its names (resolve.py).
        self.pieces: tuple[Replacement, ...] = ()
        # The OIDs of users' types with which its parameters are declared, 0 for others; none without one.
        self.user_oids: tuple[int, ...] = ()
        # The place of its streams, if they are on another node (cluster/relay.py).
        self.away: RemoteTarget | None = None
        # True if a name in it existed on no node: it may exist by the time of execution.
        self.lacks = False
        # The epoch of the placement by which it was located on this node or another.
        self.epoch = 0
        # True if another node describes its columns; its answer is taken as it is.
        self.told_there = False
        self._description: Description | None = None
        # The state of the catalog in which it was described; None for a state that will not occur again.
        self.described_in: object = None

    def declared(self, types: tuple[str, ...]) -> ParsedStatement:
        """The same statement with declared parameter types."""
        given = self._describe, self._inline, self.published, self.part
        made = ParsedStatement(self.classified, self.node, types, *given)
        made.away, made.lacks, made.epoch = self.away, self.lacks, self.epoch
        made.told_there, made.user_oids = self.told_there, self.user_oids
        return made

    def as_arrow(self) -> ParsedStatement:
        """The same query, with its rows as an Arrow stream."""
        made = self.declared(self.parameter_types_given)
        made.arrow = True
        return made

    def publishing(self) -> ParsedStatement:
        """The same INSERT into a topic, answered as the PUBLISH that it belongs to."""
        types, published = self.parameter_types_given, Published((), None, None)
        given = self._describe, self._inline, published, self.part
        return ParsedStatement(self.classified, self.node, types, *given)

    def tell(self, description: Description) -> None:
        """Set a description that was computed elsewhere."""
        self._description = description

    def forget(self) -> None:
        """Forget the description: a name in the text has another meaning now."""
        self.plans.clear()
        self._description = None

    def renew(self) -> None:
        """Describe the statement again, with the parameter types of the first description."""
        told = self.description
        given = (*self.parameter_types_given, *("" for _ in told.parameter_types))
        self.parameter_types_given = tuple(
            one or type_ for one, type_ in zip(given, told.parameter_types, strict=False)
        )
        self._description = None
        if self.description.columns == told.columns:
            # The identical tuple: values kept under it remain valid.
            self._description = replace(self.description, columns=told.columns)

    @property
    def text(self) -> str:
        """The user's text."""
        return self.classified.text

    @property
    def empty(self) -> bool:
        """True if it contains nothing but comments."""
        return not self.classified.tokens

    @property
    def varies(self) -> bool:
        """True if it is a small write whose values are literals: its client's next text is another one."""
        return self.plans.get(FORM) is not None

    @property
    def waits(self) -> bool:
        """True if it may have to wait for events before it begins."""
        return isinstance(self.node, Query) and any(scan.wait is not None for scan in self.node.scans)

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """DuckDB type text of each parameter."""
        return self.description.parameter_types

    @property
    def types_shown(self) -> tuple[str, ...]:
        """The type of each parameter for a client of the wire."""
        return self.description.types_shown or self.description.parameter_types

    @property
    def columns(self) -> tuple[ResultColumn, ...] | None:
        """The columns of its rows; None if it returns no rows."""
        return self.description.columns

    @property
    def described(self) -> tuple[ResultColumn, ...] | None:
        """The described columns; None if the client has not been given any."""
        return None if self._description is None else self._description.columns

    @property
    def is_described(self) -> bool:
        """True if its description has been computed; it then answers as described."""
        return self._description is not None

    @property
    def casts(self) -> Casts | None:
        """The casts of a described statement's parameters, so that it answers as described."""
        return None if self._description is None else self._description.casts

    @property
    def inline(self) -> bool:
        """True if running it now needs no DuckDB work, so that an event loop may do it itself.

        Its result says for itself whether fetching does (`Result.inline`).
        """
        return self._inline(self)

    @property
    def description(self) -> Description:
        """The description: parameter types and columns, computed once."""
        if self._description is None:
            self._description = self._describe(self)
        return self._description


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement prepared by PREPARE. It is never described: each EXECUTE has its own types.

    Args:
        statement: the statement, with parameters $1, $2 and so on.
        count: the highest parameter number.
        names: the folded names of named parameters, in the order of their numbers.
        types: the types in PREPARE, of the first parameters.
        spelling: the statement as its client sent it.
        text: the PREPARE.
        made_us: time of creation, in microseconds since 1970.
    """

    statement: ParsedStatement
    count: int
    names: tuple[str, ...]
    types: tuple[str, ...]
    spelling: Spelling
    text: str
    made_us: int

    def arguments(self, facts: ExecuteFacts) -> list[str]:
        """The expressions of an EXECUTE's arguments, in the order of the parameters.

        Raises:
            UndefinedParameter: the arguments do not match the parameters.
        """
        given: dict[int, str] = {}
        for place, (name, expression) in enumerate(facts.arguments, 1):
            number = place
            if name is not None or self.names:
                if name is None or fold(name) not in self.names:
                    said = f'"{name}"' if name is not None else f"{place} without a name"
                    raise UndefinedParameter(
                        f'prepared statement "{facts.name}" has no parameter {said}',
                        detail=f"Its parameters are {', '.join(self.names) or 'known by their places'}.",
                    )
                number = self.names.index(fold(name)) + 1
            given[number] = expression
        if len(facts.arguments) != self.count or len(given) != self.count:
            raise UndefinedParameter(
                f'wrong number of parameters for prepared statement "{facts.name}"',
                detail=f"Expected {self.count} parameters but got {len(facts.arguments)}.",
            )
        types = (*self.types, *("" for _ in range(self.count)))
        ordered = zip((given[number] for number in sorted(given)), types, strict=False)
        return [f"({expression})::{type_}" if type_ else f"({expression})" for expression, type_ in ordered]


def find_prepared(prepared: Mapping[str, PreparedStatement], facts: ExecuteFacts) -> PreparedStatement:
    """The prepared statement that an EXECUTE names.

    Raises:
        InvalidStatementName: no prepared statement has this name.
    """
    found = prepared.get(facts.name)
    if found is None:
        raise InvalidStatementName(f'prepared statement "{facts.name}" does not exist')
    return found


def check_described(statement: ParsedStatement, result: Result) -> None:
    """Check that a result has the columns that its client knows from the description.

    Only types are compared: an expression's name depends on the text around it, and renamed columns appear in
    the next description.

    Raises:
        CachedPlanChanged: the types differ.
    """
    try:
        check_columns(statement, result.columns)
    except CachedPlanChanged:
        result.close()
        raise


def check_columns(statement: ParsedStatement, columns: Sequence[ResultColumn] | None) -> None:
    """Check described columns against new ones, before there is a result.

    Raises:
        CachedPlanChanged: the types differ.
    """
    if statement.described is None or columns is statement.plans.get(CHECKED):
        return
    # Only described columns have the types of users by name (pipeline/user_types.py).
    told, given = (
        None if found is None else [oid_without_users(column.type) for column in found]
        for found in (statement.described, columns)
    )
    if told != given:
        raise CachedPlanChanged
    # The identical tuple, not an equal one: this comparison is fast.
    statement.plans[CHECKED] = columns
