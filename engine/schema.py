"""The tables that ducktail keeps in schema `ducktail` of the user's database, and its views.

    meta            facts about the database: format version, identity, incarnation. 'hole' and 'txid' belong
                    to raised incarnations, 'dropped' is the last LSN before the latest DROP STREAM,
                    'accepted' the last LSN before the latest accepted damage
    table_catalog   a captured table: id, schema, name, version of its log
    schema_catalog  a version of an altered captured table: its first LSN, its time, and its shape as JSON
                    (see `schema_versions.py`); deleted with the log of the version
    stream_catalog  a stream: all fields of `Stream`
    stream_tables   the tables of a stream over several tables, in its order. In `stream_catalog` such a
                    stream has its own number in place of a table. If it covers a schema (`of_schema`), the
                    first table is one of ducktail's, and later tables are appended
    replaced_tables  tables that the streams over their schema leave out, because another table has taken
                    their place (see `renames.py`); rows of dropped tables may remain
    stream_edges    the retention edge of each partition that has lost events; partition -1 is the stream's
                    own pointer into the log
    passed_positions  the number of events at or before a group's committed LSN that retention has passed
    group_catalog   a consumer group
    __ducktail_sinks  a sink by the number of its group, with its secrets (see `catalog/sinks.py`); no user
                    can read it by SQL
    __ducktail_feeds  the source outside that feeds a stream, with its address (see `catalog/feeds.py`); no
                    user can read it by SQL
    feed_tables     a table outside, its definition there, and the captured table that has its rows
    feed_copies     a copy of a table outside that was asked for and is not stored yet
    mirrors         tables of users that follow a table of a feed
    feed_positions  the position at the source up to which a stream has everything
    delivery_limits  the option `max_deliveries` of the groups that have it
    delivery_log    the delivery counts of these groups (see `deliveries.py`); in each partition the highest
                    seq counts
    bookmark_catalog  a bookmark: its LSNs, and the numbers of events at or before them, as JSON
    parked_events   an event that a group has parked, and its outcome (see `parked.py`)
    group_copies    whole copies of tables for groups; without a group (0), LSNs that no log has (see
                    `copies.py`)
    copy_N          the rows of copy N, in the form of a log
    parked_deliveries  the deliveries of events that were parked because of their number
    parked_commits  the rows of `commits` of parked events
    parked_T_V      copies of log rows of parked events; parked_topic_S for a topic
    pipeline_reports  the latest report of each pipeline (see `pipelines.py`)
    checkpoint_states  states from which consumers and jobs resume, by the stream's id, 0 for none (see
                    `checkpoints/duckdb_backend.py`); `state` is the whole state, the other columns are shown
    checkpoint_turns  rows that every change of a checkpoint updates, so that concurrent changes of one key
                    conflict
    cluster_identities  the identity in the cluster of a topic or a group (see `placement/holds.py`)
    member_epochs   the epoch under which a member came with a partition of a topic on several nodes (see
                    `coordination.py`)
    partition_holds  the state of this node's log of a topic's partition (see `placement/holds.py`)
    segments        partitions of topics that came from another node, with their last LSN (see `segments.py`)
    segment_events  the events of segments, in the form in which they are sent, with their producers
    segment_producers  the last sequences of the producers of segments
    offset_log      commits of offsets, appended as `offsets.Move.entry`; the highest seq counts
    __ducktail_users  a user and the password's verifier (see `rights.py`); no user can read it by SQL
    __ducktail_users_tokens  a token of a user: the hash of its text, and the end of its validity
    owner_catalog   the owner of an object
    grant_catalog   a user's privilege on an object
    commits         one row for each captured transaction: txid, first and last LSN, commit time, annotation
    compacted_ranges  compacted ranges of LSNs of a captured table's log (see `deleted_ranges.py`)
    row_sums        the row-hash sum of a captured table as of an LSN (see `row_sums.py`)
    log_T_V         the log of captured table T, schema version V (see `log.py`)
    topic_S         the log of topic S (see `topic_rows.py`)

The views are plain SQL. State in memory reaches them through one function of the engine,
`ducktail_live(kind)`, which returns rows as JSON. `partition_of` is a macro. Source: docs/sql.md, "Views".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import duckdb

from .duck.cursors import in_one_transaction, run_known
from .errors import DataCorrupted
from .quoting import ident, literal

SCHEMA = "ducktail"
# Holds what passwords are held against: no SQL of any user's reads it. A name that stands in no text of
# anybody's, so that a text which has it can be refused.
USERS = "__ducktail_users"
# Tokens of users; its name contains the other one, so that the same texts are refused.
TOKENS = f"{USERS}_tokens"
# The keys and headers of sinks.
SINKS = "__ducktail_sinks"
# The addresses of the sources of streams, with their passwords.
FEEDS = "__ducktail_feeds"
# No SQL of any user reads them.
SECRET_TABLES = (USERS, TOKENS, SINKS, FEEDS)
FORMAT_VERSION = 4
# Of a stream that was made before there was compaction: the defaults (`streams.py`).
LAG_US, TOMBSTONES_US = 3_600_000_000, 86_400_000_000
# Few keys share one, and they are soon written.
CHECKPOINT_SLOTS = 256
# In the order in which they are written.
COMMIT_COLUMNS = "(txid, first_lsn, last_lsn, commit_time, annotation)"
# Behind the name, in `table_catalog`, of a table that was dropped past ducktail, once another has its name.
DROPPED = " (dropped)"

TABLES = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.meta (name VARCHAR, value VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.table_catalog (
    table_id INTEGER, schema_name VARCHAR, table_name VARCHAR, version INTEGER);
CREATE TABLE IF NOT EXISTS {SCHEMA}.schema_catalog (
    table_id INTEGER, version INTEGER, first_lsn BIGINT, since TIMESTAMP WITH TIME ZONE, shape VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.stream_catalog (
    stream_id INTEGER, schema_name VARCHAR, stream_name VARCHAR, table_id INTEGER,
    operations VARCHAR[], columns VARCHAR[], filter VARCHAR, partitions INTEGER,
    partition_by VARCHAR[], snapshot VARCHAR, before VARCHAR, buffer_bytes BIGINT,
    created_lsn BIGINT, created_at TIMESTAMP WITH TIME ZONE,
    retention_us BIGINT, retention_bytes BIGINT, changes_view BOOLEAN, comment VARCHAR,
    all_columns BOOLEAN, minimal_changes VARCHAR,
    compaction VARCHAR, compaction_lag_us BIGINT, tombstone_retention_us BIGINT, of_schema VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.compacted_ranges (
    table_id INTEGER, first_lsn BIGINT, last_lsn BIGINT, removed BIGINT,
    compacted_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE IF NOT EXISTS {SCHEMA}.stream_tables (
    stream_id INTEGER, table_id INTEGER, place INTEGER, created_lsn BIGINT, partition_by VARCHAR[],
    columns VARCHAR[]);
CREATE TABLE IF NOT EXISTS {SCHEMA}.replaced_tables (schema_name VARCHAR, table_name VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.stream_edges (
    stream_id INTEGER, partition INTEGER, trimmed_through_lsn BIGINT, trimmed_events BIGINT,
    reason VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.passed_positions (
    group_id INTEGER, partition INTEGER, lsn BIGINT, position BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.group_catalog (
    group_id INTEGER, stream_id INTEGER, group_name VARCHAR, start VARCHAR,
    created_at TIMESTAMP WITH TIME ZONE, on_gap VARCHAR, session_timeout_ms BIGINT, on_park VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.{SINKS} (
    group_id INTEGER, uid VARCHAR, kind VARCHAR, target VARCHAR, options VARCHAR, secrets VARCHAR,
    state VARCHAR, reason VARCHAR, changed_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE IF NOT EXISTS {SCHEMA}.{FEEDS} (
    stream_id INTEGER, uid VARCHAR, kind VARCHAR, address VARCHAR, shown VARCHAR, selection VARCHAR,
    options VARCHAR, state VARCHAR, reason VARCHAR, changed_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE IF NOT EXISTS {SCHEMA}.feed_tables (
    stream_id INTEGER, table_id INTEGER, place INTEGER, definition VARCHAR, copied_at VARCHAR,
    copied_rows BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.feed_copies (
    stream_id INTEGER, table_id INTEGER, number BIGINT, condition VARCHAR, joins BOOLEAN);
CREATE TABLE IF NOT EXISTS {SCHEMA}.feed_positions (
    stream_id INTEGER, position VARCHAR, identity VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.mirrors (
    stream_id INTEGER, table_id INTEGER, schema_name VARCHAR, table_name VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.parked_events (
    group_id INTEGER, partition INTEGER, lsn BIGINT, state VARCHAR, key VARCHAR, by_key BOOLEAN,
    tx_last BOOLEAN, reason VARCHAR, parked_at TIMESTAMP WITH TIME ZONE, parked_by VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.parked_deliveries (
    group_id INTEGER, lsn BIGINT, deliveries INTEGER, members VARCHAR[]);
CREATE TABLE IF NOT EXISTS {SCHEMA}.delivery_limits (group_id INTEGER, max_deliveries INTEGER);
CREATE TABLE IF NOT EXISTS {SCHEMA}.delivery_log (seq BIGINT, group_id INTEGER, entry VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.parked_commits (
    txid BIGINT, first_lsn BIGINT, last_lsn BIGINT, commit_time TIMESTAMP WITH TIME ZONE,
    annotation VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.group_copies (
    copy_id INTEGER, group_id INTEGER, stream_id INTEGER, version INTEGER, first_lsn BIGINT,
    last_lsn BIGINT, first_txid BIGINT, made_at TIMESTAMP WITH TIME ZONE, rows BIGINT, spans VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.bookmark_catalog (
    bookmark_id INTEGER, stream_id INTEGER, bookmark_name VARCHAR, lsns VARCHAR, positions VARCHAR,
    created_at TIMESTAMP WITH TIME ZONE);
CREATE TABLE IF NOT EXISTS {SCHEMA}.pipeline_reports (
    seq BIGINT, key VARCHAR, pipeline VARCHAR, state VARCHAR,
    reported_at TIMESTAMP WITH TIME ZONE, reported_by VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.checkpoint_states (
    stream_id INTEGER, group_id INTEGER, key VARCHAR, sequence BIGINT, created_at TIMESTAMP WITH TIME ZONE,
    position_type VARCHAR, position VARCHAR, watermark_ns BIGINT, event_count BIGINT, state BLOB);
CREATE TABLE IF NOT EXISTS {SCHEMA}.checkpoint_turns AS
    SELECT slot::INTEGER AS slot, 0::BIGINT AS turn FROM range({CHECKPOINT_SLOTS}) AS r(slot);
CREATE TABLE IF NOT EXISTS {SCHEMA}.offset_log (
    seq BIGINT, group_id INTEGER, entry VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.commits (
    txid BIGINT, first_lsn BIGINT, last_lsn BIGINT, commit_time TIMESTAMP WITH TIME ZONE,
    annotation VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.row_sums (
    table_id INTEGER, lsn BIGINT, row_count BIGINT, hash_sum HUGEINT, taken_lsn BIGINT, reason VARCHAR,
    taken_at TIMESTAMP WITH TIME ZONE, duckdb_version VARCHAR, differs VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.{USERS} (user_name VARCHAR, verifier VARCHAR, superuser BOOLEAN);
CREATE TABLE IF NOT EXISTS {SCHEMA}.{TOKENS} (
    token_name VARCHAR, user_name VARCHAR, hash VARCHAR, created_at_us BIGINT, valid_until_us BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.owner_catalog (
    kind VARCHAR, schema_name VARCHAR, object_name VARCHAR, part VARCHAR, owner VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.grant_catalog (
    user_name VARCHAR, privilege VARCHAR,
    kind VARCHAR, schema_name VARCHAR, object_name VARCHAR, part VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.cluster_identities (object_id INTEGER, uid VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.member_epochs (group_id INTEGER, partition INTEGER, epoch BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.partition_holds (
    stream_id INTEGER, partition INTEGER, state VARCHAR, node VARCHAR, epoch BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.segments (
    stream_id INTEGER, partition INTEGER, base_lsn BIGINT, since_lsn BIGINT, events BIGINT, node VARCHAR);
CREATE TABLE IF NOT EXISTS {SCHEMA}.segment_events (
    stream_id INTEGER, partition INTEGER, lsn BIGINT, commit_us BIGINT, event BLOB, producer VARCHAR,
    sequence BIGINT);
CREATE TABLE IF NOT EXISTS {SCHEMA}.segment_producers (
    stream_id INTEGER, partition INTEGER, producer VARCHAR, sequence BIGINT);
CREATE SEQUENCE IF NOT EXISTS {SCHEMA}.object_id;
"""

