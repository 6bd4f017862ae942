"""SQLAlchemy 2 over psycopg, psycopg2 and asyncpg: Core, the ORM, the inspector; and pandas on it."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa
from amounts import chosen
from shop import ANN, BOB, FIFTH, FIFTH_QUERY, ORDERS
from sqlalchemy import orm
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import create_async_engine

Work = Callable[[sa.Connection], Any]
On = Callable[[Work], Any]


# One of them in the gate, another one with each commit.
DRIVERS = chosen(["psycopg", "psycopg2", "asyncpg"], 1, "SQLAlchemy")


@pytest.fixture(params=DRIVERS)
def on(request: pytest.FixtureRequest, url: str) -> On:
    """`on(f)` is what `f(connection)` gives, committed, over a driver."""
    address = url.replace("postgresql:", f"postgresql+{request.param}:")

    def run(work: Work) -> Any:
        engine = sa.create_engine(address)
        try:
            with engine.begin() as connection:
                return work(connection)
        finally:
            engine.dispose()

    def run_async(work: Work) -> Any:
        async def whole() -> Any:
            engine = create_async_engine(address)
            try:
                async with engine.begin() as connection:
                    return await connection.run_sync(work)
            finally:
                await engine.dispose()

        return asyncio.run(whole())

    return run_async if request.param == "asyncpg" else run


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """An engine over psycopg."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


def test_the_inspector(on: On) -> None:
    def work(connection: sa.Connection) -> Any:
        look = sa.inspect(connection)
        assert look.default_schema_name == "main"
        assert look.get_schema_names() == ["app", "ducktail", "information_schema", "main"]
        assert look.get_table_names("app") == ["customers", "orders"]
        assert look.get_view_names("app") == ["names"]
        assert look.get_view_names() == ["orders_stream", "orders_stream_changes"]
        assert look.get_sequence_names("app") == ["numbers"]
        assert look.get_pk_constraint("orders", "app")["constrained_columns"] == ["id"]
        [key] = look.get_foreign_keys("orders", "app")
        assert key["constrained_columns"] == ["customer_id"]
        assert (key["referred_schema"], key["referred_table"], key["referred_columns"]) == (
            "app", "customers", ["id"],
        )  # fmt: skip
        [unique] = look.get_unique_constraints("customers", "app")
        assert unique["column_names"] == ["email"]
        [check] = look.get_check_constraints("orders", "app")
        assert check["sqltext"] == "amount >= 0"
        assert [(found["name"], found["column_names"]) for found in look.get_indexes("orders", "app")] == [
            ("orders_customer", ["customer_id"])
        ]
        assert look.get_table_comment("orders", "app") == {"text": "what was bought"}
        assert look.get_enums("app") == [
            {"name": "status", "schema": "app", "visible": False, "labels": ["new", "paid", "shipped"]}
        ]
        assert "SELECT o.id" in look.get_view_definition("names", "app")
        assert (look.has_table("orders", "app"), look.has_table("orders")) == (True, False)
        return look.get_columns("customers", "app"), look.get_columns("orders_stream")

    customers, stream = on(work)
    assert [(found["name"], str(found["type"]), found["nullable"]) for found in customers] == [
        ("id", "BIGINT", False), ("name", "TEXT", False), ("email", "TEXT", True),
        ("created", "TIMESTAMP", True), ("balance", "NUMERIC(12, 2)", True), ("meta", "JSONB", True),
        ("tags", "ARRAY", True), ("uid", "UUID", True), ("photo", "BYTEA", True), ("active", "BOOLEAN", True),
    ]  # fmt: skip
    assert customers[3]["type"].timezone and customers[9]["default"] == "true"
    assert [found["name"] for found in stream][:5] == ["lsn", "partition", "op", "table_name", "key"]


