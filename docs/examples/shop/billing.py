"""Makes an invoice for each order that is paid in the shop.

    python billing.py "host=127.0.0.1 port=5480 dbname=shop"

The events say which orders were paid; their lines are in the mirror, which never disagrees with the events:
both change in one transaction. The invoices and the position of the group are written in one transaction as
well, so each order has one invoice, wherever this program is stopped, killed or started again.
"""

from __future__ import annotations

import signal
import sys

import psycopg

READ = """
    SELECT table_name, op, after FROM STREAM shop CONSUMER GROUP billing WAIT '1 s' LIMIT 100 TRANSACTIONS
"""
INVOICE = """
    INSERT INTO invoices
    SELECT o.id, o.customer, sum(l.quantity * l.price)
    FROM orders AS o JOIN lines AS l ON l.order_id = o.id WHERE o.id = %s GROUP BY ALL
"""
COMMIT = "COMMIT OFFSETS ON shop CONSUMER GROUP billing"

stopping = False


def stop(number: int, frame: object) -> None:
    """SIGTERM or Ctrl-C: finish the batch."""
    global stopping
    stopping = True


def step(connection: psycopg.Connection) -> int:
    """Read a batch of transactions, write their invoices, and commit both; returns the invoices."""
    with connection.transaction():
        events = connection.execute(READ).fetchall()
        paid = [
            after["id"]
            for table, op, after in events
            if table == "public.orders" and op in ("update", "snapshot") and after["status"] == "paid"
        ]
        for order in paid:
            connection.execute(INVOICE, [order])
        if events:
            connection.execute(COMMIT)
    return len(paid)


def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        while not stopping:
            invoices = step(connection)
            if invoices:
                print(f"{invoices} invoices", flush=True)


if __name__ == "__main__":
    main()
