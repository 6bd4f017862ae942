"""The audit of a database: its logs, commits and catalog must agree. Read only.

At every open it runs a few aggregates, answered from zone maps if possible; the exact place is searched only
if a sum does not match. `ducktail check` also reads every row. The findings are:

- a hole in `commits` (numbers and LSNs are dense within an incarnation);
- a log that is missing, cannot be read, or has rows of no known commit;
- LSNs of `commits` that are in no log, and LSNs that logs have more than once or that `commits` does not
  have: sets are compared, so that the two kinds do not cancel out. LSNs below `complete_from` cannot be
  checked: retention has shortened some log there, or a dropped stream's log was deleted. Rows deleted by
  compaction are counted range by range (`deleted_ranges.py`); within such a range no place can be named.

Source: docs/design/engine.md, "Checks".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from ..catalog.captured_tables import Captured, Source
from ..catalog.catalog import Catalog
from ..catalog.streams import Stream
from ..duck.cursors import ask
from ..duck.duckdb_errors import translated
from ..errors import DataCorrupted
from ..log.deleted_ranges import Range, read_edges, read_ranges
from ..quoting import ident, literal
from ..schema import SCHEMA
from .incarnation import BITS

# Most places of one kind of damage that are named; each is a range of LSNs.
PLACES_MAX = 10
NO_TABLE = "a stream is on a table that ducktail.table_catalog has not"
WITHOUT_TABLE = (
    f"SELECT count(*) FROM (SELECT stream_id, table_id FROM {SCHEMA}.stream_catalog "
    f"WHERE operations <> ['publish'] AND stream_id NOT IN (SELECT stream_id FROM {SCHEMA}.stream_tables) "
    f"UNION ALL SELECT stream_id, table_id FROM {SCHEMA}.stream_tables) "
    f"WHERE table_id NOT IN (SELECT table_id FROM {SCHEMA}.table_catalog)"
)
# Numbers are compared as sets: one bit each, in strings of this length. Longer strings would take more memory
# for few numbers in a wide range, shorter ones more time.
SET_BITS = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """An inconsistency.

    Args:
        text: its description, a sentence without a full stop.
        tables: ids of the captured tables whose events are affected.
        readable_through: the last LSN before the damage; None if none of their events can be read.
    """

    text: str
    tables: frozenset[int]
    readable_through: int | None = None

    def error(self, stream: Stream) -> DataCorrupted:
        """The error for reads of an affected stream."""
        if self.readable_through is None or self.readable_through <= stream.created_lsn:
            readable = "None of its events can be relied on."
        else:
            first, last = stream.created_lsn + 1, self.readable_through
            readable = f"Its events with LSN {first} to {last} are complete."
        return DataCorrupted(
            f'stream "{stream.name}" is damaged',
            detail=f"{self.text[0].upper()}{self.text[1:]}. {readable}",
            hint="Restore a backup, or open it with --accept-loss: it is served without what is lost.",
        )


def audit(cursor: duckdb.DuckDBPyConnection, catalog: Catalog) -> list[Finding]:
    """The findings of an opening; empty for an undamaged database.

    Raises:
        duckdb.Error: the engine's own tables are unreadable.
    """
    tables = {source.table_id: source for source in catalog.sources}
    findings: list[Finding] = []
    logs: dict[str, int] = {}
    for table_id, source in tables.items():
        damage = _unreadable(cursor, source)
        if damage is None:
            logs.update(dict.fromkeys(source.logs, table_id))
        else:
            findings.append(damage)
    findings += _commits(cursor, frozenset(tables))
    findings += _unknown_rows(cursor, logs)
    findings += _beyond_versions(cursor, [s for s in tables.values() if s.log in logs])
    if not findings:
        findings += _missing_rows(cursor, tables, logs)
    findings += _orphans(cursor, frozenset(tables))
    return findings


def read_everything(cursor: duckdb.DuckDBPyConnection, catalog_name: str) -> list[Finding]:
    """Read every row of every table, so that DuckDB verifies each block's checksum."""
    findings = []
    tables = cursor.execute(
        "SELECT schema_name, table_name FROM system.main.duckdb_tables() "
        "WHERE database_name = $1 AND NOT temporary",
        [catalog_name],
    ).fetchall()
    for schema_name, table_name in tables:
        name = f"{ident(schema_name)}.{ident(table_name)}"
        try:
            cursor.execute(f"SELECT bit_xor(hash(r)) FROM {name} AS r").fetchall()
        except duckdb.Error as error:
            findings.append(Finding(f"table {name} cannot be read: {translated(error).message}", frozenset()))
    return findings