def test_core(on: On, table: str) -> None:
    def work(connection: sa.Connection) -> Any:
        found = sa.Table(table, sa.MetaData(), autoload_with=connection)
        rows = [{"i": at, "txt": f"s{at}"} for at in range(10)]
        connection.execute(sa.insert(found), rows)
        returned = connection.execute(
            sa.insert(found).returning(found.c.i), [{"i": at, "txt": "r"} for at in (11, 10)]
        ).scalars()
        assert sorted(returned) == [10, 11]
        assert connection.execute(sa.update(found).where(found.c.i < 3).values(txt="u")).rowcount == 3
        assert connection.execute(sa.delete(found).where(found.c.i.in_([3, 4]))).rowcount == 2
        counted = sa.select(found.c.txt, sa.func.count()).group_by(found.c.txt).order_by(found.c.txt).limit(2)
        return [tuple(row) for row in connection.execute(counted)]

    assert on(work) == [("r", 2), ("s5", 1)]


def test_reflected_rows_of_all_types(on: On) -> None:
    def work(connection: sa.Connection) -> Any:
        customers = sa.Table("customers", sa.MetaData(), schema="app", autoload_with=connection)
        rows = connection.execute(sa.select(customers).order_by(customers.c.id)).all()
        fifth = connection.execute(sa.text(FIFTH_QUERY)).one()
        return [tuple(row) for row in rows], tuple(fifth)

    rows, fifth = on(work)
    assert [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows] == [ANN, BOB]
    assert fifth == FIFTH


MODELS = {"schema": "models"}


class Base(orm.DeclarativeBase):
    """The models of the tests."""


class User(Base):
    __tablename__ = "users"
    __table_args__ = MODELS
    id: orm.Mapped[int] = orm.mapped_column(
        sa.BigInteger, sa.Sequence("user_numbers", schema="models"), primary_key=True
    )
    name: orm.Mapped[str] = orm.mapped_column(sa.String(50))
    made: orm.Mapped[datetime.datetime] = orm.mapped_column(
        sa.DateTime(timezone=True), server_default=sa.func.now()
    )
    balance: orm.Mapped[Decimal] = orm.mapped_column(sa.Numeric(12, 2), default=Decimal("1.50"))
    tags: orm.Mapped[list[str]] = orm.mapped_column(sa.ARRAY(sa.String), default=list)
    extra: orm.Mapped[dict[str, Any]] = orm.mapped_column(sa.JSON, default=dict)
    more: orm.Mapped[dict[str, Any]] = orm.mapped_column(JSONB, default=dict)
    items: orm.Mapped[list[Item]] = orm.relationship(back_populates="user")


class Item(Base):
    __tablename__ = "items"
    __table_args__ = MODELS
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
    user_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("models.users.id"))
    user: orm.Mapped[User] = orm.relationship(back_populates="items")


def test_the_orm(on: On, look: psycopg.Connection[Any]) -> None:
    def work(connection: sa.Connection) -> Any:
        connection.execute(sa.schema.CreateSchema("models"))
        Base.metadata.create_all(connection)
        with orm.Session(connection) as session:
            user = User(name="Ann", tags=["a", "b"], extra={"k": 1}, more={"n": [2]})
            user.items = [Item(id=7), Item(id=8)]
            session.add_all([user, User(name="Bob")])
            session.flush()
            session.expire_all()
            found = session.execute(sa.select(User).join(Item).where(Item.id == 8)).scalar_one()
            n = User.more["n"][0]
            assert session.execute(sa.select(n, n.astext).where(User.more.has_key("n"))).one() == (2, "2")
            assert found is user and found.made.tzinfo is not None
            seen = (
                found.name,
                found.balance,
                found.tags,
                found.extra,
                found.more,
                sorted(item.id for item in found.items),
            )
            found.name = "Anna"
            session.flush()
            names = session.scalars(sa.select(User.name).order_by(User.id)).all()
        return seen, names

    try:
        ann = ("Ann", Decimal("1.50"), ["a", "b"], {"k": 1}, {"n": [2]}, [7, 8])
        assert on(work) == (ann, ["Anna", "Bob"])
        found = look.execute("SELECT name, balance FROM models.users ORDER BY id").fetchall()
        assert found == [("Anna", Decimal("1.50")), ("Bob", Decimal("1.50"))]
    finally:
        look.execute("DROP SCHEMA models CASCADE")


