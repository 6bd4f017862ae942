"""Peewee: models, queries, migrations and reflection."""

from __future__ import annotations

import datetime
from decimal import Decimal

from peewee import (
    JOIN,
    BlobField,
    BooleanField,
    Case,
    CharField,
    DateField,
    DateTimeField,
    DecimalField,
    DoubleField,
    ForeignKeyField,
    IntegrityError,
    Model,
    TextField,
    fn,
)
from playhouse.migrate import PostgresqlMigrator, migrate
from playhouse.postgres_ext import ArrayField, BinaryJSONField, PostgresqlExtDatabase
from playhouse.reflection import Introspector
from steps import DATABASE, HOST, PORT, USER, done, show

MADE = datetime.datetime(2026, 1, 2, 3, 4, 5)
db = PostgresqlExtDatabase(DATABASE, host=HOST, port=PORT, user=USER)


class Base(Model):
    class Meta:
        database = db


class Author(Base):
    name = CharField(max_length=100, unique=True)
    born = DateField(null=True)


class Book(Base):
    author = ForeignKeyField(Author, backref="books", on_delete="CASCADE")
    title = TextField(index=True)
    price = DecimalField(10, 2, default=1)
    made = DateTimeField(default=MADE)
    extra = BinaryJSONField(default=dict)
    tags = ArrayField(CharField, null=True)
    ok = BooleanField(default=True)
    weight = DoubleField(null=True)
    blob = BlobField(null=True)


def nested() -> str:
    with db.atomic():
        Author.create(name="z")
        try:
            with db.atomic():
                Author.create(name="a")
        except IntegrityError:
            return "refused"
    return "accepted"


def main() -> None:
    """Run the steps."""
    show("create tables", done(lambda: db.create_tables([Author, Book])))
    show("create", lambda: Author.create(name="a", born=datetime.date(1950, 1, 1)).id)
    show(
        "insert_many",
        lambda: [
            a.id for a in Author.insert_many([{"name": "b"}, {"name": "c"}]).returning(Author.id).execute()
        ],
    )
    show("get", lambda: Author.get(Author.name == "a").born)
    author = Author.get(Author.name == "a")
    show(
        "create with all types",
        lambda: Book.create(
            author=author, title="t1", price=Decimal("3.50"), extra={"k": [1, 2]}, tags=["x", "y"],
            weight=1.5, blob=b"\x00\x01",
        ).id,
    )  # fmt: skip
    show("create with defaults", lambda: Book.create(author=author, title="t2").id)
    show(
        "select",
        lambda: [
            (b.title, b.price, b.made, b.extra, b.tags, b.ok, b.weight, bytes(b.blob or b"").hex())
            for b in Book.select().order_by(Book.id)
        ],
    )
    joined = Book.select(Book, Author).join(Author).where(Author.name == "a").order_by(Book.title.desc())
    show("join", lambda: [(b.title, b.author.name) for b in joined])
    show("contains of json", lambda: Book.select().where(Book.extra.contains({"k": [1, 2]})).count())
    show("contains of an array", lambda: Book.select().where(Book.tags.contains("x")).count())
    counted = Author.select(Author.name, fn.COUNT(Book.id).alias("n")).join(Book, JOIN.LEFT_OUTER)
    show("group by", lambda: [(a.name, a.n) for a in counted.group_by(Author.id).order_by(Author.name)])
    show("update", lambda: Book.update(price=Book.price + 1).where(Book.title == "t1").execute())
    upsert = Author.insert(name="a").on_conflict(
        conflict_target=[Author.name], update={Author.born: datetime.date(2000, 1, 1)}
    )
    show("on_conflict", done(upsert.execute))
    show("on_conflict_ignore", done(Author.insert(name="a").on_conflict_ignore().execute))
    case = Case(None, [(Author.name == "a", "first")], "else")
    show("case", lambda: list(Author.select(case).order_by(Author.id).tuples()))
    show("contains", lambda: Author.select().where(Author.name.contains("A")).count())
    show("iregexp", lambda: Author.select().where(Author.name.iregexp("^A")).count())
    rank = fn.RANK().over(order_by=[Author.name])
    show("window", lambda: list(Author.select(Author.name, rank).order_by(Author.name).tuples()))
    show("nested atomic", nested)
    show("distinct on", lambda: [b.author_id for b in Book.select().distinct(Book.author)])
    show("for_update", lambda: [a.name for a in Author.select().where(Author.name == "a").for_update()])
    migrator = PostgresqlMigrator(db)
    show("add_column", done(lambda: migrate(migrator.add_column("author", "bio", TextField(default="")))))
    show("add_index", done(lambda: migrate(migrator.add_index("author", ("bio",), False))))
    show("rename_column", done(lambda: migrate(migrator.rename_column("author", "bio", "about"))))
    show("drop_not_null", done(lambda: migrate(migrator.drop_not_null("book", "price"))))
    show("drop_column", done(lambda: migrate(migrator.drop_column("author", "about"))))
    show("get_tables", lambda: sorted(db.get_tables()))
    show("get_columns", lambda: [(c.name, c.null, c.primary_key) for c in db.get_columns("book")])
    show("get_indexes", lambda: sorted((i.columns, i.unique) for i in db.get_indexes("author")))
    show("get_primary_keys", lambda: db.get_primary_keys("book"))
    show("introspection", lambda: sorted(Introspector.from_database(db).generate_models()))
    show("delete", lambda: Book.delete().where(Book.title == "t2").execute())
    show("delete_instance", lambda: author.delete_instance(recursive=True))
    show("truncate", done(lambda: Book.truncate_table(restart_identity=True, cascade=True)))
    show("drop_tables", done(lambda: db.drop_tables([Book, Author])))


if __name__ == "__main__":
    main()
