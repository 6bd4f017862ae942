"""Alembic over psycopg2: operations of migrations, autogenerate, an environment of its own."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.postgresql import JSONB
from steps import DATABASE, HOST, PORT, USER, show

URL = f"postgresql+psycopg2://{USER}@{HOST}:{PORT}/{DATABASE}"
engine = sa.create_engine(URL)
metadata = sa.MetaData()
users = sa.Table(
    "users", metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("mail", sa.Text, unique=True),
    sa.Column("n", sa.Numeric(10, 2), server_default="0"),
    sa.Column("made", sa.DateTime(timezone=True), server_default=sa.func.now()),
    sa.Column("doc", JSONB),
)  # fmt: skip
posts = sa.Table(
    "posts", metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("user_id", sa.Integer),
    sa.Column("title", sa.Text),
    sa.Index("posts_title", "title"),
)  # fmt: skip


def differences() -> list[str]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(found[0]) for found in compare_metadata(context, metadata)]


def operation(name: str, work: Callable[[Operations], Any]) -> None:
    """A step that is one operation of a migration."""

    def run() -> None:
        with engine.begin() as connection:
            work(Operations(MigrationContext.configure(connection)))

    show(name, run)


def versions() -> int:
    with engine.connect() as connection:
        return len(connection.execute(sa.text("SELECT version_num FROM alembic_version")).all())


def environment() -> None:
    """The steps of a folder of migrations."""
    with tempfile.TemporaryDirectory() as home:
        config = Config(stdout=io.StringIO(), output_buffer=io.StringIO())
        config.set_main_option("script_location", f"{home}/scripts")
        config.set_main_option("sqlalchemy.url", URL)
        config.config_file_name = f"{home}/alembic.ini"
        Path(config.config_file_name).touch()
        command.init(config, f"{home}/scripts")
        script = Path(home, "scripts", "env.py")
        logging = "    fileConfig(config.config_file_name)"
        script.write_text(script.read_text().replace(logging, "    pass"))
        show("revision", lambda: command.revision(config, message="first") is not None)
        show("upgrade", lambda: command.upgrade(config, "head"))
        show("the version", versions)
        show("downgrade", lambda: command.downgrade(config, "base"))
        show("no version", versions)


def main() -> None:
    """Run the steps."""
    show("create_all", lambda: metadata.create_all(engine))
    show("autogenerate finds no difference", differences)
    column = sa.Column("x", sa.Integer, server_default="5", nullable=False)
    operation("add_column", lambda op: op.add_column("users", column))
    operation("alter type", lambda op: op.alter_column("users", "x", type_=sa.BigInteger))
    operation("alter name", lambda op: op.alter_column("users", "x", new_column_name="y"))
    operation("alter nullable", lambda op: op.alter_column("users", "y", nullable=True))
    operation("alter default", lambda op: op.alter_column("users", "y", server_default=None))
    operation("create_unique_constraint", lambda op: op.create_unique_constraint("uq_y", "users", ["y"]))
    operation("drop_constraint", lambda op: op.drop_constraint("uq_y", "users"))
    operation("create_check_constraint", lambda op: op.create_check_constraint("ck_y", "users", "y > 0"))
    operation("create_index", lambda op: op.create_index("ix_y", "users", ["y"], unique=False))
    operation("drop_index", lambda op: op.drop_index("ix_y"))
    foreign_key = ("fk_user", "posts", "users", ["user_id"], ["id"])
    operation("create_foreign_key", lambda op: op.create_foreign_key(*foreign_key))
    operation("drop_column", lambda op: op.drop_column("users", "y"))
    operation("rename_table", lambda op: op.rename_table("posts", "entries"))
    operation("create_table_comment", lambda op: op.create_table_comment("users", "hello"))
    rows = [{"name": "a", "mail": "m"}, {"name": "b", "mail": "n"}]
    operation("bulk_insert", lambda op: op.bulk_insert(users, rows))
    operation("drop_table", lambda op: op.drop_table("entries"))
    environment()
    metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE alembic_version"))


if __name__ == "__main__":
    main()
