"""The console's views of sinks, with real receivers: one accepts all, one refuses, one is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from server_process import ServerProcess
from webhook_receiver import ReceiverProcess, until

QUICK = "backoff = '10 ms', backoff_max = '50 ms'"
VIOLATIONS = "axe.run(document, { resultTypes: ['violations'] })"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose sinks are in each state."""
    folder = tmp_path_factory.mktemp("sinks")
    options = ("--port", "0", "--http", "127.0.0.1:0", "--allow-network", "127.0.0.0/8")
    with (
        ServerProcess(folder / "shop.duckdb", options) as server,
        ReceiverProcess(folder / "accepts") as accepts,
        ReceiverProcess(folder / "refuses") as refuses,
        server.connect() as connection,
    ):
        refuses.restart("picky")
        for statement in (
            "CREATE TABLE orders (id INT PRIMARY KEY, v TEXT)",
            "CREATE STREAM orders_stream ON orders",
            f"CREATE SINK billing ON orders_stream TO WEBHOOK '{accepts.url}' WITH ({QUICK})",
            f"CREATE SINK strict ON orders_stream TO WEBHOOK '{refuses.url}' "
            f"WITH ({QUICK}, on_failure = 'stop')",
            "CREATE SINK archive ON orders_stream TO RABBITMQ 'rabbitmq-stream://a:canary@127.0.0.1:1' "
            "STREAM 'x' WITH (backoff = '200 ms', backoff_max = '200 ms')",
            f"CREATE SINK later ON orders_stream TO WEBHOOK '{accepts.url}'",
            "PAUSE SINK later ON orders_stream",
            "INSERT INTO orders SELECT i, 'x' FROM range(20) r(i)",
            "INSERT INTO orders VALUES (100, 'bad')",
        ):
            connection.execute(statement.encode())

        def conditions() -> Any:
            return connection.execute(
                "SELECT sink_name, state, lag_events, fault IS NULL FROM ducktail.sinks ORDER BY 1"
            ).fetchall()

        wanted = [("archive", "running", 21, False), ("billing", "running", 0, True)]
        until(lambda: conditions()[:2] == wanted and conditions()[3][1] == "stopped")
        yield server


def cells(page: Page, name: str) -> list[str]:
    """The texts of a sink's row."""
    row = page.locator("tbody tr").filter(has=page.get_by_role("button", name=name, exact=True))
    return row.locator("td").all_inner_texts()


def test_states_and_problems(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Sinks").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    assert cells(page, "billing")[2:6] == ["webhook", "running", "–", "0"]
    stopped = cells(page, "strict")
    assert stopped[3] == "stopped" and "HTTP 422" in stopped[4] and stopped[5] == "1"
    failing = cells(page, "archive")
    assert failing[2:4] == ["rabbitmq", "failing"] and "Connect call failed" in failing[4]
    assert failing[5] == "21"
    assert cells(page, "later")[3:6] == ["paused", "–", "21"]
    expect(page.locator(".tile").filter(has_text="Cannot deliver")).to_contain_text("2")
    page.get_by_role("button", name="archive", exact=True).click()
    detail = page.locator("section").filter(has=page.get_by_role("heading", name="archive"))
    expect(detail).to_contain_text("rabbitmq-stream://127.0.0.1:1/%2F/x")
    assert "canary" not in page.content()


def test_the_overview_names_those_that_do_not_deliver(page: Page) -> None:
    attention = page.locator("section").filter(has=page.get_by_role("heading", name="Needs attention"))
    for text in ("Sink strict is stopped", "Sink archive is failing", "Sink later is paused"):
        expect(attention).to_contain_text(text)
    expect(attention).not_to_contain_text("Nobody reads as")


def test_a_paused_sink_is_resumed(page: Page, server: ServerProcess) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Sinks").click()
    page.get_by_role("button", name="later", exact=True).click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_contain_text('RESUME SINK "later" ON "main"."orders_stream"')
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    with server.connect() as connection:
        text = "SELECT lag_events FROM ducktail.sinks WHERE sink_name = 'later'"
        until(lambda: connection.execute(text).fetchall() == [(0,)])
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
        connection.execute("DROP SINK later ON orders_stream")
        connection.execute("CREATE SINK later ON orders_stream TO WEBHOOK 'https://later.invalid/'")
        connection.execute("PAUSE SINK later ON orders_stream")


def test_deliveries_are_shown_the_latest_first(page: Page) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Deliveries").click()
    expect(page.locator("tbody tr").first).to_contain_text("archive")
    expect(page.locator("tbody tr").first).to_contain_text("retried")
    page.get_by_role("button", name="Sink").click()
    expect(page.locator("tbody tr").first).to_contain_text("archive")
    page.get_by_role("button", name=re.compile("^Status")).click()
    stopped = page.locator("tbody tr").filter(has_text="stopped").first
    expect(stopped).to_contain_text("422")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_views_of_sinks(browser: Browser, address: str, axe: str, theme: Any) -> None:
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(f"{address}#/sinks")
    page.evaluate(axe)
    page.get_by_role("button", name="strict", exact=True).click()
    assert page.evaluate(VIOLATIONS)["violations"] == []
    page.get_by_role("navigation").get_by_role("link", name="Deliveries").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    assert page.evaluate(VIOLATIONS)["violations"] == []
    context.close()


def test_a_narrow_window_does_not_scroll_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("sinks", "deliveries"):
        page.evaluate("path => { location.hash = `#/${path}` }", path)
        expect(page.locator("tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
