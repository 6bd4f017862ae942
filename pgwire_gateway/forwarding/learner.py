"""Has this node learn the definitions that the others have: once at a time, for whoever wants it.

Source: docs/design/cluster.md, "Definitions".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ...engine.database import Database
from ...engine.waiting import run
from ...sql.forwarding.learning import learn
from ...sql.peers.learned import Learned
from ...sql.peers.links import Links
from ...sql.session import Session
from .peers import Peers

# What the session is called in the logs and views of the nodes that are asked.
NAME = "ducktail definitions"

log = logging.getLogger("ducktail.gateway")


class Learner:
    """See the head of the file; may be used from any thread.

    It has a thread of its own: two nodes that ask each other would wait for ever if the threads that answer
    were those that wait.

    Args:
        trace: by which it is found in the logs of the nodes that are asked.
    """

    def __init__(self, database: Database, peers: Peers, trace: Callable[[], str]) -> None:
        self._database = database
        self._peers = peers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ducktail-learner")
        self._trace = trace
        self._mutex = threading.RLock()  # what is done at once is told at once
        self._running: Future[Learned] | None = None

    def learn(self) -> Future[Learned]:
        """See sql.spread.learning."""
        with self._mutex:
            running = self._running
            if running is None:
                running = self._running = self._thread.submit(self._learn)
                running.add_done_callback(self._done)
            return running

    def close(self) -> None:
        """Wait for what is under way: the links are closed, so it ends."""
        self._thread.shutdown(wait=True)

    def _done(self, running: Future[Learned]) -> None:
        with self._mutex:
            self._running = None
        if not running.cancelled() and (error := running.exception()) is not None:
            # Perhaps nobody waits for it.
            log.error("asking the other nodes for their definitions: %s", error)

    def _learn(self) -> Learned:
        session = Session(self._database, user=NAME, application_name=NAME, wire=True)
        try:
            session.links = Links(self._peers, None, self._trace())
            learned = run(learn(session))
        finally:
            run(session.close())
        for told in learned.told():
            log.warning("%s", told)
        if learned.made:
            log.info("%d definitions of the cluster were made here", learned.made)
        return learned