# Facts of a new database; `incarnation` counts how often it was restored.
FACTS = (
    f"INSERT INTO {SCHEMA}.meta VALUES ('format', '{FORMAT_VERSION}'), ('identity', uuid()::VARCHAR), "
    "('incarnation', '0')"
)

# Format n -> what makes it n + 1. A database may be of any format from 1 on; the tables that TABLES
# makes are there when these run, a table's new columns are not.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        f"INSERT INTO {SCHEMA}.meta VALUES ('identity', uuid()::VARCHAR), ('incarnation', '0')",
        # Which logs were dropped before is not known.
        f"INSERT INTO {SCHEMA}.meta SELECT 'dropped', coalesce(max(last_lsn), 0)::VARCHAR "
        f"FROM {SCHEMA}.commits",
        # Events of a stream of format 1 are kept until it is dropped: NULL says so.
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN retention_us BIGINT",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN retention_bytes BIGINT",
        f"ALTER TABLE {SCHEMA}.stream_edges ADD COLUMN reason VARCHAR",
        f"ALTER TABLE {SCHEMA}.group_catalog ADD COLUMN on_gap VARCHAR",
        f"UPDATE {SCHEMA}.group_catalog SET on_gap = 'error'",
        # NULL until `loading.make_changes_views` has looked whether the view can be made.
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN changes_view BOOLEAN",
    ),
    # And new tables, which TABLES makes; `loading.refresh_views` sees to the views.
    2: (
        f"ALTER TABLE {SCHEMA}.group_catalog ADD COLUMN session_timeout_ms BIGINT",
        f"ALTER TABLE {SCHEMA}.group_catalog ADD COLUMN on_park VARCHAR",
        f"UPDATE {SCHEMA}.group_catalog SET session_timeout_ms = 30000, on_park = 'event'",
        f"ALTER TABLE {SCHEMA}.commits ADD COLUMN annotation VARCHAR",
    ),
    # Files that say 3 were written by versions with and without these columns.
    3: (
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN IF NOT EXISTS comment VARCHAR",
        # NULL where it is not known: then a stream that carries all columns was made without a list.
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN IF NOT EXISTS all_columns BOOLEAN",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN IF NOT EXISTS minimal_changes VARCHAR",
        f"UPDATE {SCHEMA}.stream_catalog SET minimal_changes = 'replace' WHERE minimal_changes IS NULL",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN compaction VARCHAR",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN compaction_lag_us BIGINT",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN tombstone_retention_us BIGINT",
        f"ALTER TABLE {SCHEMA}.stream_catalog ADD COLUMN of_schema VARCHAR",
        f"UPDATE {SCHEMA}.stream_catalog SET compaction = 'none', compaction_lag_us = {LAG_US}, "
        f"tombstone_retention_us = {TOMBSTONES_US}",
    ),
}

