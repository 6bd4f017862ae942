"""Metrics and health checks over HTTP: /metrics, /ready and /live.

    GET /live      200 while the event loop turns
    GET /ready     200 while statements are answered; 503 while the file is not open, or the server ends
    GET /metrics   Prometheus' text format

The port reads one request, answers it and closes. Beyond the maximum of connections the oldest is cut, so a
probe or a scraper, which asks at once, is answered even if many others are slow. /metrics runs on its own
thread, so that neither busy workers nor a slow disk delay it, and it delays nobody; the other two never wait.
prometheus_client writes the format; the numbers are ducktail's own, read at each scrape (`engine.measures`,
`StatementLog`). Only a server with such a port imports this module.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from ...engine.catalog.sinks import PAUSED, RUNNING, STOPPED
from ...engine.groups.sink_activity import OUTCOMES
from ...engine.measures import LogPositions, Measures, measure
from ...engine.server_log import facts
from ...engine.version import VERSION

if TYPE_CHECKING:
    from .postmaster import Server


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """The answer to a scrape.

    Args:
        server: the measured server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._positions = LogPositions()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        # process_resident_memory_bytes and its like: those of every Prometheus client.
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics, in their present state."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, for prometheus_client."""
        measures = measure(self._server.database, self._positions)
        yield _gauge("build_info", "The version that runs.", 1, version=VERSION)
        yield _gauge("ready", "Whether statements are answered.", int(self._server.ready))
        yield from self._event_loop()
        yield from self._connections(measures)
        yield from self._statements()
        yield from _database(measures)
        yield from _streams(measures)
        yield from _groups(measures)
        yield from _sinks(measures)
        yield from _sources(measures)
        yield from _cluster(measures)
        yield from _copies(measures)

    def _event_loop(self) -> Iterator[Metric]:
        about = "The longest step of the event loop in the last one to two minutes, by clock."
        steps = GaugeMetricFamily("ducktail_event_loop_longest_step_seconds", about, labels=["clock"])
        longest = self._server.longest_step
        if longest is not None:
            steps.add_metric(["wall"], longest.wall_s)
            steps.add_metric(["cpu"], longest.cpu_s)
            yield steps

    def _connections(self, measures: Measures) -> Iterator[Metric]:
        server, counts = self._server, self._server.statement_log
        opened = _counter("connections_opened", "Clients that were let in.")
        opened.add_metric([], counts.opened)
        yield opened
        refused = _counter("connections_refused", "Clients that were not let in, by SQLSTATE.", "sqlstate")
        for sqlstate, count in sorted(counts.refusals().items()):
            refused.add_metric([sqlstate], count)
        yield refused
        yield _gauge("connections", "Connections now, with those that are not in yet.", server.connected)
        yield _gauge("connections_max", "Sessions that there may be.", server.connections_max)
        sessions = GaugeMetricFamily("ducktail_sessions", "Sessions now, by state.", labels=["state"])
        for state in sorted(measures.sessions):
            sessions.add_metric([state], measures.sessions[state])
        yield sessions
        about = "Age of the oldest open transaction; 0 if there is none."
        yield _gauge("oldest_transaction_seconds", about, measures.oldest_transaction_s)

    def _statements(self) -> Iterator[Metric]:
        about = "Statements that ended, by kind, and by outcome: ok or an SQLSTATE."
        statements = _counter("statements", about, "kind", "outcome")
        for (kind, outcome), count in sorted(self._server.statement_log.outcomes().items()):
            statements.add_metric([kind, outcome], count)
        yield statements
        probes = _counter("catalog_unanswered", "Statements about the catalog that it could not answer.")
        probes.add_metric([], self._server.statement_log.unanswered)
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
    yield _gauge("long_polls_max", "Reads that may wait for events.", measures.long_polls_max)
    woken = _counter("long_polls_woken", "How often events made such a read look.")
    woken.add_metric([], measures.long_polls_woken)
    yield woken
    yield _gauge("buffer_bytes", "What the buffers of all streams hold.", measures.buffer_bytes)
    yield _gauge("buffer_bytes_max", "What they may hold.", measures.buffer_bytes_max)
    failed = _counter("side_file_errors", "How often the side file could not be written.")
    failed.add_metric([], measures.side_file_errors)
    yield failed
    yield _gauge("wal_bytes", "Size of DuckDB's write-ahead log at the last look.", measures.wal_bytes)
    about = "Size of that log above which sessions that keep it from being checkpointed are ended."
    yield _gauge("wal_bytes_max", about, measures.wal_bytes_max)
    if measures.disk is not None:
        about = "Size of the database file at the last look."
        yield _gauge("database_file_bytes", about, measures.disk.file_bytes)
        about = "Free space of the file system with the database file, for this process."
        yield _gauge("disk_free_bytes", about, measures.disk.free_bytes)
        about = "Size of the file system with the database file."
        yield _gauge("disk_bytes", about, measures.disk.total_bytes)


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
    labels = ("schema", "stream", "group")
    about = "Events that a group has yet to process."
    lag = GaugeMetricFamily("ducktail_group_lag_events", about, labels=labels)
    about = "Members of a group that have been heard from within its session_timeout."
    members = GaugeMetricFamily("ducktail_group_members", about, labels=labels)
    about = "Age of the oldest event that a group has yet to process."
    seconds = GaugeMetricFamily("ducktail_group_lag_seconds", about, labels=labels)
    about = "Time until retention removes an event that a group has yet to process."
    headroom = GaugeMetricFamily("ducktail_group_headroom_seconds", about, labels=labels)
    about = "Partitions whose next event has been removed before a group has read it."
    gaps = GaugeMetricFamily("ducktail_group_gaps", about, labels=labels)
    for group in measures.groups:
        names = [group.schema, group.stream, group.name]
        lag.add_metric(names, group.lag_events)
        members.add_metric(names, group.members)
        gaps.add_metric(names, group.gaps)
        if group.lag_s is not None:
            seconds.add_metric(names, group.lag_s)
        if group.headroom_s is not None:
            headroom.add_metric(names, group.headroom_s)
    yield from (lag, seconds, members, headroom, gaps)


