"""The console in headless Chromium, under load: each view by mouse and keyboard, hostile names, axe-core."""

from __future__ import annotations

import http.client
import json
import re
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from server_process import ServerProcess

pytestmark = pytest.mark.chromium

HOSTILE = "<img src=x onerror=alert(1)>"
STREAM = "<script>window.pwned=1</script>"
EXPECT_MS = 15_000
expect.set_options(timeout=EXPECT_MS)

# Entry of the navigation -> text that its view shows.
VIEWS = {
    "Overview": "Needs attention",
    "Streams and topics": "still_stream",
    "Live tail": "The tail is stopped.",
    "SQL": "Rows at most",
    "Consumer groups": "Lag over time",
    "Parked events": "event",
    "Sinks": "There are no sinks.",
    "Deliveries": "No delivery is recorded.",
    "Sources": "There are no sources.",
    "Pipelines": "No pipeline has reported.",
    "Checkpoints": "position type",
    "Bookmarks": "There are no bookmarks.",
    "Sessions": "Longest transaction",
    "Disk and retention": "Write-ahead log",
    "Nodes": "local",
    "Settings": "max_connections",
}
HOSTILE_PATH = "%3Cscript%3Ewindow.pwned%3D1%3C%2Fscript%3E"
DETAILS = (
    "streams/main/still_stream",
    "groups/main/still_stream/shared",
    f"streams/main/{HOSTILE_PATH}",
    f"groups/main/{HOSTILE_PATH}/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
)


