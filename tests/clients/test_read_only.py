"""Read-only transactions as the drivers of Python ask for them; pgjdbc's are in test_jdbc.py."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.errors
import pytest
import sqlalchemy as sa
from server_process import ServerProcess

Look = psycopg.Connection[Any]


def count(look: Look, table: str) -> int:
    (found,) = look.execute(f"SELECT count(*) FROM {table}").fetchone() or (-1,)
    return int(found)


def test_psycopg(shop: ServerProcess, look: Look, table: str) -> None:
    with shop.connect(autocommit=False) as con:
        con.read_only = True
        assert con.execute("SHOW transaction_read_only").fetchone() == ("on",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="cannot execute INSERT"):
            con.execute(f"INSERT INTO {table} VALUES (%s, 'x')", [1])
        con.rollback()
        con.read_only = False
        con.execute(f"INSERT INTO {table} VALUES (2, 'x')")
        con.commit()
    with shop.connect(options="-c default_transaction_read_only=on") as con:
        assert con.info.parameter_status("default_transaction_read_only") == "on"
        copy_in = con.cursor().copy(f"COPY {table} FROM STDIN")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), copy_in as copy:
            copy.write_row((3, "x"))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            con.execute(f"COPY (DELETE FROM {table} RETURNING i) TO STDOUT")
        with con.cursor() as cursor, cursor.copy(f"COPY {table} TO STDOUT") as copy:
            assert list(copy.rows()) == [("2", "x")]
        con.execute("LISTEN ch")
        con.execute("NOTIFY ch, 'said'")
        assert [note.payload for note in con.notifies(timeout=20, stop_after=1)] == ["said"]
    assert count(look, table) == 1


def test_psycopg2(shop: ServerProcess, look: Look, table: str) -> None:
    con = psycopg2.connect(shop.conninfo)
    con.set_session(readonly=True)
    with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        con.cursor().execute(f"INSERT INTO {table} VALUES (1, 'x')")
    con.rollback()
    con.set_session(readonly=False)
    con.cursor().execute(f"INSERT INTO {table} VALUES (1, 'x')")
    con.commit()
    con.close()
    assert count(look, table) == 1


def test_asyncpg(url: str, look: Look, table: str) -> None:
    async def work() -> None:
        con = await asyncpg.connect(url)
        try:
            async with con.transaction(readonly=True, deferrable=True):
                assert await con.fetchval("SHOW transaction_read_only") == "on"
                with pytest.raises(asyncpg.exceptions.ReadOnlySQLTransactionError):
                    await con.execute(f"INSERT INTO {table} VALUES ($1, 'x')", 1)
                raise ZeroDivisionError
        except ZeroDivisionError:
            await con.execute(f"INSERT INTO {table} VALUES ($1, 'x')", 2)
        finally:
            await con.close()

    asyncio.run(work())
    assert count(look, table) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
def test_sqlalchemy(url: str, look: Look, table: str, driver: str) -> None:
    insert = sa.text(f"INSERT INTO {table} VALUES (1, 'x')")

    def work(con: sa.Connection) -> None:
        assert con.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar() == 0
        with pytest.raises(sa.exc.DBAPIError, match="cannot execute INSERT in a read-only transaction"):
            con.execute(insert)
        con.rollback()

    options: dict[str, Any] = {"postgresql_readonly": True, "postgresql_deferrable": driver != "psycopg2"}
    address = url.replace("postgresql:", f"postgresql+{driver}:")
    if driver == "asyncpg":

        async def through() -> None:
            from sqlalchemy.ext.asyncio import create_async_engine

            engine = create_async_engine(address)
            async with engine.connect() as con:
                con = await con.execution_options(**options)
                await con.run_sync(work)
            await engine.dispose()

        asyncio.run(through())
    else:
        engine = sa.create_engine(address)
        with engine.connect().execution_options(**options) as con:
            work(con)
        with engine.begin() as con:
            con.execute(insert)
        engine.dispose()
    assert count(look, table) == (driver != "asyncpg")
