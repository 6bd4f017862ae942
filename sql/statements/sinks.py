"""CREATE, ALTER, DROP, PAUSE and RESUME SINK.

Each is part of its transaction: the server's runners follow at COMMIT. The consumer group is created and
dropped with its sink, in the same transaction; its owner is the owner of the sink, as whom the sink reads.
Source: docs/sinks.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from secrets import token_hex

from ...engine import rights_changes
from ...engine.catalog import rabbitmq_url, rights
from ...engine.catalog.sinks import KAFKA, KINDS, PAUSED, RABBITMQ, RUNNING, STOPPED, WEBHOOK, Sink, Value
from ...engine.catalog.streams import DEFAULT_SESSION_TIMEOUT_MS, Group, Stream
from ...engine.definitions import groups, sinks
from ...engine.errors import (
    DuplicateObject,
    InsufficientPrivilege,
    InvalidParameterValue,
    NotSupported,
    UndefinedGroup,
    UndefinedObject,
    WrongState,
)
from ...engine.log.envelope_changes import clashing
from ...engine.log.log import EVENT_NAMES
from ...engine.networks import address_of, is_allowed, is_public, networks_of
from ...engine.transactions.offset_moves import lock_group
from ...engine.transactions.transaction import Transaction
from ...engine.waiting import Waiting
from ..cluster.shares import is_placed
from ..language import statements as st
from ..language.clauses import Options
from ..language.statements.sinks import hosts_of
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values
from .groups import check_on_gap, check_on_park, own_group, start_position, with_writer_lock
from .runners import runs

# The options that CREATE SINK passes to the consumer group.
_OF_GROUP = ("on_gap", "on_park", "session_timeout")
# A sink has a publisher for each partition, and RabbitMQ remembers 255 of a stream.
RABBITMQ_PARTITIONS_MAX = 200
REASON_CHARS_MAX = 1000
# Of the part of delivery ids that no other sink has.
UID_BYTES = 8


@runs(st.CreateSink)
def create_sink(session: Context, made: st.CreateSink, parameters: Values) -> Waiting[Result]:
    """CREATE SINK: a consumer group of its name, and the sink."""
    stream = session.names.stream(made.stream.parts, made.stream.position)
    _check_here(session, stream, made.receiver)
    if made.start.kind == "snapshot":
        raise NotSupported(
            "START SNAPSHOT is not supported for a sink",
            hint="Make the stream with snapshot = 'initial', or the sink with on_gap = 'snapshot'.",
        )
    on_gap, on_park = made.options.text("on_gap") or "error", made.options.text("on_park") or "event"
    check_on_park(stream, on_park)
    check_on_gap(session, stream, on_gap, on_park)
    timeout_ms = made.options.integer("session_timeout") or DEFAULT_SESSION_TIMEOUT_MS
    kind, target = made.receiver.kind, made.receiver.address
    options, secrets = _divided(stream, kind, made.options, _placed(made.receiver, {}), made.receiver.secrets)
    _check_encrypted(kind, target, options)
    start = start_position(session, stream, made.start, parameters)

    def work(transaction: Transaction) -> Waiting[None]:
        present = yield from with_writer_lock(session, transaction, stream)
        groups.create_group(
            session.database, transaction, present, made.name, start, on_gap, timeout_ms, on_park, None
        )
        own_group(session, transaction, present, made.name)
        group = groups.find_group(session.database.catalog, present, made.name, transaction)
        now_us = session.database.clock.now_us()
        uid = token_hex(UID_BYTES)
        sink = Sink(group.group_id, uid, kind, target, options, secrets, changed_us=now_us)
        sinks.create_sink(session.database, transaction, sink)

    try:
        yield from session.block.unit(work)
    except DuplicateObject:
        if not made.if_not_exists or session.block.begun:
            raise
        session.notices.add(f'sink "{made.name}" already exists, skipping', sqlstate="42710")
    return Result.command(st.tag_of(made))


def _check_here(session: Context, stream: Stream, receiver: st.Receiver | None) -> None:
    """Refuse a sink that this server cannot run, and a receiver that it would not connect to."""
    if is_placed(session, stream):
        raise NotSupported(
            f'a sink on topic "{stream.name}" of a cluster is not supported',
            hint="Make it on a stream, or let a program read the topic as a consumer group.",
        )
    if receiver is None:
        return
    kind = KINDS[receiver.kind]
    if importlib.util.find_spec(kind.library) is None:
        raise NotSupported(
            f"a {receiver.kind} sink needs the package {kind.library}",
            hint=f"pip install 'ducktail[{kind.extra}]'",
        )
    allowed = networks_of(session.database.settings.allowed_networks)
    for address in map(address_of, hosts_of(receiver)):
        if address is not None and not is_public(address) and not is_allowed(address, allowed):
            raise InsufficientPrivilege(
                f"{address} is not a public address",
                hint="The setting allow_network names networks to which sinks may send nevertheless.",
            )


def _placed(receiver: st.Receiver, options: dict[str, Value]) -> dict[str, Value]:
    """The options of a sink with the place at its receiver."""
    place = KINDS[receiver.kind].place
    return options if place is None else {**options, place: receiver.place}


def _divided(
    stream: Stream, kind: str, given: Options, present: dict[str, Value], secrets: Mapping[str, str]
) -> tuple[dict[str, Value], dict[str, str]]:
    """The options of a sink after a statement, without its secrets, and these."""
    options, kept = dict(present), dict(secrets)
    defaults, secret = KINDS[kind].defaults, KINDS[kind].secrets
    for option in given:
        if option.name in secret:
            kept[option.name] = str(option.value or "")
        elif option.name in defaults:
            options[option.name] = option.value
        elif option.name not in _OF_GROUP:
            known = ", ".join(
                (*_OF_GROUP, *(name for name in defaults if name != KINDS[kind].place), *secret)
            )
            raise InvalidParameterValue(
                f'unknown option "{option.name}" of a {kind} sink: known are {known}',
                position=given.position(option.name),
            )
    _check_options(stream, kind, options)
    if kind == RABBITMQ and stream.partitions > RABBITMQ_PARTITIONS_MAX:
        raise NotSupported(
            f'stream "{stream.name}" has {stream.partitions} partitions, and a rabbitmq sink can have '
            f"{RABBITMQ_PARTITIONS_MAX}",
            detail="RabbitMQ remembers the last publishing ids of 255 publishers of a stream.",
        )
    return options, {name: value for name, value in kept.items() if value}


def _check_options(stream: Stream, kind: str, options: dict[str, Value]) -> None:
    """Refuse options that exclude each other, and columns that no event has."""
    found = {**KINDS[kind].defaults, **options}
    columns, envelope = found["columns"], found["envelope"]
    if columns is not None and envelope != "events":
        raise InvalidParameterValue(
            f"columns are not for the envelope '{envelope}'", hint="Leave columns out, or set it to 'all'."
        )
    assert columns is None or isinstance(columns, tuple)
    unknown = [name for name in columns or () if name not in EVENT_NAMES]
    if unknown:
        raise InvalidParameterValue(
            f'an event has no column "{unknown[0]}"', hint=f"It has {', '.join(EVENT_NAMES)}."
        )
    if envelope == "changes":
        taken = clashing(stream.columns)
        if stream.topic or stream.several is not None or taken is not None:
            raise NotSupported(
                f"the envelope 'changes' is not supported for {stream.kind} \"{stream.name}\"",
                detail="It has the columns of one table, none with the name of one of the envelope's.",
            )
    if kind == WEBHOOK and envelope == "cloudevents_binary" and found["batch"] != 1:
        raise InvalidParameterValue(
            "a request in the binary mode of CloudEvents has one event", hint="Write batch = 1 as well."
        )
    if kind == KAFKA and "ssl" not in str(found["security_protocol"]) and found["ssl_ca"] is not None:
        raise InvalidParameterValue(
            "ssl_ca needs an encrypted connection",
            hint="Write security_protocol = 'ssl' or 'sasl_ssl' as well.",
        )
    first, most = found["backoff"], found["backoff_max"]
    assert isinstance(first, int) and isinstance(most, int)
    if first > most:
        raise InvalidParameterValue("backoff is longer than backoff_max")


def _check_encrypted(kind: str, target: str, options: Mapping[str, Value]) -> None:
    """Refuse authorities for brokers of RabbitMQ without TLS."""
    if kind != RABBITMQ or options.get("ssl_ca") is None:
        return
    found = rabbitmq_url.parsed(target)
    if found is not None and not found[0].tls:
        raise InvalidParameterValue(
            "ssl_ca needs an encrypted connection", hint=f"Write {rabbitmq_url.TLS_SCHEME}://... as the URL."
        )


def _change(
    session: Context,
    asked: st.AlterSink | st.DropSink | st.PauseSink | st.ResumeSink,
    do: Callable[[Transaction, Stream, Group, Sink], None],
) -> Waiting[None]:
    """Change a sink in a transaction that holds its group and the writer lock."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)

    def work(transaction: Transaction) -> Waiting[None]:
        present = yield from with_writer_lock(session, transaction, stream)
        group, sink = _owned(session, present, asked.name, transaction)
        yield from lock_group(session.database.offsets, transaction, group, session.block.lock_timeout_ms)
        do(transaction, present, group, sink)

    yield from session.block.unit(work)


