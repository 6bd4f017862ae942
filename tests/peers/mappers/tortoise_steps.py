"""Tortoise ORM over asyncpg: models, queries, transactions."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

from steps import DATABASE, HOST, OPTIONS, PORT, USER, show
from tortoise import Tortoise, fields
from tortoise.expressions import F, Subquery
from tortoise.functions import Count, Lower, Sum
from tortoise.models import Model
from tortoise.transactions import in_transaction


class Tour(Model):
    id = fields.IntField(primary_key=True)
    name = fields.CharField(max_length=50, unique=True)
    made = fields.DatetimeField(auto_now_add=True)
    desc = fields.TextField(null=True)


class Event(Model):
    id = fields.BigIntField(primary_key=True)
    name = fields.CharField(max_length=50)
    tour: Any = fields.ForeignKeyField("models.Tour", related_name="events")
    price = fields.DecimalField(max_digits=10, decimal_places=2, default=1)
    data: Any = fields.JSONField(null=True)
    day = fields.DateField(null=True)
    lasts = fields.TimeDeltaField(null=True)
    teams: Any = fields.ManyToManyField("models.Team", related_name="events")


class Team(Model):
    id = fields.UUIDField(primary_key=True)
    name = fields.CharField(max_length=20)


async def step(name: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Await a step and print its line."""
    outcome: Any
    try:
        outcome = await work()
    except Exception as error:
        outcome = error

    def told() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    show(name, told)


async def transaction() -> str:
    async with in_transaction() as connection:
        await Tour.create(name="T3", using_db=connection)
        return (await Tour.select_for_update().using_db(connection).get(name="T3")).name


async def main() -> None:
    """Run the steps."""
    credentials: dict[str, Any] = {
        "host": HOST, "port": PORT, "user": USER, "password": "", "database": DATABASE,
        "server_settings": dict(word.split("=") for word in OPTIONS.split() if "=" in word),
    }  # fmt: skip
    await Tortoise.init(
        config={
            "connections": {"default": {"engine": "tortoise.backends.asyncpg", "credentials": credentials}},
            "apps": {"models": {"models": ["__main__"], "default_connection": "default"}},
        }
    )
    await step("generate_schemas", Tortoise.generate_schemas)
    tour = Tour(name="T")
    event = Event(name="E", price=Decimal("2.50"), data={"a": [1, {"b": 2}]}, day=datetime.date(2026, 1, 1))
    event.lasts = datetime.timedelta(seconds=5)

    async def save() -> list[int]:
        await tour.save()
        event.tour = tour
        await event.save()
        return [tour.id, event.id]

    async def read() -> list[Any]:
        found = await Event.get(id=event.id)
        return [found.name, found.price, found.data, found.day, found.lasts]

    async def many() -> int:
        await Event.bulk_create([Event(name=f"n{number}", tour=tour) for number in range(20)])
        return await Event.all().count()

    async def teams() -> list[str]:
        await event.teams.add(await Team.create(id=uuid.UUID(int=5), name="x"))
        return [team.name for team in await event.teams.all()]

    async def update_many() -> int:
        found = await Event.filter(name__startswith="n").order_by("id").limit(5)
        for one in found:
            one.price = Decimal(9)
        return await Event.bulk_update(found, fields=["price"])

    async def cascade() -> int:
        await tour.delete()
        return await Event.all().count()

    await step("save", save)
    await step("get", read)
    await step("bulk_create", many)
    await step("icontains", lambda: Event.filter(name__icontains="N1").count())
    counted = Tour.annotate(n=Count("events"), s=Sum("events__price")).values("name", "n", "s")
    await step("annotate", lambda: counted)
    await step("many to many", teams)

    async def prefetched() -> list[Any]:
        return [(one.name, len(one.events)) for one in await Tour.all().prefetch_related("events")]

    async def related() -> list[Any]:
        return [one.tour.name for one in await Event.all().select_related("tour").order_by("id").limit(2)]

    async def updated() -> bool:
        return (await Tour.update_or_create(name="T", defaults={"desc": "x"}))[1]

    async def made() -> bool:
        return (await Tour.get_or_create(name="T2"))[1]

    await step("prefetch_related", prefetched)
    await step("select_related", related)
    await step("update with F", lambda: Event.filter(name="n1").update(price=F("price") + 1))
    await step("update_or_create", updated)
    await step("get_or_create", made)
    await step("transaction, select_for_update", transaction)
    await step("contains of json", lambda: Event.filter(data__contains={"a": [1, {"b": 2}]}).count())
    await step("filter of json", lambda: Event.filter(data__filter={"a__0": 1}).count())
    await step("unique violation", lambda: Tour.create(name="T"))
    lower = Event.annotate(low=Lower("name")).filter(low="e").values_list("low", flat=True)
    await step("function", lambda: lower)
    of_tour = Tour.filter(name="T").values("id")
    await step("subquery", lambda: Event.filter(tour_id__in=Subquery(of_tour)).count())
    await step("bulk_update", update_many)
    await step("delete", lambda: Event.filter(name="n2").delete())
    await step("delete with its cascade", cascade)
    await Tortoise.close_connections()


if __name__ == "__main__":
    asyncio.run(main())
