"""What clients were seen to send to a PostgreSQL 15, sent to it again and to us: the same columns.

queries/*.tsv has a statement a line, in the order of one connection: Q and the text of a simple query,
or P, the types and values of the parameters, and the text of an extended one. No error that PostgreSQL
does not give, but for FAILS; the same names and types of columns, but for OTHER_TYPES.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import postgres_process
import psycopg
import pytest
from amounts import chosen
from psycopg import pq
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from server_process import ServerProcess
from slt_ways import Host
from transcripts import RECORDINGS, Trace, Transcript, in_row_order

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILES = sorted((Path(__file__).with_name("queries")).glob("*.tsv"))

# Files with hundreds of queries of the catalog, of which the gate has some, others with each commit.
LARGE_BYTES, LARGE_IN_GATE = 40_000, 2

# The tables that the statements were sent against, with the types that both have.
BOTH = """
    CREATE SCHEMA app;
    CREATE TYPE app.status AS ENUM ('new', 'paid', 'shipped');
    CREATE SEQUENCE app.ids START 2001;
    CREATE TABLE app.customers (id BIGINT DEFAULT nextval('app.ids') PRIMARY KEY, name TEXT NOT NULL,
        email TEXT UNIQUE, created TIMESTAMPTZ DEFAULT now(), balance NUMERIC(12, 2) DEFAULT 0, meta JSON,
        tags TEXT[], uid UUID, photo BYTEA, active BOOLEAN DEFAULT true);
    CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer_id BIGINT REFERENCES app.customers (id),
        st app.status, amount NUMERIC(10, 2) CHECK (amount >= 0), placed DATE, t TIME, iv INTERVAL,
        d DOUBLE PRECISION, s SMALLINT, r REAL);
    CREATE INDEX orders_cust ON app.orders (customer_id);
    CREATE VIEW app.v_orders AS
        SELECT o.id, c.name FROM app.orders o JOIN app.customers c ON c.id = o.customer_id;
    CREATE SEQUENCE app.seq1;
    COMMENT ON TABLE app.orders IS 'the orders';
    COMMENT ON COLUMN app.orders.amount IS 'money';
    CREATE TABLE t (i INTEGER PRIMARY KEY, txt TEXT);
    INSERT INTO app.customers (id, name) VALUES (1, 'Ann');
    INSERT INTO app.orders (id, customer_id, st) VALUES (1, 1, 'new');
    INSERT INTO t VALUES (1, 'x1')
"""
THEIRS = "CREATE FUNCTION app.f1(a int) RETURNS int LANGUAGE sql AS 'SELECT a + 1'"
OURS = "CREATE MACRO app.f1(a) AS a + 1"

# What PostgreSQL does and we do not: the statements, and why.
FAILS: dict[str, str] = {
    r"SERIALIZABLE": "transactions run in snapshot isolation; docs/sql.md",
    r"^rollback to ": "DuckDB cannot undo a part of a transaction",
    r"FROM app\.f1\(1\)": "a DuckDB macro of a value cannot stand in FROM",
    r"\bSERIAL\b|\bsat\b": "DuckDB has no SERIAL; CREATE SEQUENCE and DEFAULT nextval do the same",
    r"^SELECT set_config\('jit'": "there is no JIT to be turned on",
}

# Types that we tell otherwise: (ours, theirs) -> why. A type of the user's own is USERS.
USERS = 16384
OTHER_TYPES: dict[tuple[int, int], str] = {
    (114, USERS): "a row as one value is json",
    (3802, 114): "DuckDB's one JSON type is jsonb",
    (25, 1043): "DuckDB has one type of texts",
}


@dataclass(frozen=True)
class Answer:
    """What a server answers: the SQLSTATE of an error, or the columns."""

    error: str
    columns: tuple[tuple[str, int], ...] = ()
    rolled_back: bool = False  # a ROLLBACK was sent behind it


def statements(path: Path) -> Iterator[tuple[list[int], list[str | None], str]]:
    """Types, values and text of each statement; a simple query has no list of types."""
    for line in path.read_text().splitlines():
        kind, *rest = line.split("\t")
        if kind == "Q":
            yield [-1], [], rest[0]
        else:
            types, values = json.loads(rest[0])
            yield types, values, rest[1]


def renamed(text: str) -> str:
    """A statement by our names: PostgreSQL calls main public."""
    return re.sub(r"\bpublic\b", "main", text)


def of_users(oid: int) -> int:
    """The OID, which is USERS for each type of a user."""
    return USERS if oid >= USERS else oid


def ask(wire: pq.abc.PGconn, types: list[int], values: list[str | None], text: str) -> Answer:
    """Send one statement, take all of the answer, and roll back where it has failed."""
    if types == [-1]:
        result = wire.exec_(text.encode())
    else:
        result = wire.prepare(b"", text.encode(), types or None)
        if result.status != ExecStatus.FATAL_ERROR:
            count = wire.describe_prepared(b"").nparams
            padded = [*values, *[None] * count][:count]
            result = wire.exec_prepared(b"", [None if v is None else v.encode() for v in padded])
    if result.status == ExecStatus.COPY_IN:
        wire.put_copy_end()
    elif result.status == ExecStatus.COPY_OUT:
        while wire.get_copy_data(0)[0] > 0:
            pass
    if result.status in (ExecStatus.COPY_IN, ExecStatus.COPY_OUT):
        while (last := wire.get_result()) is not None:
            result = last
    error = b""
    if result.status == ExecStatus.FATAL_ERROR:
        error = result.error_field(DiagnosticField.SQLSTATE) or b"?"
    failed = wire.transaction_status == TransactionStatus.INERROR
    if failed:
        wire.exec_(b"ROLLBACK")
    names = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
    return Answer(error.decode(), tuple((name, result.ftype(at)) for at, name in enumerate(names)), failed)


def ordered(text: str) -> bool:
    """Whether the rows have an order: that of EXPLAIN, or one that the outermost query asks for."""
    while (outer := re.sub(r"\([^()]*\)", "", text)) != text:
        text = outer
    query = re.match(r"\s*(SELECT|WITH)\b", text, re.IGNORECASE)
    return query is None or re.search(r"\bORDER\s+BY\b", text, re.IGNORECASE) is not None


@pytest.fixture(scope="module")
def theirs() -> Iterator[str]:
    """PostgreSQL, with the tables."""
    with postgres_process.running() as theirs, psycopg.connect(theirs, autocommit=True) as one:
        one.execute(f"{BOTH}; {THEIRS}")
        yield theirs


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What our server says of itself."""
    return tmp_path_factory.mktemp("replay") / "log"