def test_results_are_streamed(engine: sa.Engine) -> None:
    with engine.connect().execution_options(stream_results=True, max_row_buffer=100) as connection:
        rows = connection.execute(sa.text("SELECT id FROM app.orders ORDER BY id"))
        assert [number for (number,) in rows] == list(range(1, ORDERS + 1))


def test_pandas(engine: sa.Engine, table: str) -> None:
    with engine.connect() as connection:
        frame = pd.read_sql(sa.text("SELECT * FROM app.orders ORDER BY id"), connection, index_col="id")
    assert (len(frame), frame["d"].sum(), str(frame["s"].dtype)) == (ORDERS, sum(range(1001)) / 8, "int64")
    made = pd.DataFrame(
        {"a": [1, 2], "b": ["x", None], "c": [1.5, 2.5], "d": pd.to_datetime(["2026-01-01", "2026-01-02"])}
    )
    made.to_sql(table, engine, index=False, if_exists="replace")
    made.iloc[:1].to_sql(table, engine, index=False, if_exists="append", method="multi")
    back = pd.read_sql_table(table, engine)
    assert back["a"].tolist() == [1, 2, 1] and back["c"].tolist() == [1.5, 2.5, 1.5]
    assert back["b"].tolist()[0] == "x" and back["b"].isna().tolist() == [False, True, False]
    assert back["d"].tolist()[1] == pd.Timestamp("2026-01-02")


def test_pandas_replaces_a_table_with_streams(engine: sa.Engine, table: str) -> None:
    """`if_exists='replace'` drops the table and makes it anew: what differs is told."""
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    frame.to_sql(table, engine, index=False, if_exists="replace")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"ALTER TABLE {table} ADD PRIMARY KEY (a)"))
        connection.execute(sa.text(f"CREATE STREAM {table}_stream ON {table} WITH (partitions = 1)"))
    frame = pd.DataFrame({"a": [1, 3, 4], "b": ["x", "Z", "w"], "c": [None, None, 1.5]})
    frame.to_sql(table, engine, index=False, if_exists="replace")
    frame.to_sql(table, engine, index=False, if_exists="replace", method="multi")
    events = f"SELECT op, schema_version, (after->>'a')::INT AS a FROM STREAM {table}_stream ORDER BY lsn"
    with engine.connect() as connection:
        told = [tuple(row) for row in connection.execute(sa.text(events))]
        assert told == [("schema", 2, None), ("delete", 2, None), ("update", 2, 3), ("insert", 2, 4)]
        assert not connection.execute(sa.text(f"SELECT * FROM {table} WHERE a = 2")).all()
        connection.commit()
        with connection.execution_options(isolation_level="AUTOCOMMIT"):
            connection.execute(sa.text(f"DROP STREAM {table}_stream"))


def test_a_stream(on: On, engine: sa.Engine, group: str) -> None:
    read = sa.text(f"SELECT key FROM STREAM orders_stream CONSUMER GROUP {group} LIMIT :n")

    def work(connection: sa.Connection) -> Any:
        rows = connection.execute(read, {"n": 2}).all()
        connection.execute(sa.text(f"COMMIT OFFSETS ON orders_stream CONSUMER GROUP {group}"))
        return [key["id"] if isinstance(key, dict) else key for (key,) in rows]

    assert [on(work), on(work)] in ([[1, 2], [3, 4]], [['{"id":1}', '{"id":2}'], ['{"id":3}', '{"id":4}']])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.execute(read, {"n": 1}).scalar_one() == {"id": 5}
    assert len(pd.read_sql_table("orders_stream", engine)) == ORDERS
