"""client_encoding: texts both ways in the client's encoding, beside PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from postgres_server import postgres
from server_process import ServerProcess

from ducktail.engine.values.client_encodings import ENCODINGS

TEXTS = {
    "LATIN1": "é ü",
    "latin9": "zwölf €",
    "win1252": "naïve “quotes”",
    "WIN-1251": "Привет",
    "koi8r": "Привет",
    "iso_8859_7": "αβγ",
    "sjis": "日本語ソ表",
    "gbk": "中文",
    "EUC_KR": "한국어",
    "utf8": "☃ é",
    "SQL_ASCII": "☃ é",
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The conninfo of a PostgreSQL."""
    with postgres(tmp_path_factory.mktemp("postgres")) as conninfo:
        yield conninfo


def told(error: psycopg.Error) -> tuple[str | None, str | None]:
    return error.diag.sqlstate, error.diag.message_primary


def answers(conninfo: str, encoding: str, text: str) -> list[Any]:
    """What a client of this encoding sends and gets, as bytes where they matter."""
    found: list[Any] = []
    with psycopg.connect(conninfo, client_encoding=encoding, autocommit=True) as client:
        raw, codec = client.pgconn, "utf8" if encoding == "SQL_ASCII" else client.info.encoding
        found.append(client.info.parameter_status("client_encoding"))
        found.append(client.execute("SELECT pg_client_encoding()").fetchone())

        def asked(statement: bytes, *values: bytes, forms: list[int] | None = None, binary: int = 0) -> None:
            result = raw.exec_params(statement, list(values), None, forms, binary)
            rows = [[result.get_value(i, j) for j in range(result.nfields)] for i in range(result.ntuples)]
            names = [result.fname(j) for j in range(result.nfields)]
            found.append(
                (result.status, names, rows, result.error_field(psycopg.pq.DiagnosticField.SQLSTATE))
            )

        sent = text.encode(codec)
        raw.exec_(b"CREATE TEMP TABLE words (id int, word text)")
        asked(b"INSERT INTO words VALUES (1, '" + sent + b"') RETURNING word AS \"" + sent + b'"')
        asked(b"INSERT INTO words VALUES (2, $1::text) RETURNING word, id", sent)
        asked(b"INSERT INTO words VALUES (3, $1::text) RETURNING id, word", sent, forms=[1], binary=1)
        asked(b"SELECT length(word), word = '" + sent + b"' FROM words ORDER BY id")
        with client.cursor().copy("COPY words FROM STDIN") as copy:
            for number in range(4, 8):
                for place in range(len(sent)):  # in pieces that divide its characters
                    copy.write((b"%d\t" % number if not place else b"") + sent[place : place + 1])
                copy.write(b"\n")
        with client.cursor().copy("COPY words TO STDOUT (FORMAT csv)") as copy:
            found.append(b"".join(bytes(row) for row in copy))
        asked(b"SELECT id FROM words WHERE word = 'x" + sent + b"' OR word = $1::text ORDER BY 1", sent)
        asked(b"SELECT chr(9731) || id::text FROM words ORDER BY id")
        asked(b"SELECT 1")
        asked(b"SET client_encoding = 'UTF8'")
        asked(b"SELECT chr(9731) FROM words WHERE word = '" + text.encode() + b"' AND id = 1")
        asked(b"RESET client_encoding")
        asked(b"SELECT word FROM words WHERE id = 7")
    return found


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", TEXTS)
def test_texts_are_those_of_postgresql(shared: ServerProcess, theirs: str, encoding: str) -> None:
    ours = f"host={shared.host} port={shared.port} user=ducktail dbname=ducktail"
    assert answers(ours, encoding, TEXTS[encoding]) == answers(theirs, encoding, TEXTS[encoding])


@pytest.mark.postgres
def test_errors_are_those_of_postgresql(shared: ServerProcess, theirs: str) -> None:
    ours = f"host={shared.host} port={shared.port} user=ducktail dbname=ducktail"
    found = []
    for conninfo in (ours, theirs):
        with psycopg.connect(conninfo, client_encoding="WIN1252", autocommit=True) as client:
            broken = client.pgconn.exec_(b"SELECT '\x81'")
            assert broken.status == psycopg.pq.ExecStatus.FATAL_ERROR
            with pytest.raises(psycopg.Error) as missing:
                client.execute("SELECT chr(9731)")
            client.execute("SELECT 1")
            with pytest.raises(psycopg.Error) as unknown:
                client.execute("SELECT * FROM größe")
            sqlstate = broken.error_field(psycopg.pq.DiagnosticField.SQLSTATE)
            message = broken.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY)
            found.append((sqlstate, message, told(missing.value), told(unknown.value)))
    assert found[0] == found[1]


def test_events_and_topics(shared: ServerProcess) -> None:
    with shared.connect(client_encoding="latin1") as client, shared.connect() as other:
        client.execute("CREATE TABLE encoded (id INT PRIMARY KEY, word TEXT)")
        client.execute("CREATE STREAM encoded_stream ON encoded")
        client.execute("INSERT INTO encoded VALUES (%s, %s)", (1, "é"))
        read = "SELECT after ->> 'word' FROM STREAM encoded_stream AFTER 0"
        assert client.execute(read).fetchall() == other.execute(read).fetchall() == [("é",)]
        other.execute("UPDATE encoded SET word = '☃'")
        with pytest.raises(psycopg.errors.UntranslatableCharacter):
            client.execute(read)
        assert client.execute("SELECT 1").fetchone() == (1,)
        with (
            pytest.raises(psycopg.errors.FeatureNotSupported, match="binary formats of COPY"),
            client.cursor().copy("COPY encoded TO STDOUT (FORMAT binary)") as copy,
        ):
            list(copy)


def test_unknown_encodings_are_refused(shared: ServerProcess) -> None:
    with pytest.raises(psycopg.OperationalError, match='parameter "client_encoding": "klingon"'):
        shared.connect(client_encoding="klingon")
    for encoding in ENCODINGS.values():
        "a".encode(encoding.reader)