def _sinks(measures: Measures) -> Iterator[Metric]:
    labels = ("schema", "stream", "sink")
    requests = _counter("sink_requests", "Requests of a sink that ended, by outcome.", *labels, "outcome")
    events = _counter("sink_events_delivered", "Events of requests that a receiver accepted.", *labels)
    parked = _counter("sink_events_parked", "Events that a sink parked.", *labels)
    in_flight = GaugeMetricFamily("ducktail_sink_in_flight", "Requests under way.", labels=labels)
    state = GaugeMetricFamily("ducktail_sink_state", "1 for the state of a sink.", labels=[*labels, "state"])
    for sink in measures.sinks:
        names, counts = [sink.schema, sink.stream, sink.name], sink.counts
        for outcome in OUTCOMES:
            requests.add_metric([*names, outcome], counts.requests.get(outcome, 0))
        events.add_metric(names, counts.delivered_events)
        parked.add_metric(names, counts.parked_events)
        in_flight.add_metric(names, counts.in_flight)
        for name in (RUNNING, PAUSED, STOPPED):
            state.add_metric([*names, name], int(sink.state == name))
    yield from (requests, events, parked, in_flight, state)


def _sources(measures: Measures) -> Iterator[Metric]:
    labels = ("schema", "stream")
    events = _counter("source_events", "Events that were stored from a source.", *labels)
    transactions = _counter("source_transactions", "Transactions of a source that were stored.", *labels)
    lag_bytes = GaugeMetricFamily(
        "ducktail_source_lag_bytes", "Bytes of a source's log that are not read yet.", labels=labels
    )
    lag_seconds = GaugeMetricFamily(
        "ducktail_source_lag_seconds", "Time for which a source has been ahead.", labels=labels
    )
    state = GaugeMetricFamily(
        "ducktail_source_state", "1 for the state of a source.", labels=[*labels, "state"]
    )
    for source in measures.sources:
        names, status = [source.schema, source.stream], source.status
        events.add_metric(names, status.events)
        transactions.add_metric(names, status.transactions)
        if status.behind_bytes is not None:
            lag_bytes.add_metric(names, status.behind_bytes)
        if source.lag_s is not None:
            lag_seconds.add_metric(names, source.lag_s)
        for name in (RUNNING, PAUSED, STOPPED):
            state.add_metric([*names, name], int(source.state == name))
    yield from (events, transactions, lag_bytes, lag_seconds, state)