def opened(page: Page, name: str) -> None:
    """Go to a view by its entry in the navigation."""
    page.get_by_role("navigation").get_by_role("link", name=re.compile(f"^{name}")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


def at(page: Page, path: str) -> None:
    """Go to an address of the console, whose view has been filled then."""
    page.evaluate("path => { location.hash = `#/${path}` }", path)
    expect(page.locator(".content .panel, .content .empty").first).to_be_visible()


def row(page: Page, text: str) -> Any:
    """The row of a table that has a cell with exactly this text."""
    return page.locator("tbody tr").filter(has=page.get_by_text(text, exact=True)).first


def park(server: ServerProcess) -> tuple[int, int]:
    """Park the next event of group behind, commit past it, and return its partition and LSN."""
    with server.connect() as connection:
        first = connection.execute(
            "SELECT partition, lsn FROM STREAM still_stream CONSUMER GROUP behind LIMIT 1"
        ).fetchone()
        assert first is not None
        connection.execute(
            f"ALTER CONSUMER GROUP behind ON still_stream PARK PARTITION {first[0]} AT {first[1]} "
            f"REASON '{HOSTILE}'"
        )
        connection.execute(
            f"COMMIT OFFSET PARTITION {first[0]} AT {first[1]} ON still_stream CONSUMER GROUP behind"
        )
    return first[0], first[1]


def states(server: ServerProcess) -> dict[int, str]:
    with server.connect() as connection:
        return dict(connection.execute("SELECT lsn, state FROM ducktail.parked").fetchall())


def test_each_view_is_one_click_away(page: Page) -> None:
    for name, text in VIEWS.items():
        opened(page, name)
        expect(page.locator(".content")).to_contain_text(text)
        expect(page.locator(".banner")).to_be_empty()
    entries = page.get_by_role("navigation").get_by_role("link")
    assert {text.strip() for text in entries.all_inner_texts()} == set(VIEWS)


def test_numbers_are_those_of_the_views(page: Page, server: ServerProcess) -> None:
    with server.connect() as connection:
        size = connection.execute(
            "SELECT bytes FROM ducktail.streams WHERE stream_name = 'still_stream'"
        ).fetchone()
        events = connection.execute(
            "SELECT events FROM ducktail.partitions WHERE stream_name = 'still_stream' ORDER BY partition"
        ).fetchall()
    assert size is not None
    opened(page, "Streams and topics")
    expect(row(page, "still_stream")).to_be_visible()
    cells = row(page, "still_stream").locator("td").all_inner_texts()
    assert cells[1:3] == ["main.still", "2"]
    assert cells[4:6] == [
        "20",
        f"{size[0] / 1024:.1f} KiB" if size[0] < 102400 else f"{size[0] / 1024:.0f} KiB",
    ]
    page.get_by_role("link", name="still_stream").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("still_stream")
    rows = page.get_by_role("region", name="Partitions").locator("tbody tr")
    expect(rows).to_have_count(2)
    assert [found.locator("td").nth(3).inner_text() for found in rows.all()] == [str(n) for (n,) in events]
    expect(page.get_by_role("region", name="Versions of the columns")).to_contain_text("note VARCHAR")
    page.get_by_role("link", name="behind", exact=True).click()
    expect(page.locator(".tile").first).to_contain_text("20")


def test_lag_is_drawn_over_time_and_owners_are_shown(page: Page) -> None:
    opened(page, "Consumer groups")
    line = page.locator(".chart path.line").first
    expect(line).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+L[\d.]+ [\d.]+"))
    expect(page.locator(".chart svg")).to_have_attribute(
        "aria-label", re.compile("behind on still_stream 20")
    )
    page.locator(".canvas").hover()
    expect(page.locator(".tip")).to_contain_text("behind on still_stream 20")
    row(page, "shared").get_by_role("link", name="shared").click()
    owners = page.locator(".squares li")
    expect(owners).to_have_count(2)
    assert sorted(text.split()[-1] for text in owners.all_text_contents()) == ["worker-a", "worker-b"]
    expect(page.get_by_role("region", name="Members")).to_contain_text("worker-b")


def test_tables_are_sorted_by_their_columns(page: Page) -> None:
    opened(page, "Streams and topics")
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Partitions").click()
    header = page.get_by_role("columnheader", name="Partitions")
    expect(header).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Partitions").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    counts = [int(found.locator("td").nth(2).inner_text()) for found in page.locator("tbody tr").all()]
    assert counts == sorted(counts)
    page.get_by_label("Filter by name or table").fill("sales.")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_the_tail_shows_pauses_filters_and_compares(page: Page, server: ServerProcess) -> None:
    at(page, "streams/main/still_stream")
    page.get_by_role("link", name="Live tail", exact=True).last.click()
    expect(page.locator(".status")).to_contain_text("live")
    with server.connect() as connection:
        connection.execute("INSERT INTO still VALUES (100, 'first', 1)")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Pause", exact=True).click()
        connection.execute("UPDATE still SET note = 'second' WHERE id = 100")
        expect(page.locator(".status")).to_contain_text("; 1 new")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.locator("tbody tr").first).to_contain_text("note: first → second")
        page.locator("tbody tr").first.get_by_role("button").click()
        changed = page.locator(".difference tr.changed")
        expect(changed).to_have_count(1)
        assert changed.locator("th, td").all_inner_texts()[1:] == ["first", "second"]
        expect(changed.locator("th")).to_contain_text("note")

        page.get_by_label("Where").fill("op = 'delete'")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".status")).to_contain_text("0 events received")
        expect(page.locator(".status")).to_contain_text("live")
        connection.execute("UPDATE still SET note = 'third' WHERE id = 100")
        connection.execute("DELETE FROM still WHERE id = 100")
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr").first).to_contain_text("delete")

        page.get_by_label("Where").fill("no_such_column = 1")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("alert")).to_contain_text("no_such_column")
        expect(page.get_by_role("alert")).to_contain_text("SQLSTATE")
        expect(page.locator(".status")).to_contain_text("stopped")


def test_the_tail_of_a_busy_stream_is_bounded(page: Page) -> None:
    at(page, "tail/main/orders_stream")
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("From").select_option("first")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".status")).to_contain_text(re.compile(r"\b([3-9]\d\d|\d,\d{3}) events received"))
    assert page.locator("tbody tr").count() == 300


