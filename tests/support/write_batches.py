"""Sessions whose small writes wait for the writer lock together, so that they are one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from local_client import Client, Row

from ducktail.engine.database import Database
from ducktail.engine.errors import DucktailError
from ducktail.engine.transactions.group_commit import GroupCommit

INSERT = "INSERT INTO t VALUES ($1, $2)"
WAIT_S = 10


@dataclass
class Sent:
    """A statement that a session runs on a thread of its own, and its outcome."""

    client: Client
    text: str
    parameters: tuple[object, ...] = ()
    rows: list[Row] = field(default_factory=list)
    outcome: str = ""
    error: DucktailError | None = None

    def run(self) -> None:
        """Run it; the outcome is the tag, or the SQLSTATE of its error."""
        try:
            self.rows = self.client(self.text, *self.parameters)
            self.outcome = self.client.tag or ""
        except DucktailError as error:
            self.outcome, self.error = error.sqlstate, error


class Scene:
    """A database with a captured table and a topic, whose small writes have plans."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.owner = Client(database)
        self.owner("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR CHECK (v <> 'bad'))")
        self.owner("CREATE STREAM s ON t")
        self.owner("CREATE TABLE other (x INT)")
        self.owner("CREATE STREAM o ON other")
        self.owner("CREATE TOPIC p WITH (partitions = 3)")
        self._keys = iter(range(1_000_000, 2_000_000))
        self.learn(INSERT, lambda: (next(self._keys), "warm"))

    @property
    def commit(self) -> GroupCommit:
        """The database's group commit."""
        return self.database.group_commit

    def client(self, **settings: str) -> Client:
        """A session of the wire."""
        return Client(self.database, wire=True, **settings)

    def learn(self, text: str, values: Callable[[], Sequence[object]]) -> None:
        """Run a statement until it has a plan."""
        client = self.client()
        for _ in range(3):
            client(text, *values())
        client.close()

    def together(
        self,
        sent: Sequence[Sent],
        meanwhile: Callable[[], None] = lambda: None,
        *,
        offered: bool | None = True,
    ) -> list[str]:
        """Run statements while the writer lock is held, then release it; returns the outcomes.

        Args:
            meanwhile: called when all of them wait.
            offered: all of them wait for a batch; None if only some do.
        """
        holder = Client(self.database)
        holder("BEGIN")
        holder("INSERT INTO other VALUES (1)")
        threads = [threading.Thread(target=one.run) for one in sent]
        for thread, one in zip(threads, sent, strict=True):
            thread.start()
            self._await(thread, one.client, offered=offered)
        meanwhile()
        holder("ROLLBACK")
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        holder.close()
        return [one.outcome for one in sent]

    def _await(self, thread: threading.Thread, client: Client, *, offered: bool | None) -> None:
        until = time.monotonic() + WAIT_S
        while thread.is_alive() and client.session.id not in self.waiting(offered=offered):
            assert time.monotonic() < until
            time.sleep(0.001)

    def waiting(self, *, offered: bool | None) -> frozenset[int]:
        """The sessions that wait for the writer lock, with writes that a batch may take or with others."""
        if offered is None:
            return self.waiting(offered=True) | self.waiting(offered=False)
        return self.commit.waiting() if offered else self.database.transactions.writer_lock.waiting()

    def commits(self, after: int) -> list[Row]:
        """The numbered commits after a txid."""
        return self.owner(
            "SELECT txid, first_lsn, last_lsn, annotation FROM ducktail.commits "
            f"WHERE txid > {after} ORDER BY txid"
        )
