"""The parsed statements of a session, kept by their texts, because drivers repeat them.

Before a statement is prepared the other nodes of a cluster may have to be asked for a name, or for the
columns of their scans. Source: docs/design/sql.md, "Session".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...engine.duck.cursors import ask_maybe
from ...engine.duck.objects import TABLE
from ...engine.errors import UndefinedObject, WrongState
from ...engine.quoting import fold, folded_sql
from ...engine.values.value_types import USER_OID_FIRST
from ...engine.waiting import Wait, Waiting
from ..cluster import relay, routing
from ..dml import topic_writes
from ..dml.batch_insert import Many, text_of_many, widest
from ..language.parse import Query
from ..peer_requests import serving
from ..peers.remote import still_missing
from ..session_state.context import Context
from ..session_state.statement import ParsedStatement
from .calls import Calls
from .description import NAMING
from .parsing import prepare

# Bounds of the parsed statements in a session. A parsed statement takes some fifty bytes for each character
# of its text: all together have a bound, and very long texts are not kept.
STATEMENTS_KEPT = 256
KEPT_CHARS_ALL = 256 * 1024
KEPT_TEXT_CHARS_MAX = 24 * 1024  # A catalog query with its relations has up to 22 thousand.
# The maximum number of questions to other nodes for one statement: one for all names, and some for the
# columns of scans in ENVELOPE CHANGES.
ASKED_MAX = 34
# The key under which a statement keeps its form for many executions.
MANY = "many"


class ParsedStatements:
    """The cache of one session's parsed statements."""

    def __init__(self, session: Context, calls: Calls) -> None:
        self._session = session
        self._calls = calls
        self._kept: dict[tuple[object, ...], ParsedStatement] = {}
        # The total number of characters of the texts.
        self._kept_chars = 0

    def parse(self, text: str, oids: Sequence[int] = (), *, told: bool = True) -> Waiting[ParsedStatement]:
        """Parse a statement; see `session.Session.parse`."""
        fresh = not self._session.guard.running
        if fresh:
            yield from self._session.database.standing()
        found = yield from self._parsed(text, oids, fresh)
        if found.away is None or not found.told_there:
            return found
        # It is kept without its owner's description, which may change.
        found = found.declared(found.parameter_types_given)
        if told:
            found.tell((yield from self._calls.prepare(text, partial(relay.describe, self._session, found))))
        return found

    def _parsed(self, text: str, oids: Sequence[int], fresh: bool) -> Waiting[ParsedStatement]:
        """Return a statement from the cache, or parse and keep it.

        Args:
            fresh: a client has sent it; False for a repeated look at a statement.
        """
        key = self._key(text, oids)
        found = self._drop(key)
        if found is not None and fresh and found.away is None and found.told_there:
            found = None  # The columns of its fetched scans may have changed.
        if found is None or self._session.block.ddl:
            found = yield from self._prepared(text, tuple(oids))
            passing = self._session.block.ddl or found.lacks or found.classified.kind in NAMING
            if passing or len(text) > KEPT_TEXT_CHARS_MAX:
                # Names may change: this transaction's changes may be rolled back, a name on no node may be
                # created, and a cursor or prepared statement may be created again.
                return found
        self._keep(key, found)
        return found

    def _keep(self, key: tuple[object, ...], statement: ParsedStatement) -> None:
        """Keep a statement as the latest one, and drop the oldest ones beyond the bounds."""
        kept, size = self._kept, len(statement.text)
        while kept and (len(kept) >= STATEMENTS_KEPT or self._kept_chars + size > KEPT_CHARS_ALL):
            self._drop(next(iter(kept)))
        kept[key] = statement
        self._kept_chars += size

    def _drop(self, key: tuple[object, ...]) -> ParsedStatement | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept_chars -= len(found.text)
        return found

    def _key(self, text: str, oids: Sequence[int]) -> tuple[object, ...]:
        """The key under which a statement is kept."""
        database = self._session.database
        # A type of a user may be dropped, and created again with other labels.
        types = database.catalog.changes.stable if max(oids, default=0) >= USER_OID_FIRST else None
        return text, tuple(oids), types, database.catalog.version, self._known

    @property
    def _known(self) -> tuple[object, ...]:
        """The state of cached statements: the meaning of `/`, directory, placement, search path."""
        session = self._session
        division, links = session.variables.integer_division, session.links
        if links is None:
            return (division,)
        return division, links.remote.version, session.database.cluster.placement.epoch, session.names.path

    def _prepared(self, text: str, oids: tuple[int, ...]) -> Waiting[ParsedStatement]:
        """Prepare a new statement; the other nodes may have to be asked first.

        The wait for them is in a call: it can be cancelled, and counts towards the statement's time-out.
        """
        try:
            with self._session.looking():
                statement = prepare(self._session, text, oids)
        except (routing.Ask, routing.Describe) as missing:
            after = partial(self._prepared_after, text, oids, missing)
            statement = yield from self._calls.prepare(text, after)
        statement.told_there = relay.is_told_there(statement)
        return statement

    def _prepared_after(
        self, text: str, oids: tuple[int, ...], missing: routing.Ask | routing.Describe
    ) -> Waiting[ParsedStatement]:
        """Prepare the statement again, once the other nodes have been asked for missing names."""
        session, links, cluster = self._session, self._session.links, self._session.database.cluster
        assert links is not None, "who asks has links"
        try:
            learned = False
            for _ in range(ASKED_MAX):
                if session.learn is not None and cluster.lacks and not learned:
                    # It may be a topic, which is on every node, but not here yet.
                    yield Wait(learning := session.learn())
                    learning.result()
                    learned = True
                elif isinstance(missing, routing.Ask):
                    found = yield from links.look_up(missing.keys)
                    if not found and session.learn is not None and cluster.lacks:
                        if not learned:
                            continue  # A node has answered that it is one.
                        told = UndefinedObject(f'"{".".join(min(missing.keys))}" does not exist')
                        raise still_missing(cluster, told)
                    links.absent |= missing.keys - found.keys()
                else:
                    columns = yield from relay.columns_of(session, missing.node, missing.text)
                    links.described[missing.node.name, missing.text] = columns
                try:
                    with session.looking():
                        statement = prepare(session, text, oids)
                except (routing.Ask, routing.Describe) as more:
                    missing = more
                else:
                    statement.lacks = bool(links.absent)
                    return statement
            raise WrongState("the streams of the statement are being moved", hint="Try it again.")
        finally:
            links.absent = frozenset()
            links.described.clear()

    def sent_inline(self, parameters: Sequence[object]) -> bool:
        """True if a forwarded statement needs no DuckDB work: it is cached here, and inline."""
        session, request = self._session, serving.ready_request(parameters)
        busy = session.cursors.has_open_result or session.guard.running
        if request is None or busy or session.access.limited:
            return False
        known = self._kept.get(self._key(request.text, serving.oids_of(request)))
        if known is None or known.away is not None or not known.inline:
            return False
        # Only reads among the shares: writes of a share have another path.
        return known.part is None or isinstance(known.node, Query)

    def many(self, statement: ParsedStatement) -> Waiting[Many | None]:
        """The statement that runs many executions of this one at once; None if there is none."""
        if statement.away is not None:
            return None
        if MANY not in statement.plans:
            if topic_writes.target(self._session, statement.classified) is None:
                plain = yield from self.parse(statement.text)
            else:
                plain = statement.declared(widest(statement.parameter_types))
            text = None if self._refers_to_itself(plain) else text_of_many(plain)
            types = plain.parameter_types if text is not None else ()
            many = None
            if text is not None:
                found = yield from self.parse(text)
                many = Many(found if statement.published is None else found.publishing(), types)
            statement.plans[MANY] = many
        kept = statement.plans[MANY]
        return kept if isinstance(kept, Many) else None

    def _refers_to_itself(self, statement: ParsedStatement) -> bool:
        """True if it writes a table with a foreign key to itself.

        DuckDB finds the key of a row that the same statement inserts in none of its other rows.
        """
        facts = statement.classified.dml
        table = facts and self._session.names.find(TABLE, facts.target)
        if not table or "FOREIGN KEY" not in table.definition:
            return False
        sql = (
            "SELECT 1 FROM system.main.duckdb_constraints() WHERE database_name = $1 AND schema_name = $2 "
            "AND table_name = $3 AND constraint_type = 'FOREIGN KEY' "
            f"AND {folded_sql('referenced_table')} = $4 LIMIT 1"
        )
        given = [table.catalog, table.schema, table.name, fold(table.name)]
        return ask_maybe(self._session.names.cursor(), sql, given) is not None

    def forget(self) -> None:
        """Forget texts that may contain a name whose meaning has changed."""
        prepared = (found.statement for found in self._session.prepared.values())
        for statement in (*self._kept.values(), *prepared):
            statement.forget()
        self._kept.clear()
        self._kept_chars = 0