def test_sql_shows_rows_and_errors(page: Page) -> None:
    opened(page, "SQL")
    box = page.get_by_label("Statement")
    box.fill(
        "SELECT 9007199254740993 AS big, 0.10::DECIMAL(9,2) AS price, NULL AS none, repeat('x', 500) AS long"
    )
    box.press("Control+Enter")
    cells = page.locator("tbody td")
    expect(cells).to_have_count(4)
    assert cells.all_inner_texts()[:3] == ["9007199254740993", "0.10", "NULL"]
    page.get_by_role("button", name="Whole value of long").click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text("x" * 500)
    page.keyboard.press("Escape")
    box.fill("SELECT wrong FROM still")
    page.get_by_role("button", name="Execute").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("42703")
    expect(alert).to_contain_text("wrong")
    box.press("Alt+ArrowUp")
    expect(box).to_have_value(re.compile("^SELECT 9007199254740993"))
    page.get_by_label("Rows at most").select_option("100")
    box.fill("SELECT i FROM range(101) r(i)")
    box.press("Control+Enter")
    expect(page.get_by_text("Only the first 100 rows are shown.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("tbody tr")).to_have_count(100)
    box.fill("SELECT count(*) FROM range(100000000000) a(i), range(1000000) b(j)")
    box.press("Control+Enter")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("The statement was cancelled.")).to_be_visible()


def test_parked_events_are_discarded(page: Page, server: ServerProcess) -> None:
    _, lsn = park(server)
    opened(page, "Parked events")
    page.get_by_role("button", name=f"Event {lsn}", exact=True).click()
    expect(page.locator(".difference")).to_contain_text("note")
    page.get_by_role("button", name="Discard").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('ON "main"."still_stream" DISCARD PARTITION')
    dialog.get_by_role("button", name="Cancel").click()
    assert states(server) == {lsn: "parked"}
    page.get_by_role("button", name="Discard").click()
    dialog.get_by_role("button", name="Discard").click()
    expect(page.get_by_text("No event is parked.")).to_be_visible()
    assert states(server) == {}


def test_the_keyboard_alone(page: Page, server: ServerProcess) -> None:
    """From the first Tab to a released event, without a mouse; the focus is visible, and kept."""
    _, lsn = park(server)
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.reload()
    expect(page.locator(".tile").first).to_be_visible()
    seen = []
    for _ in range(40):
        press("Tab")
        name = page.evaluate("document.activeElement.innerText").strip()
        seen.append(name)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", name
        if name.startswith("Parked events"):
            break
    entries = ["Streams and topics", "Live tail", "SQL", "Consumer groups", "Parked events"]
    assert [name.partition("\n")[0] for name in seen[-5:]] == entries
    press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    event = page.get_by_role("button", name=f"Event {lsn}", exact=True)
    expect(event).to_be_visible()
    tab_to(page, f"Event {lsn}")
    press("Enter")
    expect(event).to_have_attribute("aria-expanded", "true")
    with page.expect_response(re.compile("/v1/views/parked")):
        pass
    expect(event).to_be_focused()
    tab_to(page, "Release")
    press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    press("Tab")
    press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("tbody").first).to_contain_text("released")
    assert states(server) == {lsn: "released"}


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element of this name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        told = "(e => e.getAttribute('aria-label') ?? e.innerText)(document.activeElement)"
        if page.evaluate(told).strip() == name:
            return
    raise AssertionError(f"Tab does not lead to {name}")


