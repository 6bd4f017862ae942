"""Superset: a connection as its pages use it, for schemas, tables, columns, previews and charts' queries."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
URL = "postgresql+psycopg2://{PGUSER}@{PGHOST}:{PGPORT}/{PGDATABASE}".format_map(os.environ)
ROWS = "SELECT * FROM peers_sales ORDER BY id"


def calls(database: Any, schema: str) -> dict[str, Callable[[], object]]:
    """The calls by name; each answers True, or what it found instead."""
    from superset.sql.parse import Table

    table = Table("peers_sales", schema)

    def names(found: Any) -> list[str]:
        return [column["column_name"] for column in found]

    def chart() -> object:
        sql = "SELECT date_trunc('month', sold) AS m, sum(price) AS s FROM peers_sales GROUP BY 1 ORDER BY 1"
        return len(database.get_df(sql, schema=schema)) == 2

    def grains() -> object:
        grains = {grain.duration: grain.function for grain in database.grains()}
        for duration in ("P1D", "P1W", "P1M", "P3M", "P1Y", "PT1H", "PT1M"):
            database.get_df(
                f"SELECT {grains[duration].replace('{col}', 'sold')} AS t FROM peers_sales GROUP BY 1"
            )
        return True

    def view() -> object:
        with database.get_inspector() as inspector:
            return "peers_sales" in inspector.get_view_definition("peers_dear", schema)

    def primary_key() -> object:
        # The database's own call makes None of a list.
        with database.get_inspector() as inspector:
            return inspector.get_pk_constraint("peers_sales", schema)["constrained_columns"] == ["id"]

    return {
        "test connection": lambda: database.db_engine_spec.engine == "postgresql",
        "schemas": lambda: schema in database.get_all_schema_names(),
        "tables": lambda: (
            "peers_sales" in {row[0] for row in database.get_all_table_names_in_schema(None, schema)}
        ),
        "views": lambda: (
            "peers_dear" in {row[0] for row in database.get_all_view_names_in_schema(None, schema)}
        ),
        "columns": lambda: names(database.get_columns(table)) == ["id", "item", "price", "sold", "paid"],
        "types": lambda: (
            [str(column["type"]) for column in database.get_columns(table)][:4]
            == ["INTEGER", "TEXT", "NUMERIC(10, 2)", "TIMESTAMP"]
        ),
        "primary key": primary_key,
        "foreign keys": lambda: database.get_foreign_keys(table) == [],
        "indexes": lambda: any(index["column_names"] == ["item"] for index in database.get_indexes(table)),
        "comment": lambda: database.get_table_comment(table) == "what was sold",
        "has table": lambda: database.has_table(table),
        "select star": lambda: "peers_sales" in database.select_star(table, cols=database.get_columns(table)),
        "preview": lambda: database.get_df(ROWS, schema=schema).shape == (3, 5),
        "chart": chart,
        "time grains": grains,
        "view's text": view,
        "cost estimate": lambda: bool(
            database.db_engine_spec.estimate_query_cost(database, None, schema, ROWS, None)
        ),
    }


def main(results: Path) -> None:
    """Make a table, run the calls and write an outcome for each."""
    os.environ.setdefault("SUPERSET_HOME", str(results.parent))
    os.environ.setdefault("SUPERSET_SECRET_KEY", "peers")
    from superset.app import create_app

    app = create_app()
    with app.app_context(), results.open("w") as out:
        from flask_appbuilder import Model
        from sqlalchemy import create_engine, text
        from superset.extensions import db
        from superset.models.core import Database

        # Superset's own tables, in a SQLite file beside the outcomes.
        Model.metadata.create_all(db.engine)

        with create_engine(URL).connect() as connection:
            (schema,) = connection.execute(text("SELECT current_schema()")).fetchone()
            for statement in (
                "CREATE TABLE peers_sales (id integer PRIMARY KEY, item text, price numeric(10,2),"
                " sold timestamp, paid boolean)",
                "CREATE INDEX peers_item ON peers_sales (item)",
                "COMMENT ON TABLE peers_sales IS 'what was sold'",
                "CREATE VIEW peers_dear AS SELECT * FROM peers_sales WHERE price > 2",
                "INSERT INTO peers_sales VALUES (1, 'tea', 2.5, '2026-01-02', true),"
                " (2, 'rusk', 1, '2026-01-03', false), (3, NULL, 3, '2026-02-01', true)",
            ):
                connection.execute(text(statement))
        database = Database(database_name="peers", sqlalchemy_uri=URL)
        for name, call in calls(database, schema).items():
            try:
                found = call()
                outcome = "passed" if found is True else f"{found!r}"
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            out.write(f"{name}\t{' '.join(outcome.split())}\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
