"""Learning of definitions: a node that joined, or was unavailable, copies topics and groups from others.

A definition exists on every node, but a node can only create it while it is available. One that arrives
later asks the others for their definitions, and creates the missing ones with the same identity, options
and owner. If several nodes have a definition, the topic's home is asked. A definition that exists only on
this node is kept, because this node may be the first one. Source: docs/design/cluster.md, "Definitions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ...engine.catalog.streams import key_of
from ...engine.errors import DucktailError, UndefinedGroup
from ...engine.quoting import fold
from ...engine.waiting import Wait, Waiting
from ..cluster.definitions import Facts, facts_of, group_options, topic_options
from ..cluster.shares import Share, ask_node, ask_nodes, epoch, in_cluster, other_nodes, own_share
from ..language import statements as st
from ..peers.remote import Learned, Path, still_missing
from ..peers.requests import Part
from ..results.results import Result
from ..session_state.context import Context
from ..statements.groups import create_group
from ..statements.streams import comment_on_stream, create_topic

T = TypeVar("T")

# Before all events.
BEGINNING = "1970-01-01 00:00:00+00"


def learn(session: Context) -> Waiting[Learned]:
    """Create the definitions of other nodes on this node, in a superuser's session outside a transaction."""
    cluster = session.database.cluster
    placement = cluster.placement
    learned = Learned()
    topics = yield from _shown(session, st.ShowTopics(), learned)
    groups = yield from _shown(session, st.ShowGroups(), learned)
    known = session.database.catalog
    missing = {path: nodes for path, nodes in topics.items() if key_of(*path) not in known.streams}
    yield from _make(session, missing, learned)
    lacking: dict[Path, list[str]] = {}
    for path, nodes in groups.items():
        stream = known.streams.get(key_of(*path[:2]))
        # A group of a stream on a table is that node's alone.
        there = path[:2] in topics and stream is not None and stream.topic
        if there and stream is not None and (stream.stream_id, fold(path[2])) not in known.groups:
            lacking[path] = nodes
    yield from _make(session, lacking, learned)
    cluster.learnt(placement.epoch, tuple(learned.told()))
    return learned


def _shown(session: Context, asked: st.Statement, learned: Learned) -> Waiting[dict[Path, list[str]]]:
    """The definitions that SHOW lists on the other nodes: path -> nodes that have it."""
    share = Share(asked, Part(epoch(session)), again=True)
    asked_of = [node for node in other_nodes(session) if node not in learned.away]
    outcomes = yield from ask_nodes(session, dict.fromkeys(asked_of, share))
    found: dict[Path, list[str]] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, DucktailError):
            learned.away[node] = outcome
            continue
        if isinstance(outcome, Exception):
            raise outcome
        for row in outcome.rows:
            path = tuple(str(value) for value in row[: 2 if isinstance(asked, st.ShowTopics) else 3])
            found.setdefault(path, []).append(node)
    return found


def _make(session: Context, missing: Mapping[Path, list[str]], learned: Learned) -> Waiting[None]:
    """Create definitions as they exist on other nodes."""
    placement = session.database.cluster.placement
    part = Part(placement.epoch)
    for path, nodes in sorted(missing.items()):
        try:
            home = placement.home(*path[:2]).name
            node = home if home in nodes else nodes[0]
            share = Share(_described(path), part, again=True)
            facts = facts_of((yield from ask_node(session, node, share)))
            uid, owner = facts["identity"], facts.get("owner")
            if owner is not None and owner.lower() not in session.database.rights.users:
                owner = None
            with own_share(session, replace(part, uid=uid, owner=owner)):
                yield from _made(session, path, facts)
            learned.made += 1
        except DucktailError as error:
            learned.failed[path] = error


def _described(path: Path) -> st.Statement:
    topic = st.Name(path[:2])
    return st.DescribeStream(topic) if len(path) == 2 else st.DescribeGroup(path[2], topic)


def _made(session: Context, path: Path, facts: Facts) -> Waiting[Result]:
    topic = st.Name(path[:2])
    if len(path) == 2:
        made = yield from create_topic(session, st.CreateTopic(topic, topic_options(facts)), ())
        if (comment := facts["comment"]) is not None:
            yield from comment_on_stream(session, st.CommentOnTopic(topic, comment), ())
        return made
    kind = str(facts["start"])
    # At which time is not known: before all that may be here, so that nothing is passed over.
    start = st.Place(kind, BEGINNING) if kind == "timestamp" else st.Place(kind)
    return (yield from create_group(session, st.CreateGroup(path[2], topic, start, group_options(facts)), ()))


def with_groups(session: Context, work: Callable[[], Waiting[T]]) -> Waiting[T]:
    """Run a client's statement; a consumer group that only other nodes have is created on this node first."""
    try:
        return (yield from work())
    except UndefinedGroup as error:
        if session.learn is None or not in_cluster(session):
            raise
        missing = error
    return (yield from look_again(session, missing, (UndefinedGroup,), work))


def look_again(
    session: Context,
    missing: DucktailError,
    kinds: tuple[type[DucktailError], ...],
    work: Callable[[], Waiting[T]],
    *,
    makes: bool = False,
) -> Waiting[T]:
    """Repeat an operation that did not find a name, after learning the present definitions of other nodes.

    Args:
        missing: the error of the first attempt, which had no effect if it did not find a name.
        kinds: the error classes of an unknown name.
        makes: True if the name is about to be created by a node that asks all others itself.

    Raises:
        DucktailError: the error of the operation.
        SerializationFailure: the name may exist on a node that has not answered, or this is a transaction
            block, which does not wait.
    """
    cluster, learn_all = session.database.cluster, session.learn
    if session.block.begun:
        if learn_all is not None and cluster.lacks:
            learn_all()
        raise still_missing(cluster, missing) from missing
    if learn_all is not None and cluster.lacks:
        # Where it is not lacking any more, that may have been this very moment.
        yield Wait(learning := learn_all())
        learning.result()
    try:
        return (yield from work())
    except kinds as error:
        if makes:
            raise
        raise still_missing(cluster, error) from error