_PIPELINE_COLUMNS = (
    ("pipeline_name", "VARCHAR"),
    ("status", "VARCHAR"),
    ("batch_id", "BIGINT"),
    ("events", "BIGINT"),
    ("events_per_second", "DOUBLE"),
    ("state_rows", "BIGINT"),
    ("watermark", "TIMESTAMP WITH TIME ZONE"),
    ("offsets", "JSON"),
    ("state", "JSON"),
    ("reported_at", "TIMESTAMP WITH TIME ZONE"),
    ("reported_by", "VARCHAR"),
)

# Views over what lives in memory: name -> the columns of `ducktail_live(name)`.
LIVE_VIEWS: dict[str, tuple[tuple[str, str], ...]] = {
    "streams": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("table_name", "VARCHAR"),
        ("operations", "VARCHAR"),
        ("columns", "VARCHAR"),
        ("filter", "VARCHAR"),
        ("partitions", "INTEGER"),
        ("partition_by", "VARCHAR"),
        ("snapshot", "VARCHAR"),
        ("before", "VARCHAR"),
        ("minimal_changes", "VARCHAR"),
        ("compaction", "VARCHAR"),
        ("compaction_lag", "VARCHAR"),
        ("tombstone_retention", "VARCHAR"),
        ("buffer_bytes", "BIGINT"),
        ("retention", "VARCHAR"),
        ("retention_bytes", "BIGINT"),
        ("created_at", "TIMESTAMP WITH TIME ZONE"),
        ("events", "BIGINT"),
        ("bytes", "BIGINT"),
        ("end_lsn", "BIGINT"),
        ("last_event_at", "TIMESTAMP WITH TIME ZONE"),
        ("unpublished_events", "BIGINT"),
        ("unpublished_seconds", "DOUBLE"),
        ("comment", "VARCHAR"),
        ("identity", "VARCHAR"),
        ("tables", "VARCHAR[]"),
    ),
    "schema_versions": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("table_name", "VARCHAR"),
        ("schema_version", "INTEGER"),
        ("since_lsn", "BIGINT"),
        ("since", "TIMESTAMP WITH TIME ZONE"),
        ("primary_key", "VARCHAR"),
        ("columns", "JSON"),
    ),
    "partitions": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("partition", "INTEGER"),
        ("first_lsn", "BIGINT"),
        ("last_lsn", "BIGINT"),
        ("events", "BIGINT"),
        ("bytes", "BIGINT"),
        ("buffered_from_lsn", "BIGINT"),
        ("trimmed_events", "BIGINT"),
        ("trimmed_through_lsn", "BIGINT"),
        ("compacted_through_lsn", "BIGINT"),
        ("last_event_at", "TIMESTAMP WITH TIME ZONE"),
        ("owner", "VARCHAR"),
        ("owner_host", "VARCHAR"),
        ("owner_port", "INTEGER"),
        ("owner_local", "BOOLEAN"),
        ("epoch", "BIGINT"),
        ("log", "VARCHAR"),
    ),
    "consumer_groups": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("start", "VARCHAR"),
        ("on_gap", "VARCHAR"),
        ("session_timeout", "VARCHAR"),
        ("on_park", "VARCHAR"),
        ("created_at", "TIMESTAMP WITH TIME ZONE"),
        ("lag_events", "BIGINT"),
        ("members", "INTEGER"),
        ("parked_events", "BIGINT"),
        ("released_events", "BIGINT"),
        ("max_deliveries", "INTEGER"),
    ),
    "offsets": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("partition", "INTEGER"),
        ("committed_lsn", "BIGINT"),
        ("end_lsn", "BIGINT"),
        ("lag_events", "BIGINT"),
        ("lag_seconds", "DOUBLE"),
        ("lag_bytes", "BIGINT"),
        ("headroom_events", "BIGINT"),
        ("headroom_seconds", "DOUBLE"),
        ("trimmed_unread", "BIGINT"),
        ("parked_events", "BIGINT"),
        ("released_events", "BIGINT"),
        ("committed_at", "TIMESTAMP WITH TIME ZONE"),
        ("committed_by", "VARCHAR"),
        ("last_read_at", "TIMESTAMP WITH TIME ZONE"),
        ("last_read_by", "VARCHAR"),
        ("member", "VARCHAR"),
    ),
    "copies": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("first_lsn", "BIGINT"),
        ("last_lsn", "BIGINT"),
        ("rows", "BIGINT"),
        ("rows_left", "BIGINT"),
        ("partitions", "JSON"),
        ("schema_version", "INTEGER"),
        ("made_at", "TIMESTAMP WITH TIME ZONE"),
    ),
    "parked": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("partition", "INTEGER"),
        ("lsn", "BIGINT"),
        ("state", "VARCHAR"),
        ("key", "JSON"),
        ("behind", "BIGINT"),
        ("reason", "VARCHAR"),
        ("parked_at", "TIMESTAMP WITH TIME ZONE"),
        ("parked_by", "VARCHAR"),
        ("op", "VARCHAR"),
        ("before", "JSON"),
        ("after", "JSON"),
        ("commit_time", "TIMESTAMP WITH TIME ZONE"),
        ("txid", "BIGINT"),
        ("deliveries", "INTEGER"),
        ("members", "VARCHAR[]"),
    ),
    "sinks": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("sink_name", "VARCHAR"),
        ("kind", "VARCHAR"),
        ("target", "VARCHAR"),
        ("state", "VARCHAR"),
        ("reason", "VARCHAR"),
        ("lag_events", "BIGINT"),
        ("in_flight", "INTEGER"),
        ("delivered_events", "BIGINT"),
        ("parked_events", "BIGINT"),
        ("failed_requests", "BIGINT"),
        ("last_delivered_at", "TIMESTAMP WITH TIME ZONE"),
        ("fault", "VARCHAR"),
        ("fault_at", "TIMESTAMP WITH TIME ZONE"),
        ("changed_at", "TIMESTAMP WITH TIME ZONE"),
        ("owner", "VARCHAR"),
        ("options", "JSON"),
    ),
    "sources": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("kind", "VARCHAR"),
        ("source", "VARCHAR"),
        ("state", "VARCHAR"),
        ("phase", "VARCHAR"),
        ("reason", "VARCHAR"),
        ("position", "VARCHAR"),
        ("source_position", "VARCHAR"),
        ("lag_bytes", "BIGINT"),
        ("lag_seconds", "DOUBLE"),
        ("rows_copied", "BIGINT"),
        ("transactions", "BIGINT"),
        ("events", "BIGINT"),
        ("fault", "VARCHAR"),
        ("fault_at", "TIMESTAMP WITH TIME ZONE"),
        ("next_attempt_at", "TIMESTAMP WITH TIME ZONE"),
        ("slot", "VARCHAR"),
        ("tables", "VARCHAR[]"),
        ("changed_at", "TIMESTAMP WITH TIME ZONE"),
    ),
    "deliveries": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("sink_name", "VARCHAR"),
        ("partition", "INTEGER"),
        ("first_lsn", "BIGINT"),
        ("last_lsn", "BIGINT"),
        ("events", "INTEGER"),
        ("delivery_id", "VARCHAR"),
        ("attempt", "INTEGER"),
        ("outcome", "VARCHAR"),
        ("status", "INTEGER"),
        ("detail", "VARCHAR"),
        ("started_at", "TIMESTAMP WITH TIME ZONE"),
        ("duration_ms", "DOUBLE"),
    ),
    "delivery_counts": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("partition", "INTEGER"),
        ("first_lsn", "BIGINT"),
        ("last_lsn", "BIGINT"),
        ("deliveries", "INTEGER"),
        ("together", "BIGINT"),
        ("members", "VARCHAR[]"),
    ),
    "bookmarks": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("bookmark_name", "VARCHAR"),
        ("position", "JSON"),
        ("whole", "BOOLEAN"),
        ("events", "BIGINT"),
        ("trimmed_events", "BIGINT"),
        ("trimmed", "JSON"),
        ("created_at", "TIMESTAMP WITH TIME ZONE"),
        ("created_by", "VARCHAR"),
    ),
    "pipelines": _PIPELINE_COLUMNS,
    "pipeline_history": _PIPELINE_COLUMNS,
    "checkpoints": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("consumer_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("position_type", "VARCHAR"),
        ("position", "VARCHAR"),
        ("sequence", "BIGINT"),
        ("watermark", "TIMESTAMP WITH TIME ZONE"),
        ("event_count", "BIGINT"),
        ("created_at", "TIMESTAMP WITH TIME ZONE"),
        ("age_seconds", "DOUBLE"),
    ),
    "members": (
        ("schema_name", "VARCHAR"),
        ("stream_name", "VARCHAR"),
        ("group_name", "VARCHAR"),
        ("member_name", "VARCHAR"),
        ("epoch", "BIGINT"),
        ("partitions", "INTEGER[]"),
        ("state", "VARCHAR"),
        ("lag_events", "BIGINT"),
        ("joined_at", "TIMESTAMP WITH TIME ZONE"),
        ("last_heartbeat", "TIMESTAMP WITH TIME ZONE"),
        ("last_read_at", "TIMESTAMP WITH TIME ZONE"),
        ("last_commit_at", "TIMESTAMP WITH TIME ZONE"),
        ("user_name", "VARCHAR"),
    ),
    "sessions": (
        ("session_id", "INTEGER"),
        ("user_name", "VARCHAR"),
        ("application_name", "VARCHAR"),
        ("state", "VARCHAR"),
        ("transaction_started_at", "TIMESTAMP WITH TIME ZONE"),
        ("state_changed_at", "TIMESTAMP WITH TIME ZONE"),
        ("writer_lock", "VARCHAR"),
        ("waits_for", "VARCHAR"),
        ("node", "VARCHAR"),
        ("trace", "VARCHAR"),
    ),
    "continuous_copies": (
        ("target", "VARCHAR"),
        ("state", "VARCHAR"),
        ("generation", "VARCHAR"),
        ("generations", "INTEGER"),
        ("checkpoint", "BIGINT"),
        ("log_offset", "BIGINT"),
        ("copied_txid", "BIGINT"),
        ("copied_lsn", "BIGINT"),
        ("copied_at", "TIMESTAMP WITH TIME ZONE"),
        ("lag_seconds", "DOUBLE"),
        ("lag_bytes", "BIGINT"),
        ("lag_transactions", "BIGINT"),
        ("copied_bytes", "BIGINT"),
        ("errors", "BIGINT"),
        ("error", "VARCHAR"),
        ("error_at", "TIMESTAMP WITH TIME ZONE"),
        ("retry_at", "TIMESTAMP WITH TIME ZONE"),
        ("verified_at", "TIMESTAMP WITH TIME ZONE"),
        ("verified_generation", "VARCHAR"),
        ("verification", "VARCHAR"),
    ),
    "nodes": (
        ("node", "VARCHAR"),
        ("host", "VARCHAR"),
        ("port", "INTEGER"),
        ("local", "BOOLEAN"),
        ("epoch", "BIGINT"),
        ("connected", "BOOLEAN"),
        ("routed", "BIGINT"),
        ("delivered_locally", "BIGINT"),
        ("forwarded", "BIGINT"),
        ("published_remotely", "BIGINT"),
        ("placements_installed", "BIGINT"),
        ("placements_refused", "BIGINT"),
        ("moves", "BIGINT"),
        ("nodes_joined", "BIGINT"),
        ("nodes_left", "BIGINT"),
        ("failed", "JSON"),
    ),
    "placement": (
        ("cluster", "VARCHAR"),
        ("epoch", "BIGINT"),
        ("rule", "INTEGER"),
        ("topics", "VARCHAR"),
        ("node", "VARCHAR"),
        ("local", "BOOLEAN"),
        ("partitions", "VARCHAR"),
        ("places", "INTEGER"),
    ),
    "settings": (
        ("name", "VARCHAR"),
        ("setting", "VARCHAR"),
        ("source", "VARCHAR"),
        ("place", "VARCHAR"),
        ("description", "VARCHAR"),
    ),
}

