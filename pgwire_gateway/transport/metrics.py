"""The numbers of a server in Prometheus' text format.

prometheus_client writes the format; the numbers are our own, taken when they are asked for
(`engine.measures`, `Journal`). It is loaded only by a server that has a port for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from ...engine.database import Database
from ...engine.measures import Measures, measure
from ...engine.version import VERSION
from .journal import Journal
from .loops import Longest

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Watched(Protocol):
    """A server, as who watches it needs it (`server.Server`)."""

    database: Database
    journal: Journal

    @property
    def ready(self) -> bool:
        """Whether statements are answered."""

    @property
    def connected(self) -> int:
        """How many connections there are."""

    @property
    def connections_max(self) -> int:
        """How many sessions there may be."""

    @property
    def longest_step(self) -> Longest | None:
        """The longest steps of its event loop of late; None where it measures none."""


class Metrics:
    """What a scrape is answered with.

    Args:
        server: whose numbers they are.
    """

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All of them, now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All of them, as prometheus_client wants them."""
        measures = measure(self._server.database)
        yield _gauge("build_info", "The version that runs.", 1, version=VERSION)
        yield _gauge("ready", "Whether statements are answered.", int(self._server.ready))
        yield from self._event_loop()
        yield from self._connections(measures)
        yield from self._statements()
        yield from _database(measures)
        yield from _streams(measures)
        yield from _groups(measures)
        yield from _cluster(measures)

    def _event_loop(self) -> Iterator[Metric]:
        about = "The longest step of the event loop in the last one to two minutes, by clock."
        steps = GaugeMetricFamily("ducktail_event_loop_longest_step_seconds", about, labels=["clock"])
        longest = self._server.longest_step
        if longest is not None:
            steps.add_metric(["wall"], longest.wall_s)
            steps.add_metric(["cpu"], longest.cpu_s)
            yield steps

    def _connections(self, measures: Measures) -> Iterator[Metric]:
        server, journal = self._server, self._server.journal
        opened = _counter("connections_opened", "Clients that were let in.")
        opened.add_metric([], journal.opened)
        yield opened
        refused = _counter("connections_refused", "Clients that were not let in, by SQLSTATE.", "sqlstate")
        for sqlstate, count in sorted(journal.refusals().items()):
            refused.add_metric([sqlstate], count)
        yield refused
        yield _gauge("connections", "Connections now, with those that are not in yet.", server.connected)
        yield _gauge("connections_max", "Sessions that there may be.", server.connections_max)
        sessions = GaugeMetricFamily("ducktail_sessions", "Sessions now, by state.", labels=["state"])
        for state in sorted(measures.sessions):
            sessions.add_metric([state], measures.sessions[state])
        yield sessions

    def _statements(self) -> Iterator[Metric]:
        about = "Statements that ended, by kind, and by outcome: ok or an SQLSTATE."
        statements = _counter("statements", about, "kind", "outcome")
        for (kind, outcome), count in sorted(self._server.journal.outcomes().items()):
            statements.add_metric([kind, outcome], count)
        yield statements
        probes = _counter("catalog_unanswered", "Statements about the catalog that it could not answer.")
        probes.add_metric([], self._server.journal.unanswered)
        yield probes


def _database(measures: Measures) -> Iterator[Metric]:
    captured = _counter("events_captured", "Events that were committed, each once.")
    captured.add_metric([], measures.events_captured)
    yield captured
    released = _counter("events_released", "Events that streams let go of, for retention.")
    released.add_metric([], measures.events_released)
    yield released
    compacted = _counter("rows_compacted", "Rows of logs that compaction has taken.")
    compacted.add_metric([], measures.rows_compacted)
    yield compacted
    yield _gauge("last_lsn", "LSN of the last commit.", measures.last_lsn)
    about = "By how much commit times are ahead of the machine's clock."
    yield _gauge("commit_time_ahead_seconds", about, measures.commit_time_ahead_s)
    about = "By how much the time that retention goes by is behind the machine's clock."
    yield _gauge("retention_time_behind_seconds", about, measures.retention_time_behind_s)
    waits = _counter("writer_lock_waits", "How often a writer had to wait for another.")
    waits.add_metric([], measures.lock_waits)
    yield waits
    yield _gauge("writer_lock_waiting", "Writers that wait now.", measures.lock_waiting)
    yield _gauge("long_polls", "Reads that wait for events now.", measures.long_polls)
    woken = _counter("long_polls_woken", "How often events made such a read look.")
    woken.add_metric([], measures.long_polls_woken)
    yield woken
    yield _gauge("buffer_bytes", "What the buffers of all streams hold.", measures.buffer_bytes)
    yield _gauge("buffer_bytes_max", "What they may hold.", measures.buffer_bytes_max)
    failed = _counter("side_file_errors", "How often the side file could not be written.")
    failed.add_metric([], measures.side_file_errors)
    yield failed
    yield _gauge("wal_bytes", "Size of DuckDB's write-ahead log at the last look.", measures.wal_bytes)


def _streams(measures: Measures) -> Iterator[Metric]:
    labels = ("schema", "stream")
    captured = _counter("stream_events", "Events that came into a stream.", *labels)
    read = _counter("stream_rows_read", "Rows that reads took from a stream.", *labels)
    cold = _counter("stream_log_reads", "Reads that had to go to the log.", *labels)
    retained = GaugeMetricFamily("ducktail_stream_events_retained", "Events retained.", labels=labels)
    about = "What a stream's buffers hold."
    buffered = GaugeMetricFamily("ducktail_stream_buffer_bytes", about, labels=labels)
    for stream in measures.streams:
        name = [stream.schema, stream.name]
        captured.add_metric(name, stream.captured)
        read.add_metric(name, stream.read)
        cold.add_metric(name, stream.log_reads)
        retained.add_metric(name, stream.retained)
        buffered.add_metric(name, stream.buffer_bytes)
    yield from (captured, read, cold, retained, buffered)


def _groups(measures: Measures) -> Iterator[Metric]:
    about = "Events that a group has yet to process; where only the log can tell, the most that it can be."
    lag = GaugeMetricFamily("ducktail_group_lag_events", about, labels=["schema", "stream", "group"])
    for group in measures.groups:
        lag.add_metric([group.schema, group.stream, group.name], group.lag_events)
    yield lag
    about = "Members of a group that have been heard from within its session_timeout."
    members = GaugeMetricFamily("ducktail_group_members", about, labels=["schema", "stream", "group"])
    for group in measures.groups:
        members.add_metric([group.schema, group.stream, group.name], group.members)
    yield members


def _cluster(measures: Measures) -> Iterator[Metric]:
    yield _gauge("placement_epoch", "Epoch of the placement in force; 0 alone.", measures.placement_epoch)
    about = "What a node of a cluster counts, as in ducktail.nodes; by peer and cause, where it has them."
    counts = _counter("cluster_events", about, "what", "peer", "cause")
    for (what, peer, cause), count in sorted(measures.cluster.items()):
        counts.add_metric([what, peer, cause], count)
    yield counts


def _gauge(name: str, about: str, value: float, **labels: str) -> Metric:
    gauge = GaugeMetricFamily(f"ducktail_{name}", about, labels=list(labels))
    gauge.add_metric(list(labels.values()), value)
    return gauge


def _counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"ducktail_{name}", about, labels=labels)
