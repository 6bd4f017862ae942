"""One server with load, and one headless Chromium for all tests of the console."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless_chromium import headless_chromium
from playwright.sync_api import Browser, Page
from server_process import ServerProcess

ADDRESS = re.compile(r"^console at (http://\S+/)$")
# A test waits for what it expects for so long; a page that shows it does so within a refresh.
EXPECT_MS = 15_000
# Names and values of somebody who would like to be markup.
HOSTILE = "<img src=x onerror=alert(1)>"
STREAM = '"<script>window.pwned=1</script>"'

SHOP = (
    "CREATE TABLE orders (id INT PRIMARY KEY, customer TEXT, status TEXT, amount DECIMAL(20, 2))",
    "CREATE STREAM orders_stream ON orders WITH (partitions = 4)",
    "CREATE CONSUMER GROUP billing ON orders_stream",
    "CREATE TABLE still (id INT PRIMARY KEY, note TEXT, big BIGINT)",
    "CREATE STREAM still_stream ON still WITH (partitions = 2)",
    "CREATE CONSUMER GROUP behind ON still_stream",
    "CREATE CONSUMER GROUP shared ON still_stream WITH (session_timeout = '600 s')",
    "INSERT INTO still SELECT i, repeat('long ', 100), 9007199254740993 FROM range(20) r(i)",
    *[f"SELECT lsn FROM STREAM still_stream CONSUMER GROUP shared MEMBER 'worker-{n}'" for n in "abab"],
    "CREATE TOPIC clicks WITH (partitions = 2)",
    "CREATE SCHEMA sales",
    "CREATE TABLE sales.customers (id INT PRIMARY KEY)",
    "CREATE STREAM sales.customers_stream ON sales.customers",
    f'CREATE TABLE "{HOSTILE}" ("{HOSTILE}" TEXT PRIMARY KEY, id INT)',
    f'CREATE STREAM {STREAM} ON "{HOSTILE}" WITH (partitions = 1)',
    f'CREATE CONSUMER GROUP "{HOSTILE}" ON {STREAM}',
    f"""INSERT INTO "{HOSTILE}" VALUES ('{HOSTILE}', 1), ('"><svg onload=alert(2)>', 2)""",
)


class Load:
    """A writer and a reader, until the end."""

    def __init__(self, server: ServerProcess) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(server,))
        self._thread.start()
        self.error: Exception | None = None

    def _work(self, server: ServerProcess) -> None:
        try:
            with server.connect() as connection:
                number = 0
                while not self._over.wait(0.05):
                    number += 1
                    connection.execute("INSERT INTO orders VALUES (%s, 'ann', 'new', 12.50)", [number])
                    connection.execute("UPDATE orders SET status = 'paid' WHERE id = %s", [number])
                    connection.execute("""PUBLISH TO clicks KEY 'ada' '{"page": "/start"}'""")
                    if number % 10 == 0:
                        connection.execute(
                            "SELECT lsn FROM STREAM orders_stream CONSUMER GROUP billing LIMIT 15"
                        )
                        connection.execute("COMMIT OFFSETS ON orders_stream CONSUMER GROUP billing")
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of a shop, with load."""
    path = tmp_path_factory.mktemp("console") / "shop.duckdb"
    with ServerProcess(path, ("--port", "0", "--http", "127.0.0.1:0")) as server:
        with server.connect() as connection:
            for statement in SHOP:
                connection.execute(statement)
        load = Load(server)
        yield server
        load.end()


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    """The console's address, as the command prints it."""
    [found] = [match[1] for line in server.lines if (match := ADDRESS.match(line))]
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all pages."""
    with headless_chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the console; an error in it, a refused resource among them, fails the test."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(EXPECT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page
    context.close()
    # A refused request is told by the browser as well; the tests that want one look at its answer.
    assert [error for error in errors if "Failed to load resource" not in error] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that judges a page's accessibility."""
    modules = Path(__file__).parents[2] / "build" / "node" / "node_modules"
    return (modules / "axe-core" / "axe.min.js").read_text()