LIVE_FUNCTION = "ducktail_live"
PARTITION_OF = "partition_of"
# Behind it (`engine/system_views/partition_of.py`).
PARTITION_FUNCTION = "ducktail_partition"
# A table has hardly more partition columns.
KEYS_MAX = 8
# Before what is wrong, in what that function answers.
WRONG = "!"
# A session's cursors say in it for whom they ask; the owner of the database has none.
ACCOUNT_VARIABLE = "__ducktail_account"


def live_view_sql(name: str, columns: Sequence[tuple[str, str]]) -> str:
    """The view over one kind of live rows: JSON objects in, typed columns out; JSON comes as text."""
    texts = [(column, "VARCHAR" if type_ == "JSON" else type_) for column, type_ in columns]
    shape = "[{" + ", ".join(f'"{column}": "{type_}"' for column, type_ in texts) + "}]"
    picked = ", ".join(
        f"r.{ident(column)}" + (f"::JSON AS {ident(column)}" if type_ == "JSON" else "")
        for column, type_ in columns
    )
    asker = f"getvariable('{ACCOUNT_VARIABLE}')::VARCHAR"
    return (
        f"CREATE OR REPLACE VIEW {SCHEMA}.{ident(name)} AS SELECT {picked} FROM "
        f"(SELECT unnest(from_json({LIVE_FUNCTION}({literal(name)}, {asker}), {literal(shape)})) AS r)"
    )


