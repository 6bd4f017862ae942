"""A shop that sells, in its own PostgreSQL: orders are placed, and then paid or cancelled.

    python sell.py "host=127.0.0.1 dbname=shop" --orders 500

It knows nothing of ducktail. Each step is one transaction.
"""

from __future__ import annotations

import argparse
import random

import psycopg

PRODUCTS = {"tea": "4.50", "pot": "24.90", "cup": "7.20", "kettle": "39.00", "honey": "6.80"}
CUSTOMERS = ("Ann", "Bob", "Cleo", "Dan", "Eve")
ORDER = "INSERT INTO orders (customer) VALUES (%s) RETURNING id"
LINE = "INSERT INTO lines VALUES (%s, %s, %s, %s, %s)"
PAID = "UPDATE orders SET status = 'paid' WHERE id = %s"
CANCELLED = "DELETE FROM orders WHERE id = %s"
# So many orders are open at a time.
OPEN = 10


def place(connection: psycopg.Connection, chance: random.Random) -> int:
    """Place an order; returns its number."""
    with connection.transaction(), connection.cursor() as cursor:
        row = cursor.execute(ORDER, [chance.choice(CUSTOMERS)]).fetchone()
        assert row is not None
        products = chance.sample(sorted(PRODUCTS), chance.randint(1, 3))
        lines = [
            (row[0], line, product, chance.randint(1, 4), PRODUCTS[product])
            for line, product in enumerate(products, 1)
        ]
        cursor.executemany(LINE, lines)
    return int(row[0])


def finish(connection: psycopg.Connection, chance: random.Random, number: int) -> None:
    """The customer pays, or cancels one order of ten."""
    connection.execute(CANCELLED if chance.random() < 0.1 else PAID, [number])


def main() -> None:
    """Sell, and say what was sold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("conninfo", help="the shop's PostgreSQL")
    parser.add_argument("--orders", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance, waiting = random.Random(arguments.seed), list[int]()
    with psycopg.connect(arguments.conninfo, autocommit=True) as connection:
        for _ in range(arguments.orders):
            waiting.append(place(connection, chance))
            if len(waiting) > OPEN:
                finish(connection, chance, waiting.pop(chance.randrange(len(waiting))))
        for number in waiting:
            finish(connection, chance, number)
        for status, orders in connection.execute("SELECT status, count(*) FROM orders GROUP BY status"):
            print(f"{orders} orders are {status}")


if __name__ == "__main__":
    main()
