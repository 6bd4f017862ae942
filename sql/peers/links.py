"""A session's own links to other nodes: opened at the first use, kept until the session ends.

A read position without MEMBER belongs to the session that has read, which is the one at the owner, so that
session must stay the same. Settings of this session that affect answers are sent with the next request after
a change.
Source: docs/design/cluster.md, "Forwarding".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace

from ...engine.errors import CannotConnect, ConnectionLost, DucktailError
from ...engine.placement import membership
from ...engine.placement.placement import Node
from ...engine.waiting import Wait, Waiting
from ..results.notices import Notices
from ..results.results import ResultColumn
from ..settings import ANNOTATION, DEFAULT_READ_ONLY, TRACE, Variables
from .remote import Key, Link, Remote, Reply
from .requests import FAILED, FETCH, Request

# Settings that go along: those by which an answer, or how long it is waited for, would be another.
CARRIED = (
    "application_name",
    "timezone",
    "search_path",
    "statement_timeout",
    "lock_timeout",
    "integer_division",
    "default_null_order",
    DEFAULT_READ_ONLY,
    ANNOTATION,
    TRACE,
)


class Links:
    """The links of one session; see the module.

    Args:
        remote: the other nodes, as the server knows them.
        user: the user whose rights the session has; None for all rights.
        variables, notices: those of the session.
        trace: assigns a trace identifier, by which the statements are found in the logs of all nodes, if the
            client has set none.
    """

    def __init__(
        self,
        remote: Remote,
        user: str | None,
        variables: Variables,
        notices: Notices,
        trace: Callable[[], None],
    ) -> None:
        self.remote = remote
        self._user = user
        self._variables = variables
        self._notices = notices
        self._trace = trace
        self._links: dict[str, Link] = {}
        self._sent: dict[str, dict[str, str]] = {}
        # (node, number of an answer) -> where the rest of it comes from. It may be a link of an older
        # placement, which ends with its last answer.
        self._open: dict[tuple[str, int], Link] = {}
        self._numbers = itertools.count(1)
        # Nodes whose streams the open transaction has read.
        self._read: set[str] = set()
        # (group, member) of reads that other nodes may have answered, and whose answers did not come.
        self.unsure: set[tuple[str, str]] = set()
        # What no other node has, as the present statement was told.
        self.absent: frozenset[Key] = frozenset()
        # (node, query) -> its columns, of queries that the statement which is being prepared has in it.
        self.described: dict[tuple[str, str], tuple[ResultColumn, ...]] = {}

    def number(self) -> int:
        """A number for an answer, not used again in this session."""
        return next(self._numbers)

    def goes_on(self, node: Node, portal: int) -> None:
        """Keep the link of a node's incomplete answer, on which the rest is requested."""
        self._open[node.name, portal] = self._links[node.name]

    def ended(self, node: Node, portal: int) -> None:
        """Release the link of an answer that is complete or discarded."""
        link = self._open.pop((node.name, portal), None)
        if link is not None and link is not self._links.get(node.name) and link not in self._open.values():
            link.release()

    def ask(
        self, node: Node, request: Request, *, again: bool = False, changes: bool = False
    ) -> Waiting[Reply]:
        """Send a request to a node and wait for its reply.

        Args:
            again: True if the request may be sent again when an existing connection is found broken, because
                it changes nothing or is idempotent.
            changes: True if the request changes something: a refusal of the second attempt may mean that the
                first succeeded.

        Raises:
            CannotConnect, ConnectionRefused: nothing was executed.
            ConnectionLost: the outcome is unknown.
            DucktailError: the error that the node has answered.
        """
        known = self._links.get(node.name)
        fresh = known is None or known.lost
        cluster = self.remote.cluster
        try:
            try:
                reply = yield from self._asked(node, request)
            except ConnectionLost as lost:
                if fresh or not again:
                    raise
                try:
                    reply = yield from self._asked(node, request)
                except CannotConnect:
                    # What was sent first may be done, or be done yet: that is not to be told as not begun.
                    raise lost from None
                except DucktailError as error:
                    if changes:
                        # It may be refused because the first one was done.
                        raise lost from error
                    raise
        except DucktailError as error:
            if error.sqlstate.startswith("08"):
                cluster.count(membership.FAILED, node.name, error.sqlstate)
            raise
        cluster.count(membership.FORWARDED, node.name)
        for notice in reply.notices:
            self._notices.add(
                notice.message,
                severity=notice.severity,
                sqlstate=notice.sqlstate,
                detail=notice.detail,
                hint=notice.hint,
            )
        return reply

    def _asked(self, node: Node, request: Request) -> Waiting[Reply]:
        if not self._variables[TRACE]:
            self._trace()
        link = self._open.get((node.name, request.portal)) if request.op == FETCH else None
        if link is None:
            link = yield from self._link(node)
        current = link is self._links.get(node.name)
        # One that is there for the rest of an answer alone has the settings with which that began.
        sent = self._sent[node.name] if current else {}
        values = self._variables.values
        changed = {name: values[name] for name in CARRIED if current and sent.get(name) != values[name]}
        future = link.ask((replace(request, settings=changed) if changed else request).encode())
        try:
            yield Wait(future)
        except BaseException:
            # A cancel, a time-out or the session's end: the peer is to stop as well. It may have taken the
            # settings, or not.
            sent.clear()
            link.cancel(future)
            if request.portal:
                # It may have done all before it is told to: its answer has come to nobody.
                link.ask(Request(FAILED, portal=request.portal).encode())
            raise
        try:
            reply = future.result()
        except DucktailError:
            if link.lost:
                if current:
                    self._links.pop(node.name, None)
            else:
                # It may have failed before all of them were taken.
                sent.clear()
            raise
        sent.update(changed)
        return reply

    def _link(self, node: Node) -> Waiting[Link]:
        link = self._links.get(node.name)
        epoch = self.remote.cluster.placement.epoch
        if link is None or link.lost or link.epoch != epoch:
            if link is not None and link not in self._open.values():
                link.release()
            future = self.remote.link(node, self._user)
            try:
                yield Wait(future)
            except BaseException:
                future.add_done_callback(_released)
                raise
            link = self._links[node.name] = future.result()
            self._sent[node.name] = {}
        return link

    def later(self, node: Node, request: Request) -> Future[Reply] | None:
        """Send a node a request without waiting for the answer; None if there is no link to it."""
        link = self._open.get((node.name, request.portal)) or self._links.get(node.name)
        return None if link is None or link.lost else link.ask(request.encode())

    def look_up(self, keys: Iterable[Key]) -> Waiting[Mapping[Key, Node]]:
        """Ask which nodes have some streams.

        Raises:
            WrongState: two nodes have a stream of one name.
            CannotConnect: a node that may have a stream cannot be asked.
        """
        future = self.remote.look(keys)
        yield Wait(future)
        return future.result()

    def has_read(self, node: Node) -> None:
        """Note that the open transaction has read from a node."""
        self._read.add(node.name)

    def transaction_ended(self, *, committed: bool) -> None:
        """Void the reads of a transaction that is rolled back."""
        read, self._read = self._read, set()
        for name in read:
            link = self._links.get(name)
            if not committed and link is not None and not link.lost:
                link.ask(Request("void").encode())

    def close(self) -> None:
        """Release all links, because the session ends."""
        for link in {*self._links.values(), *self._open.values()}:
            link.release()
        self._links.clear()
        self._open.clear()


def _released(future: Future[Link]) -> None:
    """Release a link that is no longer waited for."""
    if not future.cancelled() and future.exception() is None:
        future.result().release()