@cache
def _views_sql() -> str:
    """The statements that create all live views and the macro over `PARTITION_FUNCTION`."""
    views = [live_view_sql(name, columns) for name, columns in LIVE_VIEWS.items()]
    return ";".join([*views, partition_of_sql()])


def partition_of_sql() -> str:
    """The macro over `PARTITION_FUNCTION`, with a form for each number of values."""
    forms = (f"(stream, {', '.join(keys)}) AS {body}" for keys, body in _partition_of_forms())
    return f"CREATE OR REPLACE MACRO {SCHEMA}.{PARTITION_OF}{', '.join(forms)}"


def partition_of_bodies() -> list[str]:
    """The expressions of that macro's forms."""
    return [body for _, body in _partition_of_forms()]


def _partition_of_forms() -> Iterator[tuple[list[str], str]]:
    for count in range(1, KEYS_MAX + 1):
        keys = [f"k{n}" for n in range(1, count + 1)]
        types = ", ".join(f"typeof({key})" for key in keys)
        texts = ", ".join(f"{key}::VARCHAR" for key in keys)
        call = (
            f"{PARTITION_FUNCTION}(stream, current_schema(), [{types}], [{texts}], "
            f"getvariable({literal(ACCOUNT_VARIABLE)})::VARCHAR)"
        )
        told = f"CASE WHEN answer[1] = '{WRONG}' THEN error(substr(answer, 2)) ELSE answer END"
        yield keys, f"list_transform([{call}], lambda answer: {told})[1]::INTEGER"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in `meta`; a database of format 1 has no identity."""

    format: int
    identity: uuid.UUID | None
    incarnation: int


def read_facts(cursor: duckdb.DuckDBPyConnection) -> Facts | None:
    """The facts in the database; None if no ducktail has written it yet.

    Must not be called in a transaction, which would be aborted if the table is missing.

    Raises:
        DataCorrupted: the database was written by a newer ducktail.
    """
    try:
        facts = dict(cursor.execute(f"SELECT name, value FROM {SCHEMA}.meta").fetchall())
    except duckdb.CatalogException:  # It is not there.
        return None
    if "format" not in facts:
        return None
    found = int(facts["format"])
    if found > FORMAT_VERSION:
        raise DataCorrupted(
            f"the database's format is {found}, and this ducktail reads up to {FORMAT_VERSION}",
            hint="Open it with the newer version that wrote it.",
        )
    identity = uuid.UUID(facts["identity"]) if "identity" in facts else None
    return Facts(found, identity, int(facts.get("incarnation", 0)))


def install(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the missing tables and views, and migrate an older format, in one transaction.

    Raises:
        DataCorrupted: the database was written by a newer ducktail.
    """
    with in_one_transaction(cursor):
        run_known(cursor, TABLES)
        _migrate(cursor)
        run_known(cursor, _views_sql())


def migrate(cursor: duckdb.DuckDBPyConnection) -> Facts:
    """Create the missing tables and migrate an older format, for a file that is not served.

    The views are not created, because they require the engine's function.

    Raises:
        DataCorrupted: the database was written by a newer ducktail.
    """
    with in_one_transaction(cursor):
        cursor.execute(TABLES)
        _migrate(cursor)
        facts = read_facts(cursor)
    assert facts is not None
    return facts


def _migrate(cursor: duckdb.DuckDBPyConnection) -> None:
    facts = read_facts(cursor)
    if facts is None:
        cursor.execute(FACTS)
        return
    found = facts.format
    for older in range(found, FORMAT_VERSION):
        for statement in MIGRATIONS[older]:
            cursor.execute(statement)
    if found < FORMAT_VERSION:
        cursor.execute(f"UPDATE {SCHEMA}.meta SET value = '{FORMAT_VERSION}' WHERE name = 'format'")
