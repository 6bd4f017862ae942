"""Django: migrate, the queries of its admin, and 34 kinds of ORM calls, each a test of its own.

A call's answer is compared with a value that is written beside it, so the script judges each server alone.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import django
from django.conf import settings

DUCKTAIL = os.environ["PEERS_SERVER"] == "ducktail"

settings.configure(
    SECRET_KEY="peers",
    USE_TZ=True,
    TIME_ZONE="UTC",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="django_calls_urls",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ["PGUSER"],
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
            # Django adds each foreign key by ALTER TABLE, which is refused otherwise.
            "OPTIONS": {"options": "-c unenforced_foreign_keys=on"} if DUCKTAIL else {},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "peers",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
# The models below are those of an application named peers, which is this module.
sys.modules["peers"] = sys.modules["django_calls_urls"] = sys.modules[__name__]
django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.contrib.contenttypes.models import ContentType  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, connections, models, transaction  # noqa: E402
from django.db.models import F, Q  # noqa: E402
from django.db.models.functions import Coalesce, Concat, ExtractYear, Lower, TruncMonth  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path as url_path  # noqa: E402


class Author(models.Model):
    """Who wrote books."""

    name = models.CharField(max_length=40, unique=True)
    born = models.DateField(null=True, blank=True)

    class Meta:
        app_label = "peers"


class Tag(models.Model):
    """A word for a book."""

    word = models.SlugField()

    class Meta:
        app_label = "peers"


class Book(models.Model):
    """A field of each common type."""

    title = models.CharField(max_length=80)
    author = models.ForeignKey(Author, models.CASCADE, related_name="books", null=True)
    tags = models.ManyToManyField(Tag)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    pages = models.PositiveIntegerField(default=1)
    rating = models.FloatField(default=0)
    sold = models.BooleanField(default=False)
    made = models.DateTimeField()
    spent = models.DurationField(default=dt.timedelta(hours=1))
    key = models.UUIDField(default=uuid.uuid4)
    extra = models.JSONField(default=dict)
    cover = models.BinaryField(default=b"")

    class Meta:
        app_label = "peers"
        indexes: ClassVar = [models.Index(fields=["title", "-price"])]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(price__gte=0), name="price_positive")]


admin.site.register([Author, Tag])


@admin.register(Book)
class BookAdmin(admin.ModelAdmin):
    """The pages of the admin with its filters, its search and its dates."""

    list_display = ("title", "author", "price")
    list_filter = ("sold", "author")
    search_fields = ("title", "author__name")
    date_hierarchy = "made"


urlpatterns = [url_path("admin/", admin.site.urls)]

DAY = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
Call = Callable[[], Any]
CALLS: dict[str, tuple[Call, Any]] = {}


def call(name: str, expected: Any) -> Callable[[Call], Call]:
    """A call with what it must answer."""

    def add(function: Call) -> Call:
        CALLS[name] = (function, expected)
        return function

    return add


def titles(books: Any) -> list[str]:
    """Titles, sorted."""
    return sorted(book.title for book in books)


@call("migrate", True)
def _migrate() -> bool:
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        return "auth_user" in connection.introspection.table_names(cursor)


@call("migrate again", [])
def _migrate_again() -> list[Any]:
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    call_command("migrate", verbosity=0)
    return list(executor.migration_plan(executor.loader.graph.leaf_nodes()))


@call("schema editor: create_model", 3)
def _create_model() -> int:
    with connection.schema_editor() as editor:
        for model in (Author, Tag, Book):
            editor.create_model(model)
    return 3


@call("create", (True, "Ann"))
def _create() -> tuple[bool, str]:
    author = Author.objects.create(name="Ann", born=dt.date(1980, 1, 2))
    Author.objects.create(name="Bob")
    return author.pk is not None, Author.objects.get(pk=author.pk).name


@call("bulk_create", 6)
def _bulk_create() -> int:
    ann, bob = Author.objects.order_by("name")
    books = [
        Book(
            title=f"book {at}",
            author=ann if at % 2 else bob,
            price=Decimal(at) + Decimal("0.50"),
            pages=at * 100,
            rating=at / 4,
            sold=at > 3,
            made=DAY + dt.timedelta(days=20 * at),
            extra={"at": at, "of": {"list": [at]}},
            cover=bytes([at]),
        )
        for at in range(1, 7)
    ]
    return len({book.pk for book in Book.objects.bulk_create(books)})


@call("all and count", (6, 6))
def _count() -> tuple[int, int]:
    return len(Book.objects.all()), Book.objects.count()


@call("values of all types", (Decimal("2.50"), 200, 0.5, False, DAY + dt.timedelta(days=40), b"\x02", 2))
def _types() -> tuple[Any, ...]:
    book = Book.objects.get(title="book 2")
    assert book.spent == dt.timedelta(hours=1) and isinstance(book.key, uuid.UUID)
    return book.price, book.pages, book.rating, book.sold, book.made, bytes(book.cover), book.extra["at"]


@call("filter: comparisons, in, range, isnull", (2, 3, 3, 1))
def _filter() -> tuple[int, ...]:
    books = Book.objects
    return (
        books.filter(pages__gt=400).count(),
        books.filter(pages__in=[100, 200, 300]).count(),
        books.filter(price__range=(Decimal("2"), Decimal("5"))).count(),
        Author.objects.filter(born__isnull=True).count(),
    )


@call("filter: iexact, icontains, startswith, regex", (1, 6, 6, 3))
def _text() -> tuple[int, ...]:
    books = Book.objects
    return (
        books.filter(title__iexact="BOOK 1").count(),
        books.filter(title__icontains="OOK").count(),
        books.filter(title__startswith="book").count(),
        books.filter(title__iregex=r"^BOOK [1-3]$").count(),
    )


@call("exclude, Q, ~Q", (3, 5, 4))
def _q() -> tuple[int, ...]:
    either = Q(pages=100) | Q(pages=200)
    return (
        Book.objects.exclude(sold=True).count(),
        Book.objects.exclude(pages=100).count(),
        Book.objects.filter(~either).count(),
    )


@call("order_by, slices, reverse", (["book 6", "book 5"], "book 1"))
def _order() -> tuple[Any, ...]:
    by_price = Book.objects.order_by("-price")
    return [book.title for book in by_price[:2]], by_price.reverse()[0].title


@call("first, last, latest, earliest", ("book 1", "book 6", "book 6", "book 1"))
def _first() -> tuple[str, ...]:
    books = Book.objects
    return books.first().title, books.last().title, books.latest("made").title, books.earliest("made").title  # type: ignore[union-attr]


@call("values, values_list, distinct", ([{"sold": False}, {"sold": True}], [100, 200]))
def _values() -> tuple[Any, ...]:
    return (
        list(Book.objects.values("sold").distinct().order_by("sold")),
        list(Book.objects.order_by("pages").values_list("pages", flat=True)[:2]),
    )


@call("distinct on fields", ["book 6", "book 5"])
def _distinct_on() -> list[str]:
    found = Book.objects.order_by("author__name", "-pages").distinct("author__name")
    return sorted((book.title for book in found), reverse=True)


@call("select_related", {"Ann", "Bob"})
def _select_related() -> set[str]:
    return {book.author.name for book in Book.objects.select_related("author")}  # type: ignore[union-attr]


@call("prefetch_related", {"Ann": 3, "Bob": 3})
def _prefetch() -> dict[str, int]:
    return {author.name: len(author.books.all()) for author in Author.objects.prefetch_related("books")}


@call("relations: joins both ways", (3, ["Ann"]))
def _joins() -> tuple[Any, ...]:
    return (
        Book.objects.filter(author__name="Ann").count(),
        [author.name for author in Author.objects.filter(books__title="book 1")],
    )


@call("many to many: add, remove, set, filter", (["a", "b"], ["b"], ["book 1"]))
def _many() -> tuple[Any, ...]:
    a, b = (Tag.objects.create(word=word) for word in "ab")
    book = Book.objects.get(title="book 1")
    book.tags.add(a, b)
    both = sorted(book.tags.values_list("word", flat=True))
    book.tags.remove(a)
    one = [tag.word for tag in book.tags.all()]
    book.tags.set([a])
    return both, one, titles(Book.objects.filter(tags__word="a"))


@call("aggregate", (Decimal("24.00"), 350.0, 100, 600))
def _aggregate() -> tuple[Any, ...]:
    found = Book.objects.aggregate(
        total=models.Sum("price"), mean=models.Avg("pages"), low=models.Min("pages"), high=models.Max("pages")
    )
    return found["total"], float(found["mean"]), found["low"], found["high"]


@call("annotate with GROUP BY and HAVING", [("Ann", 3), ("Bob", 3)])
def _annotate() -> list[Any]:
    counted = Author.objects.annotate(n=models.Count("books")).filter(n__gt=2).order_by("name")
    return list(counted.values_list("name", "n"))


@call("F expressions and arithmetic", [201, 401, 601, 801, 1001, 1201])
def _f() -> list[int]:
    doubled = Book.objects.annotate(x=F("pages") * 2 + 1).order_by("pages")
    return list(doubled.values_list("x", flat=True))


@call("Case and When", {"cheap": 3, "dear": 3})
def _case() -> dict[str, int]:
    kind = models.Case(models.When(price__lt=4, then=models.Value("cheap")), default=models.Value("dear"))
    grouped = Book.objects.annotate(kind=kind).values("kind").annotate(n=models.Count("pk"))
    return {row["kind"]: row["n"] for row in grouped.order_by()}


@call("Subquery, OuterRef, Exists", (["book 5", "book 6"], 1))
def _subquery() -> tuple[Any, ...]:
    newest = Book.objects.filter(author=models.OuterRef("pk")).order_by("-made").values("title")[:1]
    old = Book.objects.filter(author=models.OuterRef("pk"), title="book 1")
    return (
        sorted(Author.objects.annotate(newest=models.Subquery(newest)).values_list("newest", flat=True)),
        Author.objects.filter(models.Exists(old)).count(),
    )


@call("Window", [1, 2, 3, 1, 2, 3])
def _window() -> list[int]:
    rank = models.Window(models.functions.RowNumber(), partition_by="author", order_by="pages")
    return list(Book.objects.annotate(rank=rank).order_by("author", "pages").values_list("rank", flat=True))


@call("functions: Lower, Concat, Coalesce, Length", ("ann", "Ann!", dt.date(2000, 1, 1), 3))
def _functions() -> tuple[Any, ...]:
    found = Author.objects.annotate(
        low=Lower("name"),
        loud=Concat("name", models.Value("!")),
        day=Coalesce("born", models.Value(dt.date(2000, 1, 1))),
        size=models.functions.Length("name"),
    )
    ann, bob = found.order_by("name")
    return ann.low, ann.loud, bob.day, ann.size  # type: ignore[attr-defined]


@call("dates: TruncMonth, ExtractYear, dates(), __year, __date", (4, 2026, 4, 6, 1))
def _dates() -> tuple[int, ...]:
    books = Book.objects
    return (
        books.annotate(month=TruncMonth("made")).values("month").distinct().count(),
        books.annotate(year=ExtractYear("made")).values_list("year", flat=True)[0],
        len(books.dates("made", "month")),
        books.filter(made__year=2026).count(),
        books.filter(made__date=dt.date(2026, 3, 21)).count(),
    )


@call("durations and date arithmetic", 6)
def _durations() -> int:
    later = F("made") + F("spent")
    return Book.objects.annotate(later=later).filter(later__gt=F("made"), spent=dt.timedelta(hours=1)).count()


@call("JSONField: keys, paths, contains, has_key", (1, 1, 1, 6))
def _json() -> tuple[int, ...]:
    books = Book.objects
    return (
        books.filter(extra__at=2).count(),
        books.filter(extra__of__list__0=3).count(),
        books.filter(extra__contains={"at": 4}).count(),
        books.filter(extra__has_key="of").count(),
    )


@call("update, update with F", (1, 150, 6))
def _update() -> tuple[int, ...]:
    one = Book.objects.filter(title="book 1").update(pages=F("pages") + 50)
    pages = Book.objects.get(title="book 1").pages
    return one, pages, Book.objects.update(pages=F("pages") + 0)


@call("bulk_update", [11, 12])
def _bulk_update() -> list[int]:
    books = list(Book.objects.filter(title__in=["book 1", "book 2"]).order_by("title"))
    for at, book in enumerate(books, 11):
        book.pages = at
    Book.objects.bulk_update(books, ["pages"])
    return list(Book.objects.filter(pages__lt=20).order_by("pages").values_list("pages", flat=True))


@call("save, refresh_from_db, update_fields", ("again", "again"))
def _save() -> tuple[str, str]:
    tag = Tag.objects.create(word="once")
    tag.word = "again"
    tag.save(update_fields=["word"])
    other = Tag.objects.get(pk=tag.pk)
    tag.refresh_from_db()
    return tag.word, other.word


@call("get_or_create, update_or_create", (False, True, False))
def _get_or_create() -> tuple[bool, ...]:
    return (
        Author.objects.get_or_create(name="Ann")[1],
        Author.objects.get_or_create(name="Eve")[1],
        Author.objects.update_or_create(name="Eve", defaults={"born": dt.date(1990, 1, 1)})[1],
    )


@call("bulk_create with ignore_conflicts and update_conflicts", (3, dt.date(1991, 1, 1)))
def _conflicts() -> tuple[Any, ...]:
    Author.objects.bulk_create([Author(name="Ann"), Author(name="Eve")], ignore_conflicts=True)
    Author.objects.bulk_create(
        [Author(name="Eve", born=dt.date(1991, 1, 1))],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["born"],
    )
    return Author.objects.count(), Author.objects.get(name="Eve").born


@call("select_for_update", 3)
def _select_for_update() -> int:
    with transaction.atomic():
        return len(Book.objects.select_for_update().filter(author__name="Ann"))


@call("union, intersection, difference", (4, 1, 1))
def _union() -> tuple[int, ...]:
    low, high = Book.objects.filter(pages__lte=300), Book.objects.filter(pages__gte=300, pages__lte=400)
    return low.union(high).count(), len(low.intersection(high)), len(high.difference(low))


@call("iterator with a server-side cursor", 6)
def _iterator() -> int:
    return sum(1 for _ in Book.objects.iterator(chunk_size=2))


@call("raw and cursor", (["book 1"], (6,)))
def _raw() -> tuple[Any, ...]:
    found = Book.objects.raw("SELECT * FROM peers_book WHERE title = %s", ["book 1"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM peers_book WHERE pages > %s", [0])
        return titles(found), cursor.fetchone()


@call("atomic: rollback, on_commit, an IntegrityError", (3, ["told"], "UniqueViolation"))
def _atomic() -> tuple[Any, ...]:
    told: list[str] = []
    try:
        with transaction.atomic():
            Author.objects.create(name="Nobody")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        transaction.on_commit(lambda: told.append("told"))
    try:
        Author.objects.create(name="Ann")
        kind = ""
    except IntegrityError as error:
        kind = type(error.__cause__).__name__
    return Author.objects.count(), told, kind


@call("atomic in atomic", 1)
def _nested() -> int:
    with transaction.atomic():
        Tag.objects.create(word="outer")
        with transaction.atomic():
            Tag.objects.filter(word="outer").update(word="inner")
    return Tag.objects.filter(word="inner").count()


@call("explain", True)
def _explain() -> bool:
    return bool(Book.objects.filter(pages=1).explain())


@call("delete with its cascade", (1, 0))
def _delete() -> tuple[int, int]:
    Book.objects.filter(title="book 6").delete()
    eve = Author.objects.get(name="Eve")
    Book.objects.create(title="eve's", author=eve, price=1, made=DAY)
    _, by_model = eve.delete()
    return by_model["peers.Book"], Book.objects.filter(title="eve's").count()


@call("schema editor: fields and indexes", ("later", False))
def _alter() -> tuple[str, bool]:
    field = models.CharField(max_length=10, default="later")
    field.set_attributes_from_name("note")
    with connection.schema_editor() as editor:
        editor.add_field(Tag, field)
    with connection.cursor() as cursor:
        cursor.execute("SELECT note FROM peers_tag LIMIT 1")
        (found,) = cursor.fetchone()
    with connection.schema_editor() as editor:
        editor.remove_field(Tag, field)
    with connection.cursor() as cursor:
        described = connection.introspection.get_table_description(cursor, "peers_tag")
    return found, any(column.name == "note" for column in described)


@call("introspection: inspectdb", (True, True, True))
def _inspectdb() -> tuple[bool, ...]:
    from io import StringIO

    # The foreign keys of the models above were not enforced, and are not in the catalog.
    with connection.cursor() as cursor:
        if DUCKTAIL:
            cursor.execute("SET unenforced_foreign_keys = off")
        cursor.execute("CREATE TABLE peers_page (id int PRIMARY KEY, book_id bigint REFERENCES peers_book)")
    out = StringIO()
    call_command("inspectdb", "peers_author", "peers_book", "peers_page", stdout=out)
    text = out.getvalue()
    return (
        "price = models.DecimalField(max_digits=8, decimal_places=2)" in text,
        "book = models.ForeignKey(PeersBook, models.DO_NOTHING" in text,
        "id = models.BigAutoField(primary_key=True)" in text,
    )


@call("auth: users, groups, permissions", (True, True, 2))
def _auth() -> tuple[Any, ...]:
    user = User.objects.create_superuser("root", "root@example.org", "secret")
    group = Group.objects.create(name="readers")
    group.permissions.set(Permission.objects.filter(codename__in=["view_user", "view_group"]))
    user.groups.add(group)
    assert ContentType.objects.get_for_model(User).model == "user"
    return user.check_password("secret"), user.has_perm("auth.view_user"), group.permissions.count()


@call("sessions", {"seen": 1})
def _sessions() -> dict[str, int]:
    store = SessionStore()
    store["seen"] = 1
    store.save()
    return dict(SessionStore(store.session_key).items())


@call("admin: log in", 302)
def _login() -> int:
    return BROWSER.post("/admin/login/?next=/admin/", {"username": "root", "password": "secret"}).status_code


for _page in [
    "",
    "peers/book/",
    "peers/book/?q=book&sold__exact=1&o=-3",
    "peers/book/?made__year=2026",
    "peers/book/add/",
    "peers/author/",
    "auth/user/",
    "auth/user/1/change/",
    "auth/user/1/history/",
    "auth/group/",
]:
    call(f"admin: GET {_page or 'index'}", 200)(lambda page=_page: BROWSER.get(f"/admin/{page}").status_code)


@call("admin: add, change and delete", (302, 302, 302, 3))
def _admin_writes() -> tuple[int, ...]:
    from django.contrib.admin.models import LogEntry

    added = BROWSER.post("/admin/peers/author/add/", {"name": "Zoe", "born": ""})
    zoe = Author.objects.get(name="Zoe")
    changed = BROWSER.post(f"/admin/peers/author/{zoe.pk}/change/", {"name": "Zoë", "born": "1999-01-01"})
    deleted = BROWSER.post(f"/admin/peers/author/{zoe.pk}/delete/", {"post": "yes"})
    return added.status_code, changed.status_code, deleted.status_code, LogEntry.objects.count()


BROWSER = Client()


def main(results: Path) -> None:
    """Run the calls in order and write an outcome for each."""
    with results.open("w") as out:
        for name, (function, expected) in CALLS.items():
            try:
                found = function()
                outcome = "passed" if found == expected else f"{found!r} instead of {expected!r}"
            except Exception as error:
                state = getattr(error.__cause__, "sqlstate", "")
                outcome = f"{type(error).__name__} {state}: {error}"
                # A new connection: this one may be inside a transaction that has failed.
                connection.close()
                del connections["default"]
            out.write(f"{name}\t{' '.join(outcome.split())}\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