def complete_from(cursor: duckdb.DuckDBPyConnection, sources: Iterable[Source]) -> int:
    """The LSN after which every committed event must be in a log."""
    least = max(_fact(cursor, "dropped"), _fact(cursor, "accepted"))
    for source in sources:
        edges = [read_edges(cursor, stream.stream_id).through_lsn for stream in source.streams]
        if any(edges):
            starts = [max(e, s.created_lsn) for e, s in zip(edges, source.streams, strict=True)]
            least = max(least, min(starts))
    return least


def _unreadable(cursor: duckdb.DuckDBPyConnection, source: Source) -> Finding | None:
    try:
        for log in source.logs:
            cursor.execute(f"SELECT * FROM {log} LIMIT 0").fetchall()
            cursor.execute(f"SELECT min(lsn), max(lsn), count(*) FROM {log}").fetchall()
    except duckdb.Error as error:
        text = f"the log of {source.shown_name} cannot be read: {translated(error).message}"
        return Finding(text, frozenset({source.table_id}))
    return None


def _commits(cursor: duckdb.DuckDBPyConnection, tables: frozenset[int]) -> list[Finding]:
    """Holes in the chain of commits, by incarnation, except those of accepted losses."""
    accepted = _fact(cursor, "accepted")
    known = f"FROM {SCHEMA}.commits WHERE first_lsn > {accepted}"
    rows = cursor.execute(
        f"SELECT (first_lsn - 1) >> {BITS}, count(*), max(txid) - min(txid) + 1, "
        f"sum(last_lsn - first_lsn + 1)::BIGINT, max(last_lsn) - min(first_lsn) + 1 {known} GROUP BY 1"
    ).fetchall()
    if (
        all(count == txids and lsns == wide for _, count, txids, lsns, wide in rows)
        and _is_set(cursor, f"SELECT txid AS n {known}")
        and _is_set(cursor, f"SELECT first_lsn AS n {known} AND last_lsn >= first_lsn")
    ):
        return []
    holes = cursor.execute(
        "SELECT txid_before, txid, lsn_before, first_lsn FROM (SELECT txid, first_lsn, "
        f"(first_lsn - 1) >> {BITS} AS incarnation, "
        "lag(txid) OVER w AS txid_before, lag(last_lsn) OVER w AS lsn_before, "
        f"lag((first_lsn - 1) >> {BITS}) OVER w AS incarnation_before "
        f"FROM {SCHEMA}.commits WHERE first_lsn > {accepted} WINDOW w AS (ORDER BY txid)) "
        "WHERE incarnation_before = incarnation AND (txid <> txid_before + 1 OR first_lsn <> lsn_before + 1) "
        f"ORDER BY txid LIMIT {PLACES_MAX}"
    ).fetchall()
    if not holes:
        return [Finding("the numbers in ducktail.commits do not add up", tables)]
    return [
        Finding(
            f"ducktail.commits goes from transaction {before} (last LSN {lsn}) "
            f"to {after} (first LSN {first})",
            tables,
            lsn,
        )
        for before, after, lsn, first in holes
    ]


def _unknown_rows(cursor: duckdb.DuckDBPyConnection, logs: Mapping[str, int]) -> list[Finding]:
    """Log rows behind the last commit, which no commit has recorded."""
    (last_lsn,) = ask(cursor, f"SELECT coalesce(max(last_lsn), 0) FROM {SCHEMA}.commits")
    findings = []
    for log, table_id in logs.items():
        (lsn,) = ask(cursor, f"SELECT coalesce(max(lsn), 0) FROM {log}")
        if lsn > last_lsn:
            text = f"{log} has LSN {lsn}, and the last commit ends with {last_lsn}"
            findings.append(Finding(text, frozenset({table_id}), last_lsn))
    return findings