def _owned(
    session: Context, stream: Stream, name: str, transaction: Transaction | None
) -> tuple[Group, Sink]:
    """A stream's sink by name with its group, for its owner."""
    try:
        found = session.access.group(stream, name, transaction, use=False)
    except UndefinedGroup:
        raise sinks.missing_sink(stream, name) from None
    sink = sinks.find_sink(session.database.catalog, found, transaction)
    if sink is None:
        raise sinks.missing_sink(stream, name)
    return session.access.owned_group(stream, name, transaction), sink


@runs(st.AlterSink)
def alter_sink(session: Context, asked: st.AlterSink, parameters: Values) -> Waiting[Result]:
    """ALTER SINK: another receiver, other options; its next request has them."""
    stream = session.names.stream(asked.stream.parts, asked.stream.position)
    _check_here(session, stream, asked.receiver)
    of_group = [option.name for option in asked.options if option.name in _OF_GROUP]
    if of_group:
        raise InvalidParameterValue(
            f'"{of_group[0]}" is an option of the consumer group of the sink',
            hint="ALTER CONSUMER GROUP g ON s SET (...) changes it.",
            position=asked.options.position(of_group[0]),
        )

    def change(transaction: Transaction, present: Stream, group: Group, sink: Sink) -> None:
        options, secrets, target = dict(sink.options), sink.secrets, sink.target
        if asked.receiver is not None:
            if asked.receiver.kind != sink.kind:
                raise WrongState(
                    f'sink "{asked.name}" is a {sink.kind} sink',
                    hint="DROP SINK and CREATE SINK change its kind.",
                )
            target, options = asked.receiver.address, _placed(asked.receiver, options)
            if sink.kind == RABBITMQ:
                # Another broker is not told the password of this one.
                secrets = asked.receiver.secrets
        options, secrets = _divided(present, sink.kind, asked.options, options, secrets)
        _check_encrypted(sink.kind, target, options)
        changed = replace(sink, target=target, options=options, secrets=secrets)
        sinks.set_sink(session.database, transaction, changed)

    yield from _change(session, asked, change)
    return Result.command(st.tag_of(asked))