def _copies(measures: Measures) -> Iterator[Metric]:
    """The continuous copies; no metric of them without any."""
    if not measures.copies:
        return
    about = "Age of the oldest commit that may not be copied; 0 if all are."
    seconds = GaugeMetricFamily("ducktail_copy_lag_seconds", about, labels=["target"])
    about = "Bytes of DuckDB's log that are not copied."
    lag = GaugeMetricFamily("ducktail_copy_lag_bytes", about, labels=["target"])
    about = "Captured transactions that are not copied."
    transactions = GaugeMetricFamily("ducktail_copy_lag_transactions", about, labels=["target"])
    failing = GaugeMetricFamily("ducktail_copy_failing", "1 while a copy fails.", labels=["target"])
    copied = _counter("copy_bytes", "Bytes put into a target since the start.", "target")
    errors = _counter("copy_errors", "Passes of a copy that failed.", "target")
    about = "Time of the last verification of a copy, in seconds since 1970."
    verified = GaugeMetricFamily("ducktail_copy_verified_seconds", about, labels=["target"])
    about = "1 if the last verification of a copy found no damage, else 0."
    intact = GaugeMetricFamily("ducktail_copy_intact", about, labels=["target"])
    for report in measures.copies:
        name = [report.target]
        if report.lag_s is not None:
            seconds.add_metric(name, report.lag_s)
        lag.add_metric(name, report.lag_bytes)
        if report.lag_transactions is not None:
            transactions.add_metric(name, report.lag_transactions)
        failing.add_metric(name, int(report.status.error is not None))
        copied.add_metric(name, report.status.copied_bytes)
        errors.add_metric(name, report.status.errors)
        if report.verification is not None:
            verified.add_metric(name, report.verification.at_us / 1_000_000)
            intact.add_metric(name, int(report.verification.ok))
    yield from (seconds, lag, transactions, failing, copied, errors, verified, intact)
    waits = measures.commit_waits
    if waits is not None:
        yield _gauge(
            "synchronous_commits_waiting", "Commits that wait for synchronous copies.", waits.waiting
        )
        ended = _counter("synchronous_commits", "Waits of commits for synchronous copies that have ended.")
        ended.add_metric([], waits.waits)
        timeouts = _counter("synchronous_commit_timeouts", "Those that ended with 57R01.")
        timeouts.add_metric([], waits.timeouts)
        spent = _counter("synchronous_commit_seconds", "Time of these waits, in seconds.")
        spent.add_metric([], waits.waited_s)
        yield from (ended, timeouts, spent)


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


# Requests of scrapers and probes have a few hundred bytes, and arrive at once.
REQUEST_BYTES_MAX = 8192
TIMEOUT_S = 10.0
# The maximum number of connections, for one or two scrapers and a probe; beyond it the oldest is cut.
CONNECTIONS_MAX = 32
PLAIN = "text/plain; charset=utf-8"
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}

log = logging.getLogger("ducktail.gateway")


class WatchPort:
    """The HTTP port of a server.

    Args:
        server: the observed server.
        listener: a socket of `listen`; closed with the port.
    """

    def __init__(self, server: Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._metrics = Metrics(server)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ducktail-metrics")
        self._port: asyncio.Server | None = None
        self._talks: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def start(self) -> None:
        """Start to answer."""
        self._port = await asyncio.start_server(self._talk, sock=self._listener, limit=REQUEST_BYTES_MAX)
        host, port = self._listener.getsockname()[:2]
        log.info("metrics are served", extra=facts(host=host, port=port))

    async def close(self) -> None:
        """Stop to answer."""
        assert self._port is not None, "only a started port is closed"
        self._port.close()
        for talk in list(self._talks):
            talk.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: a request, its answer, the end."""
        task = asyncio.current_task()
        assert task is not None, "a connection is a task's"
        self._talks[task] = None
        if len(self._talks) > CONNECTIONS_MAX:
            oldest = next(iter(self._talks))
            del self._talks[oldest]
            oldest.cancel()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(await self._answered(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # A slow, disconnected or cut client is not answered. asyncio would log a cancelled task as an
            # error, and nobody awaits this task.
            pass
        finally:
            self._talks.pop(task, None)
            writer.transport.abort()  # The client does not receive what it has not taken by now.

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431)
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(400)
        if method not in (b"GET", b"HEAD"):
            return _response(405, more="Allow: GET, HEAD\r\n")
        answer = await self._page(target.partition(b"?")[0])
        # The answer to HEAD has the length of a body that is not sent.
        return answer if method == b"GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _page(self, path: bytes) -> bytes:
        if path == b"/live":
            return _response(200, b"live\n")
        if path == b"/ready":
            return _response(200, b"ready\n") if self._server.ready else _response(503, b"not ready\n")
        if path != b"/metrics":
            return _response(404)
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._metrics.text)
        return _response(200, text, CONTENT_TYPE)


def _response(status: int, body: bytes | None = None, kind: str = PLAIN, more: str = "") -> bytes:
    body = f"{REASONS[status].lower()}\n".encode() if body is None else body
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + body