def _beyond_versions(cursor: duckdb.DuckDBPyConnection, sources: Iterable[Source]) -> list[Finding]:
    """Rows of a log outside the range of LSNs of its version of the table."""
    findings = []
    for source in sources:
        if not isinstance(source, Captured) or source.version == 1:
            continue
        ends = [*(version.first_lsn - 1 for version in source.versions[1:]), None]
        for version, end in zip(source.versions, ends, strict=True):
            log = version.table.log
            low, high = ask(cursor, f"SELECT min(lsn), max(lsn) FROM {log}")
            if low is not None and (low < version.first_lsn or (end is not None and high > end)):
                text = f"{log} has LSN {low} to {high}, which are not all of version {version.version}"
                findings.append(Finding(text, frozenset({source.table_id}), low - 1))
    return findings


def _missing_rows(
    cursor: duckdb.DuckDBPyConnection, tables: Mapping[int, Source], logs: Mapping[str, int]
) -> list[Finding]:
    """LSNs that a commit has and no log."""
    (unserved,) = ask(
        cursor,
        f"SELECT count(*) FROM {SCHEMA}.table_catalog WHERE table_id NOT IN ({_list(tables) or -1})",
    )
    if unserved:
        return []  # The rows of a log that is not examined would appear to be missing.
    compacted = [found for table_id in tables for found in read_ranges(cursor, table_id)]
    after = _beyond_parted(compacted, complete_from(cursor, tables.values()))
    (committed,) = ask(
        cursor,
        f"SELECT coalesce(sum(last_lsn - greatest(first_lsn - 1, {after})), 0)::BIGINT "
        f"FROM {SCHEMA}.commits WHERE last_lsn > {after}",
    )
    # LSNs reserved for whole copies, which are in no log.
    (kept,) = ask(
        cursor,
        f"SELECT coalesce(sum(greatest(0, last_lsn - greatest(first_lsn - 1, {after}))), 0)::BIGINT "
        f"FROM {SCHEMA}.group_copies WHERE last_lsn > {after} AND last_lsn >= first_lsn",
    )
    committed -= kept
    rows = " UNION ALL ".join(f"SELECT lsn, txid, {n} AS log FROM {log}" for log, n in logs.items())
    rows = rows or "SELECT NULL::BIGINT AS lsn, NULL::BIGINT AS txid, 0 AS log WHERE false"
    strange = _strange_rows(cursor, rows, after)
    if strange:
        return strange
    (logged,) = ask(cursor, f"SELECT count(*) FROM ({rows}) WHERE lsn > {after}")
    removed = sum(found.removed for found in compacted if found.first_lsn > after)
    if committed == logged + removed:
        return []
    counted_after, after = after, max([after, *(found.last_lsn for found in compacted)])
    places = cursor.execute(
        f"SELECT c.first_lsn, c.last_lsn, coalesce(l.n, 0), l.logs FROM {SCHEMA}.commits AS c LEFT JOIN "
        f"(SELECT txid, count(DISTINCT lsn) AS n, list(DISTINCT log) AS logs FROM ({rows}) "
        f"WHERE lsn > {after} GROUP BY txid) AS l ON l.txid = c.txid "
        f"WHERE c.last_lsn > {after} "
        f"AND c.last_lsn - greatest(c.first_lsn - 1, {after}) <> coalesce(l.n, 0) "
        f"AND NOT EXISTS (FROM {SCHEMA}.group_copies AS k WHERE c.first_lsn >= k.first_lsn "
        f"AND c.last_lsn <= k.last_lsn AND c.last_lsn >= c.first_lsn) "
        f"ORDER BY c.txid LIMIT {PLACES_MAX}"
    ).fetchall()
    if not places:
        text = (
            f"the logs have {logged} events after LSN {counted_after}, and ducktail.commits has {committed}"
        )
        if removed:
            text += f", of which {removed} were compacted"
        return [Finding(text, frozenset(tables), counted_after)]
    return [
        Finding(
            f"of the transaction with LSN {first} to {last} the logs have {found} events",
            frozenset(touched or tables),
            max(first - 1, after),
        )
        for first, last, found, touched in places
    ]


