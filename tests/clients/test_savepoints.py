"""Nested transactions of psycopg, SQLAlchemy and asyncpg, with a captured table."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import scalar_row
from server_process import ServerProcess


def test_psycopg_nests_transactions(server: ServerProcess) -> None:
    with server.connect() as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        con.execute("CREATE STREAM s ON t")
        with con.transaction():
            con.execute("INSERT INTO t VALUES (1)")
            with con.transaction():
                con.execute("INSERT INTO t VALUES (2)")
                with con.transaction():
                    con.execute("INSERT INTO t VALUES (3)")
        # What fails first is undone alone.
        with con.transaction():
            with pytest.raises(psycopg.errors.UniqueViolation), con.transaction():
                con.execute("INSERT INTO t VALUES (1)")
            con.execute("INSERT INTO t VALUES (4)")
        with con.transaction():
            with con.transaction(force_rollback=True):
                con.execute("INSERT INTO t VALUES (5)")
            con.execute("INSERT INTO t VALUES (6)")
        # After a write the transaction is lost as a whole, with an error.
        lost = (psycopg.errors.NotSupportedError, psycopg.errors.InFailedSqlTransaction)
        with pytest.raises(lost), con.transaction():
            con.execute("INSERT INTO t VALUES (7)")
            with pytest.raises(psycopg.errors.UniqueViolation), con.transaction():
                con.execute("INSERT INTO t VALUES (1)")
            con.execute("INSERT INTO t VALUES (8)")
        cursor = con.cursor(row_factory=scalar_row)
        assert cursor.execute("SELECT id FROM t ORDER BY id").fetchall() == [1, 2, 3, 4, 6]
        events = cursor.execute("SELECT key->>'id' FROM STREAM s ORDER BY lsn").fetchall()
        assert list(map(int, events)) == [1, 2, 3, 4, 6]


def test_sqlalchemy_begin_nested(server: ServerProcess) -> None:
    engine = sa.create_engine(f"postgresql+psycopg://ducktail@{server.host}:{server.port}/ducktail")
    with engine.begin() as con:
        con.execute(sa.text("CREATE TABLE t (id INT PRIMARY KEY)"))
    with engine.begin() as con:
        with pytest.raises(ValueError, match="undone"), con.begin_nested():
            con.execute(sa.text("INSERT INTO t VALUES (1)"))
            raise ValueError("undone")
        with con.begin_nested():
            con.execute(sa.text("INSERT INTO t VALUES (2)"))
        table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
        assert con.execute(sa.select(table).with_for_update()).scalars().all() == [2]
    with engine.connect() as con:
        assert con.execute(sa.text("SELECT id FROM t")).scalars().all() == [2]
    engine.dispose()


async def _asyncpg(server: ServerProcess) -> list[int]:
    con = await asyncpg.connect(host=server.host, port=server.port, user="ducktail", database="ducktail")
    await con.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    async with con.transaction():
        try:
            async with con.transaction():
                await con.execute("SELECT * FROM nothing")
        except asyncpg.UndefinedTableError:
            pass
        async with con.transaction():
            await con.execute("INSERT INTO t VALUES (1)")
    rows = await con.fetch("SELECT id FROM t")
    await con.close()
    return [row["id"] for row in rows]


def test_asyncpg_nests_transactions(server: ServerProcess) -> None:
    import asyncio

    assert asyncio.run(_asyncpg(server)) == [1]
