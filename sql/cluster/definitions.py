"""CREATE, ALTER and DROP of topics and of their groups on every node, and names of streams in a cluster.

First all nodes are asked for their definitions: an unavailable node is reported before anything changes.
Then the topic's home executes the statement, and then all the others at once, each in a transaction of its
own. If some nodes fail, the statement stays executed on the others, and the error names them: repeating it
completes the rest, because it gives a node that lacks a definition the one that the others have. Source:
docs/design/cluster.md, "Definitions".

CREATE STREAM and ALTER STREAM ... RENAME TO on a table require a name that no other node has. There is no
lock over nodes. A node that creates a name records this (`Membership.making`) before it asks the others,
and until the name exists: of two nodes that create one name at the same moment at least one learns of the
other, so they never both succeed. The order of the nodes ensures that one of them succeeds: the node with
the later name gives up at once, the other waits for that. Source: docs/design/cluster.md, "Lists".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...engine.catalog.streams import DEFAULT_PARTITIONS_WITH_KEY, Stream, key_of
from ...engine.errors import (
    CannotConnect,
    ConnectionLost,
    DependentObjects,
    DucktailError,
    DuplicateObject,
    InvalidParameterValue,
    LockNotAvailable,
    NotSupported,
    UndefinedObject,
    WrongObjectType,
    WrongState,
)
from ...engine.quoting import fold
from ...engine.waiting import Wait, Waiting
from ..language import statements as st
from ..language.clauses import Option, Options
from ..peers.requests import Part
from ..results.results import Result
from ..session_state.context import Context
from ..session_state.run_text import Values, text, value_of
from .listing import warn
from .shares import (
    Answer,
    Share,
    all_nodes,
    ask_nodes,
    do_on_nodes,
    epoch,
    named,
    other_nodes,
    owners_of,
)

Handler = Callable[[Context, st.Statement, Values], Waiting[Result]]
Facts = dict[str, str | None]
DONE_HINT = "What is done stands: run the statement again for the other nodes."

# What two nodes must say alike of a topic, and of a group.
TOPIC_FACTS = ("identity", "partitions", "retention", "retention_bytes", "buffer_bytes")
GROUP_FACTS = ("identity", "start", "on_gap", "on_park", "session_timeout")


@dataclass(frozen=True, slots=True)
class DefinitionKind:
    """A kind of definition: topic or group.

    Args:
        word: its name in messages.
        facts: the properties in its DESCRIBE that determine the definition.
    """

    word: str
    facts: tuple[str, ...]


TOPIC, GROUP = DefinitionKind("topic", TOPIC_FACTS), DefinitionKind("consumer group", GROUP_FACTS)


@dataclass(frozen=True, slots=True)
class Definition:
    """A topic or a group by its name.

    Args:
        describe: the DESCRIBE statement that returns it.
        home: the node on which it is created first.
        topic: schema and name of the topic.
    """

    kind: DefinitionKind
    name: str
    describe: st.Statement
    home: str
    topic: st.Name

    def __str__(self) -> str:
        return f'{self.kind.word} "{self.name}"'


def _refuse_block(session: Context, verb: str) -> None:
    if session.block.begun:
        raise NotSupported(
            f"{verb} in a transaction block is not supported in a cluster",
            detail="Each node does it in a transaction of its own.",
            hint="Run it by itself, in autocommit.",
        )


def _look(
    session: Context,
    thing: Definition,
    *,
    makes: bool = False,
    silent: dict[str, DucktailError] | None = None,
) -> Waiting[dict[str, Facts | None]]:
    """Node -> its definition; None if it has none.

    Args:
        makes: True for a CREATE, before which the definition need not exist.
        silent: receives unavailable nodes other than the home, which the result then omits.
    """
    share = Share(thing.describe, Part(epoch(session), makes=makes), again=True)
    outcomes = yield from ask_nodes(session, dict.fromkeys(all_nodes(session), share))
    found: dict[str, Facts | None] = {}
    for node in sorted(outcomes):
        outcome = outcomes[node]
        if isinstance(outcome, UndefinedObject):
            found[node] = None
        elif (
            silent is not None and node != thing.home and isinstance(outcome, CannotConnect | ConnectionLost)
        ):
            silent[node] = outcome
        elif isinstance(outcome, Exception):
            raise named(
                outcome,
                f"{thing} is unchanged: {outcome}",
                "The definition stands on all nodes: all of them must be there.",
            )
        else:
            found[node] = facts_of(outcome)
    for node, facts in found.items():
        # Of groups only those of topics are told with an identity.
        if facts is not None and (facts.get("table_name") is not None or "identity" not in facts):
            raise _on_a_table(thing, node, makes=makes)
    return found


def facts_of(described: Answer) -> Facts:
    """The properties in a DESCRIBE."""
    return {str(name): None if v is None else str(v) for name, v in described.rows}


def _on_a_table(thing: Definition, node: str, *, makes: bool) -> DucktailError:
    name = thing.topic.last
    detail = f'It is a stream on a table of node "{node}".'
    if makes:
        hint = "A topic is on all nodes: it wants a name that no node has."
        return DuplicateObject(f'stream "{name}" already exists', detail=detail, hint=hint)
    return WrongObjectType(f'"{name}" is not a topic', detail=detail)


def _agreed(thing: Definition, found: Mapping[str, Facts | None]) -> Facts | None:
    """The definition on which all nodes that have one agree."""
    there = [(node, facts) for node, facts in found.items() if facts is not None]
    for node, facts in there[1:]:
        first, known = there[0]
        for name in thing.kind.facts:
            if facts.get(name) != known.get(name):
                raise WrongState(
                    f'nodes "{first}" and "{node}" disagree about {thing}',
                    detail=f"Its {name} is {known.get(name)} on the one and {facts.get(name)} on the other.",
                    hint=f"They are two of one name: DROP {thing.kind.word.upper()} ... CASCADE drops both."
                    if name == "identity"
                    else f"ALTER {thing.kind.word.upper()} ... SET makes them alike.",
                )
    return there[0][1] if there else None


def _do(
    session: Context, thing: Definition, statement: st.Statement, part: Part, nodes: Sequence[str]
) -> Waiting[None]:
    """Execute a statement on these nodes, the home first."""
    yield from do_on_nodes(session, str(thing), nodes, thing.home, Share(statement, part), DONE_HINT)


def _change(session: Context, thing: Definition, statement: st.Statement) -> Waiting[None]:
    """Change a definition on every node; all nodes must have it."""
    found = yield from _look(session, thing)
    _check_everywhere(thing, found)
    yield from _do(session, thing, statement, Part(epoch(session)), list(found))


def _check_everywhere(thing: Definition, found: Mapping[str, Facts | None]) -> None:
    """Refuse to change a definition that some nodes lack, or have with another identity."""
    identities = {node: facts["identity"] for node, facts in found.items() if facts is not None}
    if len(set(identities.values())) > 1:
        _agreed(thing, found)
    missing = [node for node in found if node not in identities]
    if missing and identities:
        raise WrongState(
            f'node "{missing[0]}" does not have {thing}, which node "{next(iter(identities))}" has',
            hint=f"CREATE {thing.kind.word.upper()} IF NOT EXISTS gives it to the nodes that lack it.",
        )


def _drop(
    session: Context, thing: Definition, statement: st.Statement, check: DropCheck | None = None
) -> Waiting[bool]:
    """Drop a definition on all nodes that have it; False if none has.

    Args:
        check: may refuse the drop, given these nodes.
    """
    found = yield from _look(session, thing)
    nodes = [node for node, facts in found.items() if facts is not None]
    if nodes and check is not None:
        yield from check(session, thing, nodes)
    yield from _do(session, thing, statement, Part(epoch(session)), nodes)
    return bool(nodes)


DropCheck = Callable[[Context, Definition, Sequence[str]], Waiting[None]]


# Topics.


def _topic(session: Context, parts: tuple[str, ...]) -> Definition:
    schema, name = session.names.new_name(parts)
    whole = st.Name((schema, name))
    home = session.database.cluster.placement.home(schema, name).name
    return Definition(TOPIC, name, st.DescribeStream(whole), home, whole)


def _topic_here(session: Context, name: st.Name) -> Waiting[Stream]:
    """The topic that this node has under a name."""
    if session.names.find_stream(name.parts) is None:
        thing = _topic(session, name.parts)
        found = yield from _look(session, thing)
        _check_everywhere(thing, found)
    return session.names.stream(name.parts, name.position, "topic")


def create_topic(
    session: Context, made: st.CreateTopic, parameters: Values, plain: Handler
) -> Waiting[Result]:
    """CREATE TOPIC."""
    _refuse_block(session, "CREATE TOPIC")
    thing = _topic(session, made.name.parts)
    # A partition without an owner is told before anything is made.
    partitions = made.options.integer("partitions") or DEFAULT_PARTITIONS_WITH_KEY
    owners_of(session, *session.names.new_name(made.name.parts), partitions)
    statement = replace(made, name=thing.topic)
    silent: dict[str, DucktailError] = {}
    found = yield from _look(session, thing, makes=True, silent=silent)
    nodes = _missing(session, thing, found, made.if_not_exists)
    if nodes:
        known = _agreed(thing, found)
        if known is not None:
            statement = replace(statement, options=_as_there(made, thing, known))
        uid = str(uuid.uuid4()) if known is None else known["identity"]
        part = Part(epoch(session), uid=uid, fresh=known is None, without=tuple(silent))
        for node, error in silent.items():
            session.notices.add(
                f'topic "{made.name.parts[-1]}" is not on node "{node}" yet, which is away',
                severity="WARNING",
                sqlstate=error.sqlstate,
                detail=f"It asks for it when it is back. {error.message[:1].upper()}{error.message[1:]}.",
            )
        yield from _do(session, thing, replace(statement, if_not_exists=False), part, nodes)
    return Result.command(st.tag_of(made))


def _missing(
    session: Context, thing: Definition, found: Mapping[str, Facts | None], if_not_exists: bool
) -> list[str]:
    """The nodes that lack a definition."""
    _agreed(thing, found)
    missing = [node for node, facts in found.items() if facts is None]
    if not missing:
        if not if_not_exists:
            raise DuplicateObject(f"{thing} already exists")
        session.notices.add(f"{thing} already exists, skipping", sqlstate="42710")
    return missing


def _as_there(made: st.CreateTopic, thing: Definition, known: Facts) -> Options:
    """The options of a topic that other nodes have."""
    asked = made.options.integer("partitions")
    if asked is not None and str(asked) != known["partitions"] and not made.if_not_exists:
        raise DuplicateObject(
            f'topic "{thing.name}" already exists',
            detail=f"It has {known['partitions']} partitions, and not {asked}.",
        )
    return topic_options(known)


def topic_options(known: Facts) -> Options:
    """The options with which a topic is created as it is on another node."""
    given = [Option(name, int(known[name] or 0)) for name in ("partitions", "buffer_bytes")]
    given.append(Option("retention", _retention_ms(known)))
    if known["retention_bytes"] is not None:
        given.append(Option("retention_bytes", int(known["retention_bytes"])))
    return Options(tuple(given))


def _retention_ms(known: Facts) -> int | None:
    us = known["retention_us"]
    return None if us is None else int(us) // 1000


def change_topic(
    session: Context,
    asked: st.SetStream | st.CommentOnStream | st.RenameStream,
    parameters: Values,
    plain: Handler,
) -> Waiting[Result]:
    """ALTER TOPIC ... SET, ... RENAME TO, COMMENT ON TOPIC."""
    comments = isinstance(asked, st.CommentOnStream)
    if comments and session.block.begun:
        return (yield from plain(session, asked, parameters))  # Which refuses it, as it does anywhere.
    _refuse_block(session, "ALTER TOPIC")
    stream = yield from _topic_here(session, asked.name)
    thing = _topic(session, (stream.schema, stream.name))
    if isinstance(asked, st.RenameStream):
        _check_same_owners(session, stream, asked.new)
    yield from _change(session, thing, replace(asked, name=thing.topic))
    return Result.command(st.tag_of(asked))


def _check_same_owners(session: Context, stream: Stream, name: str) -> None:
    """Refuse a new name of a topic to which the placement assigns other owners."""
    before = owners_of(session, stream.schema, stream.name, stream.partitions)
    after = owners_of(session, stream.schema, name, stream.partitions)
    if before != after:
        raise NotSupported(
            f'topic "{stream.name}" cannot be called "{name}": that name has other owners',
            hint="Events do not move with a name: write the new name into cluster.toml with the same owners.",
        )


def drop_topic(
    session: Context, dropped: st.DropStream, parameters: Values, plain: Handler
) -> Waiting[Result]:
    """DROP TOPIC: on all nodes that have it, whichever identity it has there."""
    _refuse_block(session, "DROP TOPIC")
    thing = _topic(session, dropped.name.parts)
    # Each node looks once more as it drops its own, under its writer lock: what is published meanwhile stays.
    statement = replace(dropped, name=thing.topic, if_exists=True)
    if not (yield from _drop(session, thing, statement, None if dropped.cascade else _check_all_read)):
        return (yield from plain(session, dropped, parameters))
    return Result.command(st.tag_of(dropped))


def _check_all_read(session: Context, thing: Definition, nodes: Sequence[str]) -> Waiting[None]:
    """Refuse to drop a topic with events that a group has not read on some node."""
    share = Share(st.ShowGroups(thing.topic), Part(epoch(session)))
    for node, answer in (yield from ask_nodes(session, dict.fromkeys(nodes, share))).items():
        if isinstance(answer, Exception):
            raise answer
        for row in answer.rows:
            if int(str(row[7])):
                raise DependentObjects(
                    f'cannot drop topic "{thing.name}" because consumer group "{row[2]}" has {row[7]} '
                    f'unread events on node "{node}"',
                    hint="DROP TOPIC ... CASCADE drops the groups with their offsets as well.",
                )


# Groups.


def _group(session: Context, stream: st.Name, name: str) -> Definition | None:
    """A group of a topic; None for a group of a stream on a table."""
    found = session.names.stream(stream.parts, stream.position)
    if not found.topic:
        return None
    whole = st.Name((found.schema, found.name))
    home = session.database.cluster.placement.home(found.schema, found.name).name
    return Definition(GROUP, name, st.DescribeGroup(name, whole), home, whole)


def create_group(
    session: Context, made: st.CreateGroup, parameters: Values, plain: Handler
) -> Waiting[Result]:
    """CREATE CONSUMER GROUP on a topic: each owner determines the start in its own partitions."""
    thing = _group(session, made.stream, text(made.group, parameters))
    if thing is None:
        return (yield from plain(session, made, parameters))
    _refuse_block(session, "CREATE CONSUMER GROUP on a topic")
    start = made.start
    if start.kind == "after":
        raise InvalidParameterValue(
            f'START AFTER has no meaning on topic "{thing.topic.last}": '
            "its partitions have LSNs of their own",
            hint="Make the group, and SEEK it TO AFTER a map of LSNs by partition.",
        )
    if start.kind == "timestamp":
        assert start.value is not None
        start = st.Place("timestamp", str(value_of(start.value, parameters)))
    found = yield from _look(session, thing)
    nodes = _missing(session, thing, found, made.if_not_exists)
    if nodes:
        known = _agreed(thing, found)
        uid = str(uuid.uuid4()) if known is None else known["identity"]
        statement = replace(made, stream=thing.topic, group=thing.name, start=start, if_not_exists=False)
        if known is not None:
            statement = replace(statement, start=_start_there(known, start), options=group_options(known))
        yield from _do(session, thing, statement, Part(epoch(session), uid=uid), nodes)
    return Result.command(st.tag_of(made))


def _start_there(known: Facts, asked: st.Place) -> st.Place:
    """The start of a group that other nodes have; one at a time is that of the statement."""
    kind = str(known["start"])
    return st.Place(kind) if kind in ("earliest", "latest") else asked


def group_options(known: Facts) -> Options:
    """The options with which a group is created as it is on another node."""
    timeout = Option("session_timeout", int(known["session_timeout_ms"] or 0))
    return Options((*(Option(name, known[name]) for name in ("on_gap", "on_park")), timeout))


def set_group(session: Context, asked: st.SetGroup, parameters: Values, plain: Handler) -> Waiting[Result]:
    """ALTER CONSUMER GROUP ... SET."""
    thing = _group(session, asked.stream, text(asked.group, parameters))
    if thing is None:
        return (yield from plain(session, asked, parameters))
    _refuse_block(session, "ALTER CONSUMER GROUP on a topic")
    yield from _change(session, thing, replace(asked, stream=thing.topic, group=thing.name))
    return Result.command(st.tag_of(asked))


def drop_group(
    session: Context, dropped: st.DropGroup, parameters: Values, plain: Handler
) -> Waiting[Result]:
    """DROP CONSUMER GROUP."""
    thing = _group(session, dropped.stream, text(dropped.group, parameters))
    if thing is None:
        return (yield from plain(session, dropped, parameters))
    _refuse_block(session, "DROP CONSUMER GROUP on a topic")
    statement = replace(dropped, stream=thing.topic, group=thing.name, if_exists=True)
    if not (yield from _drop(session, thing, statement)):
        return (yield from plain(session, dropped, parameters))
    return Result.command(st.tag_of(dropped))


# Names of streams on tables.

# How often a node is asked again that makes the same name.
AGAIN_S = 0.05


def create_stream(
    session: Context, made: st.CreateStream, parameters: tuple[object, ...], plain: Handler
) -> Waiting[Result]:
    """CREATE STREAM."""
    if session.block.begun or session.names.find_stream(made.name.parts) is not None:
        return (yield from plain(session, made, parameters))
    place = session.names.new_name(made.name.parts)
    return (yield from named_anew(session, *place, lambda: plain(session, made, parameters)))


def rename_stream(
    session: Context, asked: st.RenameStream, parameters: tuple[object, ...], plain: Handler
) -> Waiting[Result]:
    """ALTER STREAM ... RENAME TO."""
    stream = session.names.find_stream(asked.name.parts)
    if session.block.begun or stream is None or fold(stream.name) == fold(asked.new):
        return (yield from plain(session, asked, parameters))
    return (
        yield from named_anew(session, stream.schema, asked.new, lambda: plain(session, asked, parameters))
    )


def named_anew(
    session: Context, schema: str, name: str, work: Callable[[], Waiting[Result]]
) -> Waiting[Result]:
    """Execute a statement that gives a stream this name, if no other node has the name.

    Raises:
        DuplicateObject: another node has the name, or is creating it.
        LockNotAvailable: another node has been creating it for longer than `lock_timeout`.
    """
    cluster, clock = session.database.cluster, session.database.clock
    ends_s = clock.monotonic_s() + session.block.lock_timeout_ms / 1000
    with cluster.making(key_of(schema, name)):
        while busy := (yield from _others_making(session, schema, name)):
            if min(busy) < cluster.placement.local.name:
                raise DuplicateObject(f'stream "{name}" is being made on node "{min(busy)}"', hint=_HINT)
            if clock.monotonic_s() > ends_s:
                raise LockNotAvailable(f'stream "{name}" is being made on node "{min(busy)}"')
            yield Wait(Future(), AGAIN_S)
        return (yield from work())


_HINT = "A stream is known to all nodes by its name."


def _others_making(session: Context, schema: str, name: str) -> Waiting[list[str]]:
    """The nodes that are creating this name as well; none has it yet."""
    described = st.DescribeStream(st.Name((schema, name)))
    share = Share(described, Part(epoch(session), makes=True), again=True)
    outcomes = yield from ask_nodes(session, dict.fromkeys(other_nodes(session), share))
    found = []
    for node, outcome in outcomes.items():
        if isinstance(outcome, UndefinedObject):
            continue
        if isinstance(outcome, LockNotAvailable):
            found.append(node)
        elif isinstance(outcome, DucktailError):
            message = f'cannot tell whether node "{node}" has a stream "{name}" as well: {outcome}'
            warn(session, message, outcome, "A name that two nodes have is 55000 when a third one uses it.")
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            raise DuplicateObject(
                f'stream "{name}" already exists', detail=f'It is on node "{node}".', hint=_HINT
            )
    return found


def check_not_making(session: Context, name: st.Name) -> None:
    """Check that this node is not creating a name that another node is about to create.

    Raises:
        LockNotAvailable.
    """
    if session.part is None or not session.part.makes or len(name.parts) != 2:
        return
    cluster = session.database.cluster
    if session.names.find_stream(name.parts) is None and cluster.is_making(key_of(*name.parts)):
        raise LockNotAvailable(f'stream "{name}" is being made on node "{cluster.placement.local.name}"')