def _strange_rows(cursor: duckdb.DuckDBPyConnection, rows: str, after: int) -> list[Finding]:
    """LSNs that the logs have more than once, or that no commit has for a row of theirs."""
    given = cursor.execute(
        f"SELECT min(first_lsn), max(last_lsn) FROM {SCHEMA}.commits WHERE last_lsn > {after} "
        f"GROUP BY (first_lsn - 1) >> {BITS} ORDER BY 1"
    ).fetchall()
    kept = cursor.execute(
        f"SELECT first_lsn, last_lsn FROM {SCHEMA}.group_copies "
        f"WHERE last_lsn > {after} AND last_lsn >= first_lsn"
    ).fetchall()
    within = " OR ".join(f"lsn BETWEEN {first} AND {last}" for first, last in given) or "false"
    strays = [f"NOT ({within})", *(f"lsn BETWEEN {first} AND {last}" for first, last in kept)]
    retained = f"FROM ({rows}) WHERE lsn > {after}"
    found = [
        (f"LSN {lsn}, which no commit has given to it", log, lsn)
        for lsn, log in cursor.execute(
            f"SELECT lsn, log {retained} AND ({' OR '.join(strays)}) ORDER BY lsn LIMIT {PLACES_MAX}"
        ).fetchall()
    ]
    if not _is_set(cursor, f"SELECT lsn AS n {retained}"):
        found += [
            (f"LSN {lsn} more than once", log, lsn)
            for lsn, log in cursor.execute(
                f"SELECT lsn, unnest(list(DISTINCT log)) {retained} GROUP BY lsn HAVING count(*) > 1 "
                f"ORDER BY lsn LIMIT {PLACES_MAX}"
            ).fetchall()
        ]
    return [Finding(f"a log has {what}", frozenset({log}), lsn - 1) for what, log, lsn in found]


def _is_set(cursor: duckdb.DuckDBPyConnection, numbers: str) -> bool:
    """True if no number occurs twice.

    Args:
        numbers: a query of a column `n`.
    """
    last = 2**SET_BITS - 1
    rows, different = ask(
        cursor,
        "SELECT coalesce(sum(rows), 0), coalesce(sum(bit_count(bits)), 0) FROM (SELECT count(*) AS rows, "
        f"bitstring_agg(n & {last}, 0, {last}) AS bits FROM ({numbers}) GROUP BY n >> {SET_BITS})",
    )
    return bool(rows == different)


def _beyond_parted(compacted: Sequence[Range], after: int) -> int:
    """The least LSN from `after` on outside all compacted ranges: only whole ranges can be counted."""
    for found in sorted(compacted, key=lambda one: one.first_lsn):
        if found.first_lsn <= after < found.last_lsn:
            after = found.last_lsn
    return after


def _orphans(cursor: duckdb.DuckDBPyConnection, tables: frozenset[int]) -> list[Finding]:
    """Catalog rows without an owner, and counters that would reuse a number."""
    findings = []
    for what, sql in (
        (NO_TABLE, WITHOUT_TABLE),
        ("a consumer group is of a stream that is not there",
         f"SELECT count(*) FROM {SCHEMA}.group_catalog WHERE stream_id NOT IN "
         f"(SELECT stream_id FROM {SCHEMA}.stream_catalog)"),
        ("two streams have one number",
         f"SELECT count(*) - count(DISTINCT stream_id) FROM {SCHEMA}.stream_catalog"),
        ("two consumer groups have one number",
         f"SELECT count(*) - count(DISTINCT group_id) FROM {SCHEMA}.group_catalog"),
        ("the next number of a stream is one that was given out",
         f"SELECT count(*) FROM system.main.duckdb_sequences() WHERE schema_name = {literal(SCHEMA)} "
         f"AND sequence_name = 'object_id' AND coalesce(last_value, 0) < (SELECT max(id) FROM "
         f"(SELECT stream_id AS id FROM {SCHEMA}.stream_catalog UNION ALL SELECT group_id "
         f"FROM {SCHEMA}.group_catalog UNION ALL SELECT table_id FROM {SCHEMA}.table_catalog))"),
    ):  # fmt: skip
        if ask(cursor, sql)[0]:
            findings.append(Finding(what, tables))
    return findings


def _fact(cursor: duckdb.DuckDBPyConnection, name: str) -> int:
    """A number in `meta`, 0 if it is missing."""
    sql = f"SELECT coalesce(max(value::BIGINT), 0) FROM {SCHEMA}.meta WHERE name = {literal(name)}"
    return int(ask(cursor, sql)[0])


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def worst(findings: Sequence[Finding], stream: Stream) -> Finding | None:
    """The finding that leaves the fewest readable events of a stream's tables, or None."""
    mine = [finding for finding in findings if stream.is_on(finding.tables)]
    return min(mine, key=lambda finding: finding.readable_through or 0, default=None)