@runs(st.DropSink)
def drop_sink(session: Context, dropped: st.DropSink, parameters: Values) -> Waiting[Result]:
    """DROP SINK: the sink and its consumer group."""
    stream = session.names.stream(dropped.stream.parts, dropped.stream.position)
    if dropped.if_exists:
        try:
            _owned(session, stream, dropped.name, session.block.transaction)
        except UndefinedObject:
            session.notices.add(f'sink "{dropped.name}" does not exist, skipping')
            return Result.command(st.tag_of(dropped))

    def drop(transaction: Transaction, present: Stream, group: Group, sink: Sink) -> None:
        sinks.drop_sink(session.database, transaction, group)
        if session.database.rights.users:
            item = rights.group_item(present.schema, present.name, group.name)
            rights_changes.add(session.database, transaction, rights_changes.Forget(item))

    yield from _change(session, dropped, drop)
    return Result.command(st.tag_of(dropped))


@runs(st.PauseSink)
def pause_sink(session: Context, asked: st.PauseSink, parameters: Values) -> Waiting[Result]:
    """PAUSE SINK: it sends nothing from COMMIT on, until RESUME SINK."""
    yield from _change(session, asked, lambda t, present, group, sink: set_state(session, t, sink, PAUSED))
    return Result.command(st.tag_of(asked))


@runs(st.ResumeSink)
def resume_sink(session: Context, asked: st.ResumeSink, parameters: Values) -> Waiting[Result]:
    """RESUME SINK: it continues behind its group's committed LSNs, after a pause or a stop."""
    yield from _change(session, asked, lambda t, present, group, sink: set_state(session, t, sink, RUNNING))
    return Result.command(st.tag_of(asked))


def set_state(
    session: Context, transaction: Transaction, sink: Sink, state: str, reason: str | None = None
) -> None:
    """Set the state of a sink in a transaction that holds the writer lock."""
    if sink.state != state:
        now_us = session.database.clock.now_us()
        changed = replace(sink, state=state, reason=reason, changed_us=now_us)
        sinks.set_sink(session.database, transaction, changed)


def stop_sink(session: Context, sink: Sink, reason: str) -> Waiting[None]:
    """Stop a sink that cannot continue, unless a user has changed it in the meantime.

    It is stored, so that a restart of the server does not begin again what needs a user.
    """

    def work(transaction: Transaction) -> Waiting[None]:
        yield from session.database.transactions.lock_for(transaction, session.block.lock_timeout_ms)
        present = session.database.catalog.sinks.get(sink.group_id)
        if present == sink:
            set_state(session, transaction, present, STOPPED, reason[:REASON_CHARS_MAX])

    yield from session.block.unit(work)