def test_names_and_values_are_never_markup(page: Page) -> None:
    for path in ("", "streams", "groups", *DETAILS[2:]):
        at(page, path)
        expect(page.locator(".content")).to_contain_text("<")
    at(page, f"tail/main/{HOSTILE_PATH}")
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("From").select_option("first")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("tbody button").first.click()
    expect(page.locator(".difference")).to_contain_text(HOSTILE)
    assert page.evaluate("window.pwned") is None
    assert page.locator("body script, img[src=x], svg[onload]").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, address: str, axe: str, theme: Any) -> None:
    context = browser.new_context(viewport={"width": 1360, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(address)
    page.evaluate(axe)
    for path in (
        "",
        "streams",
        *DETAILS[:2],
        "groups",
        "parked",
        "tail/main/orders_stream",
        "sessions",
        "storage",
        "settings",
    ):
        at(page, path)
        if path.startswith("tail"):
            page.locator("tbody button").first.click()
        assert violations(page) == [], path
    at(page, "sql")
    page.get_by_role("button", name="Execute").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    assert violations(page) == []
    page.get_by_label("Statement").fill("SELECT wrong")
    page.get_by_role("button", name="Execute").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert violations(page) == []
    switch = page.get_by_role("button", name="Light colours" if theme == "dark" else "Dark colours")
    switch.click()
    assert page.evaluate("document.documentElement.dataset.theme") == ("light" if theme == "dark" else "dark")
    assert violations(page) == []
    context.close()


def violations(page: Page) -> list[str]:
    """The rules that a page breaks, with the elements that do."""
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def test_a_narrow_window_has_a_menu_and_no_scrolling_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("", "streams", "groups", "parked", "tail", "sql", "sessions", "storage", *DETAILS):
        at(page, path) if path not in ("tail", "sql") else page.evaluate(
            "p => { location.hash = '#/' + p }", path
        )
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, path
    menu = page.get_by_role("button", name="Menu")
    expect(page.get_by_role("link", name="Sessions")).to_be_hidden()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")


def test_a_paused_or_hidden_page_asks_nothing(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    expect(page.locator(".tile").first).to_be_visible()
    hide = (
        "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')) }"
    )
    page.evaluate(hide, True)
    page.wait_for_timeout(1000)  # A refresh that was under way ends, and the next does not begin.
    asked.clear()
    page.wait_for_timeout(3200)
    assert asked == []
    with page.expect_request(re.compile("/v1/views/streams")):
        page.evaluate(hide, False)
    page.get_by_role("button", name="Pause updates").click()
    page.wait_for_timeout(1000)
    asked.clear()
    page.wait_for_timeout(3200)
    assert asked == []
    with page.expect_request(re.compile("/v1/views/streams")):
        page.get_by_role("button", name="Resume updates").click()


def test_files_are_served_under_a_strict_policy(address: str) -> None:
    host = urlsplit(address).netloc
    connection = http.client.HTTPConnection(host, timeout=20)

    def get(path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    status, headers, _ = get("/")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert (
        "default-src 'none'" in policy
        and "unsafe" not in policy
        and "require-trusted-types-for 'script'" in policy
    )
    assert get("/", **{"If-None-Match": headers["ETag"]})[0] == 304
    assert get("/console/app.js")[1]["Content-Type"] == "text/javascript; charset=utf-8"
    for path in ("/console/none.js", "/console/..%2Fserver%2Ftls.py", "/console/views/..%2F..%2F__init__.py"):
        status, _, body = get(path)
        assert (status, json.loads(body)["error"]["sqlstate"]) == (404, "42704"), path
    connection.close()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    folder = files("ducktail.pgwire_gateway") / "console"
    texts = [folder.joinpath(name).read_text() for name in ("index.html", "style.css", "icon.svg")]
    texts += [
        entry.read_text()
        for entry in [*folder.iterdir(), *folder.joinpath("views").iterdir()]
        if entry.name.endswith(".js")
    ]
    assert len(texts) > 15
    for text in texts:
        assert set(re.findall(r"\w+://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|\son\w+=\"", text)


def test_signing_in(browser: Browser, address: str, server: ServerProcess) -> None:
    """The last test: once there are users, the API wants one."""
    with server.connect() as connection:
        connection.execute("CREATE USER root PASSWORD 'r😀ot:pass' SUPERUSER")
    with server.connect(user="root", password="r😀ot:pass") as connection:
        connection.execute("CREATE USER eve PASSWORD 'evening-star'")
        connection.execute("GRANT SELECT ON STREAM orders_stream TO eve")
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="Sign in")).to_be_visible()
    dialog.get_by_label("User").fill("root")
    dialog.get_by_label("Password", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("28P01")
    dialog.get_by_label("User").fill("root")
    dialog.get_by_label("Password", exact=True).fill("r😀ot:pass")
    page.keyboard.press("Enter")
    expect(page.get_by_text("User root")).to_be_visible()
    expect(page.locator("tbody tr").first).to_be_visible()
    page.reload()
    expect(page.get_by_text("User root")).to_be_visible()
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    page.get_by_role("button", name="Sign out").click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("User").fill("eve")
    dialog.get_by_label("Password", exact=True).fill("evening-star")
    page.keyboard.press("Enter")
    expect(page.get_by_text("User eve")).to_be_visible()
    at(page, "streams")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("orders_stream")
    context.close()