@pytest.fixture(scope="module")
def host(log: Path) -> Iterator[Host]:
    """A server process of ours that serves any number of databases."""
    process = Host(log=log)
    yield process
    process.end()


@contextmanager
def served(host: Host, shop: Path) -> Iterator[pq.abc.PGconn]:
    """A connection to a new database of ours, with the tables."""
    port = host.ask(open=str(shop), settings={})["port"]
    conninfo = f"host=127.0.0.1 port={port} user=ducktail dbname=shop"
    with psycopg.connect(conninfo, autocommit=True) as one:
        for statement in f"{BOTH}; {OURS}".split(";"):
            one.execute(statement)
    wire = pq.PGconn.connect(conninfo.encode())
    yield wire
    wire.finish()
    host.ask(close=str(shop))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The small files, and of the large ones some; all where transcripts are written."""
    if "path" in metafunc.fixturenames:
        written = any(metafunc.config.getoption(f"--transcripts{name}") for name in ("", "-rewrite"))
        large = [path for path in FILES if path.stat().st_size > LARGE_BYTES]
        run = large if written else chosen(large, LARGE_IN_GATE, "replay")
        paths = [path for path in FILES if path in run or path not in large]
        metafunc.parametrize("path", paths, ids=[path.stem for path in paths])


def test_a_client_s_statements(
    theirs: str, host: Host, log: Path, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The columns are PostgreSQL's, and the bytes are those of the transcript."""
    texts = [text for _, _, text in statements(path)]
    heard = []
    for number in range(RECORDINGS if request.config.getoption("--transcripts-rewrite") else 1):
        place = tmp_path / str(number)
        place.mkdir()
        with served(host, place / "shop.duckdb") as wire:
            trace = Trace(wire)
            seen = [ask(wire, types, values, renamed(text)) for types, values, text in statements(path)]
            parts = iter(trace.end())
        answers = ["\n".join(islice(parts, 1 + answer.rolled_back)) for answer in seen]
        heard.append(
            [said if ordered(text) else in_row_order(said) for text, said in zip(texts, answers, strict=True)]
        )
    with psycopg.connect(theirs, autocommit=True) as other:
        told = [ask(other.pgconn, *statement) for statement in statements(path)]
    wrong = [one for three in zip(texts, seen, told, strict=True) for one in differences(*three)]
    assert wrong == []
    assert [line for line in log.read_text().splitlines() if "not answered" in line] == []
    Transcript(f"clients/{path.stem}", ["bytes"], texts).keep("bytes", heard, request.config)


def test_a_catalog_query_without_an_answer_is_told(server: ServerProcess) -> None:
    with server.connect() as connection:
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedFunction):
                connection.execute("SELECT pg_no_such_function(oid) FROM pg_class")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT 'nowhere'::regclass FROM pg_am")
    told = [line for line in server.lines if "not answered" in line]
    assert len(told) == 1 and "pg_no_such_function" in told[0]


def differences(text: str, seen: Answer, told: Answer) -> list[tuple[Any, ...]]:
    """Where two answers differ without a reason."""
    if seen.error and told.error:
        return []
    if seen.error or told.error:
        known = any(re.search(pattern, text) for pattern in FAILS)
        return [] if told.error or known else [(text, seen.error)]
    if [name for name, _ in seen.columns] != [name for name, _ in told.columns]:
        return [(text, seen.columns, told.columns)]
    return [
        (text, name, our_type, their_type)
        for (name, our_type), (_, their_type) in zip(seen.columns, told.columns, strict=True)
        if of_users(our_type) != of_users(their_type) and (our_type, of_users(their_type)) not in OTHER_TYPES
    ]
