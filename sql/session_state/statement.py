"""A statement that a session has parsed, to be described and executed any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...engine.errors import CachedPlanChanged, InvalidStatementName, UndefinedParameter
from ...engine.placement.placement import Node
from ...engine.quoting import fold
from ...engine.values.value_types import pg_type
from ..language.parse import Query
from ..language.statements.publishing import Published
from ..peers.requests import Part
from ..results.results import Result, ResultColumn
from ..text.classified import Classified, ExecuteFacts
from ..text.spans import Replacement


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """The other node on which a statement runs.

    Args:
        streams: those that it names, as they are written.
        catalog: the version of this node's catalog that does not have them.
    """

    node: Node
    streams: tuple[str, ...]
    catalog: int


# Under which a statement keeps the columns that it has answered as it was described.
CHECKED = "checked"


# What a parameter is that its client declares as numeric: DuckDB has no numeric without digits.
NUMERIC = "DECIMAL(38,10)"


@dataclass(frozen=True, slots=True)
class Casts:
    """The casts of a described statement's parameters, which give its columns the described types.

    A numeric keeps the digits that its client gives it: such a value tells its own type, and DuckDB has no
    type that all of them fit. Only what tells none (NULL, NaN) is cast.

    Args:
        always: parameter ("1", "2", ..) -> a type that has every value which the client can send for it.
        numeric: the same of those that are numerics to the client.
    """

    always: Mapping[str, str]
    numeric: Mapping[str, str]

    def of(self, parameters: Sequence[object]) -> Mapping[str, str]:
        """Parameter -> the type that it is cast to in one execution; `always` itself where that is all."""
        untold = {
            name: type_
            for name, type_ in self.numeric.items()
            if int(name) <= len(parameters) and isinstance(parameters[int(name) - 1], UNTOLD)
        }
        return {**self.always, **untold} if untold else self.always


# What Python has for values that do not tell how many digits they have.
UNTOLD = (type(None), float)


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a statement for the client, before it runs.

    Args:
        parameter_types: DuckDB type text of `$1`, `$2`, ...
        columns: of its rows; None where it answers none.
        casts: what its parameters are cast to; None where nothing is.
    """

    parameter_types: tuple[str, ...]
    columns: tuple[ResultColumn, ...] | None
    casts: Casts | None = None


class ParsedStatement:
    """One statement's text, its class, and its parsed form.

    `parameter_types` and `columns` are worked out when they are first asked for, and ask DuckDB's
    binder: ask on a thread that may run DuckDB.

    Args:
        node: our own statement or a query with stream scans; None where DuckDB gets the text.
        parameter_types_given: DuckDB types that the client has declared; "" where it left one open.
        describe: works the description out.
        inline: whether running it now takes no DuckDB work.
        published: what a PUBLISH has beside its INSERT, which is what `classified` is of.
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
        self.plans: dict[str, object] = {}  # what a runner keeps between executions
        # Whether its rows go out as Arrow has them (engine/values/arrow_types.py), not as PostgreSQL does.
        self.arrow = False
        # What was put into the text as it was given, to write its names in full (resolve.py).
        self.pieces: tuple[Replacement, ...] = ()
        # Where its streams are, if they are on another node (cluster/relay.py).
        self.away: RemoteTarget | None = None
        # Whether a name in it was on no node: one may have it by the time that it runs.
        self.lacks = False
        # The epoch of the placement by which it is here, or there.
        self.epoch = 0
        # Whether another node says what its columns are: what that has told holds as it is told.
        self.told_there = False
        self._description: Description | None = None
        # Of which state of the catalog the description is; None: of one that will not be again.
        self.described_in: object = None

    def declared(self, types: tuple[str, ...]) -> ParsedStatement:
        """The same statement with parameter types that were declared."""
        given = self._describe, self._inline, self.published, self.part
        made = ParsedStatement(self.classified, self.node, types, *given)
        made.away, made.lacks, made.epoch = self.away, self.lacks, self.epoch
        made.told_there = self.told_there
        return made

    def as_arrow(self) -> ParsedStatement:
        """The same query, whose rows go out as an Arrow stream."""
        made = self.declared(self.parameter_types_given)
        made.arrow = True
        return made

    def publishing(self) -> ParsedStatement:
        """The same INSERT into a topic, answered as the PUBLISH that it is of."""
        types, published = self.parameter_types_given, Published((), None, None)
        given = self._describe, self._inline, published, self.part
        return ParsedStatement(self.classified, self.node, types, *given)

    def tell(self, description: Description) -> None:
        """Set the description, worked out elsewhere."""
        self._description = description

    def forget(self) -> None:
        """Forget the description: a name in the text has another meaning now."""
        self.plans.clear()
        self._description = None

    def renew(self) -> None:
        """Describe it again, with the types of its parameters as they were told."""
        told = self.description
        given = (*self.parameter_types_given, *("" for _ in told.parameter_types))
        self.parameter_types_given = tuple(
            one or type_ for one, type_ in zip(given, told.parameter_types, strict=False)
        )
        self._description = None
        if self.description.columns == told.columns:
            # The very same ones: what is kept by them stays.
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
    def waits(self) -> bool:
        """True if it may have to wait for events before it begins."""
        return isinstance(self.node, Query) and any(scan.wait is not None for scan in self.node.scans)

    @property
    def parameter_types(self) -> tuple[str, ...]:
        """DuckDB type text of each parameter."""
        return self.description.parameter_types

    @property
    def columns(self) -> tuple[ResultColumn, ...] | None:
        """Of its rows; None where it answers none."""
        return self.description.columns

    @property
    def described(self) -> tuple[ResultColumn, ...] | None:
        """The described columns; None if the client has not been given any."""
        return None if self._description is None else self._description.columns

    @property
    def is_described(self) -> bool:
        """True if its description has been worked out; it then answers as described."""
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
        """Both, worked out once."""
        if self._description is None:
            self._description = self._describe(self)
        return self._description


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement prepared by PREPARE. It is never described: each EXECUTE has types of its own.

    Args:
        statement: its parameters are $1, $2 and so on.
        count: the highest number of them.
        names: of the parameters, folded and by their numbers, where they have names.
        types: as PREPARE says them, of the first ones.
    """

    statement: ParsedStatement
    count: int
    names: tuple[str, ...]
    types: tuple[str, ...]

    def arguments(self, facts: ExecuteFacts) -> list[str]:
        """The expressions of an EXECUTE's arguments, in the order of the parameters.

        Raises:
            UndefinedParameter: it has others.
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
        InvalidStatementName: there is none.
    """
    found = prepared.get(facts.name)
    if found is None:
        raise InvalidStatementName(f'prepared statement "{facts.name}" does not exist')
    return found


def check_described(statement: ParsedStatement, result: Result) -> None:
    """A client that has described a statement knows its columns: they may not become others.

    Their types are compared. What an expression is called hangs on the text around it; renamed columns are
    seen when the statement is described again.

    Raises:
        CachedPlanChanged.
    """
    try:
        check_columns(statement, result.columns)
    except CachedPlanChanged:
        result.close()
        raise


def check_columns(statement: ParsedStatement, columns: Sequence[ResultColumn] | None) -> None:
    """The same, before there is a result.

    Raises:
        CachedPlanChanged.
    """
    if statement.described is None or columns is statement.plans.get(CHECKED):
        return
    told, given = (
        None if found is None else [pg_type(column.type).oid for column in found]
        for found in (statement.described, columns)
    )
    if told != given:
        raise CachedPlanChanged
    # The same columns, not those that are like them: that is told at once.
    statement.plans[CHECKED] = columns
