"""LISTEN ends with the right on the stream, in sessions that are open."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from server_process import ServerProcess

from ducktail.engine.notifications import Listener, Notification, Notifications
from ducktail.sql.session_state.listening import Listening

Connection = psycopg.Connection[Any]
COMES_S = 15.0
# Long enough for a notification that is on its way, which comes within a tenth of a second.
QUIET_S = 1.0

SETUP = """
CREATE USER ann PASSWORD 'x' SUPERUSER;
CREATE USER bob PASSWORD 'x';
CREATE SCHEMA store;
CREATE TABLE store.sold (id INT);
CREATE STREAM store.sales ON store.sold;
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Tests leave it as it was, but for bob's rights, and events."""
    with ServerProcess(tmp_path_factory.mktemp("listening") / "shop.duckdb") as started:
        with started.connect() as first:
            for statement in filter(str.strip, SETUP.split(";")):
                first.execute(statement)
        yield started


def heard(listener: Connection, seconds: float = COMES_S) -> list[str]:
    return [note.channel for note in listener.notifies(timeout=seconds, stop_after=1)]


@pytest.mark.parametrize(
    ("gives", "takes"),
    [
        ("GRANT SELECT ON store.sales TO bob", "REVOKE SELECT ON store.sales FROM bob"),
        ("GRANT CONSUME ON SCHEMA store TO bob", "REVOKE CONSUME ON SCHEMA store FROM bob"),
        ("GRANT SELECT ON DATABASE TO bob", "REVOKE SELECT ON DATABASE FROM bob"),
        ("ALTER USER bob SUPERUSER", "ALTER USER bob NOSUPERUSER"),
    ],
)
def test_who_loses_the_right_hears_no_more(ann: Connection, bob: Connection, gives: str, takes: str) -> None:
    ann.execute(gives)
    bob.execute("SET search_path = store")
    bob.execute("LISTEN sales")
    bob.execute("LISTEN gossip")
    ann.execute("INSERT INTO store.sold VALUES (1)")
    assert heard(bob) == ["sales"]
    ann.execute(takes)
    ann.execute("INSERT INTO store.sold VALUES (2)")
    assert heard(bob, QUIET_S) == []
    # What is said to everybody goes on, and a right that comes back is no LISTEN.
    ann.execute(gives)
    ann.execute("INSERT INTO store.sold VALUES (3)")
    ann.execute("NOTIFY gossip")
    assert heard(bob) == ["gossip"]
    ann.execute(takes)


def test_another_change_of_rights_ends_nothing(ann: Connection, bob: Connection) -> None:
    ann.execute("GRANT SELECT ON store.sales TO bob")
    bob.execute("SET search_path = store")
    bob.execute("LISTEN sales")
    ann.execute("GRANT CONSUME ON store.sales TO bob")
    ann.execute("REVOKE SELECT ON store.sales FROM bob")
    ann.execute("INSERT INTO store.sold VALUES (4)")
    assert heard(bob) == ["sales"]
    ann.execute("REVOKE CONSUME ON store.sales FROM bob")


def test_an_event_before_the_revoke_is_not_told_after_it(ann: Connection, bob: Connection) -> None:
    ann.execute("GRANT SELECT ON store.sales TO bob")
    bob.execute("SET search_path = store")
    bob.execute("LISTEN sales")
    bob.execute("BEGIN")
    ann.execute("INSERT INTO store.sold VALUES (5)")
    ann.execute("REVOKE SELECT ON store.sales FROM bob")
    bob.execute("COMMIT")
    assert heard(bob, QUIET_S) == []


def test_a_user_who_was_dropped_hears_no_more(server: ServerProcess, ann: Connection) -> None:
    ann.execute("CREATE USER eve PASSWORD 'x'")
    ann.execute("GRANT SELECT ON store.sales TO eve")
    with server.connect(user="eve", password="x") as eve:
        eve.execute("SET search_path = store")
        eve.execute("LISTEN sales")
        ann.execute("REVOKE SELECT ON store.sales FROM eve")
        ann.execute("DROP USER eve")
        ann.execute("INSERT INTO store.sold VALUES (6)")
        assert heard(eve, QUIET_S) == []


def test_an_event_that_arrives_while_the_queue_is_taken_is_not_told_either() -> None:
    hub, stream = Notifications(), object()
    database: Any = SimpleNamespace(notifications=hub, catalog=SimpleNamespace(stream_by_id={7: stream}.get))
    access: Any = SimpleNamespace(account="bob", rights=object(), hears=lambda stream: False)
    listening = Listening(database, lambda: None, lambda: access)
    listening.do(lambda hub, listener: hub.listen(listener, "sales", 7), later=False)
    taken = hub.take

    def take(listener: Listener) -> list[Notification]:
        hub.published({7: {0: 5}})
        return taken(listener)

    hub.take = take  # type: ignore[method-assign]
    assert listening.take() == []
    assert listening.channels == []
