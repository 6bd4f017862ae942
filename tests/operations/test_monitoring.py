"""The alert rules and the dashboard of docs/operations: with promtool, and in a Prometheus beside a server.

Grafana is not tried: the dashboard's structure is checked, and Prometheus answers each of its queries.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
import pytest
from cluster_processes import free_ports
from server_process import ServerProcess
from watched_server import Watched
from webhook_receiver import ReceiverProcess

from ducktail.engine.replication.objects import VERIFIED, write_object
from ducktail.engine.replication.targets import DirectoryTarget

pytestmark = pytest.mark.prometheus

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
RULES, CONFIGURATION = OPERATIONS / "alerts.yml", OPERATIONS / "prometheus.yml"
DASHBOARD = OPERATIONS / "dashboard.json"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yml")

METRIC = re.compile(r"\b(?:ducktail|process)_[a-z_]+\b")
ALERT = re.compile(r"^\s+- alert: (\w+)$", re.MULTILINE)
OPTIONS = (
    *("--port", "0", "--metrics-port", "0", "--log-format", "json"),
    *("--allow-network", "127.0.0.0/8", "--retention-interval-ms", "100"),
)
READY_S = 60.0
# What Grafana replaces before it sends a query.
VARIABLES = {"$__rate_interval": "5s", "$instance": ".*", "$schema": ".*", "$stream": ".*"}
KINDS = {"timeseries", "stat"}
GRID_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard, with its queries as Prometheus gets them."""

    title: str
    place: tuple[int, int, int, int]
    queries: tuple[str, ...]


def panels() -> list[Panel]:
    """The panels that show something."""
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            assert panel["type"] in KINDS
            queries = []
            for target in panel["targets"]:
                query = target["expr"]
                for variable, value in VARIABLES.items():
                    query = query.replace(variable, value)
                assert "$" not in query, query
                queries.append(query)
            grid = panel["gridPos"]
            found.append(Panel(panel["title"], (grid["x"], grid["y"], grid["w"], grid["h"]), tuple(queries)))
    return found


class Prometheus:
    """A Prometheus on loopback with the documented configuration, which scrapes one server each second.

    Args:
        place: a folder for its configuration and its data.
        target: the port of the metrics.
    """

    def __init__(self, place: Path, target: int) -> None:
        [self.port] = free_ports(1)
        text = CONFIGURATION.read_text()
        assert "127.0.0.1:9187" in text and text.count("interval: 15s") == 2
        text = text.replace("127.0.0.1:9187", f"127.0.0.1:{target}").replace("interval: 15s", "interval: 1s")
        (place / "prometheus.yml").write_text(text)
        shutil.copy(RULES, place)
        self._log = (place / "log").open("wb")
        words = [
            f"--config.file={place / 'prometheus.yml'}",
            f"--storage.tsdb.path={place / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._process = subprocess.Popen(
            ["prometheus", *words], stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(query)}"
        with urlopen(url, timeout=READY_S) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        return told["data"]

    def rules(self) -> list[Any]:
        """The rules, with their health and their alerts."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> dict[str, Any]:
        """The labels of an alert of each name that fires."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"}

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._log.close()


def until(condition: Any, told: str) -> Any:
    """The first true result of a condition."""
    ends_s = time.monotonic() + READY_S
    while True:
        try:
            if result := condition():
                return result
        except URLError:
            pass
        assert time.monotonic() < ends_s, told
        time.sleep(0.1)


def _copied(target: Path) -> tuple[str, ...]:
    """The options of a server whose copy was verified before."""
    target.mkdir()
    facts = {"kind": VERIFIED, "generation": "", "number": -1, "at_us": 1, "ok": True, "result": "ok"}
    write_object(DirectoryTarget(target), VERIFIED, facts, (), 0, replace=True)
    return ("--copy-to", str(target), "--synchronous-copies", "1", "--copy-verify-interval-ms", "0")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server in trouble: a stopped sink, a group whose events have been removed, lag, refused requests."""
    place = tmp_path_factory.mktemp("watched")
    with (
        ReceiverProcess(place / "received", "fails") as receiver,
        ServerProcess(place / "shop.duckdb", (*OPTIONS, *_copied(place / "copy"))) as server,
        server.connect() as wire,
    ):
        wire.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, v VARCHAR)")
        wire.execute("CREATE STREAM orders_s ON orders WITH (partitions = 1)")
        wire.execute("CREATE CONSUMER GROUP mail ON orders_s")
        wire.execute("CREATE STREAM short ON orders WITH (partitions = 1, retention = '1 s')")
        wire.execute("CREATE CONSUMER GROUP late ON short")
        wire.execute(
            f"CREATE SINK hook ON orders_s TO WEBHOOK '{receiver.url}'"
            " WITH (attempts = 1, on_failure = 'stop')"
        )
        for number in range(10):
            wire.execute(f"INSERT INTO orders VALUES ({number}, 'x')")
        with pytest.raises(psycopg.errors.UndefinedTable):
            wire.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.OperationalError):
            server.connect(dbname="elsewhere").close()
        yield Watched(server)


@pytest.fixture(scope="module")
def prometheus(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the server, and evaluated all rules."""
    process = Prometheus(tmp_path_factory.mktemp("prometheus"), watched.port)
    try:
        until(lambda: process.ask("query", query="ducktail_ready == 1")["result"], "nothing was scraped")
        until(lambda: all(rule["health"] == "ok" for rule in process.rules()), "a rule is not evaluated")
        yield process
    finally:
        process.close()


def promtool(*words: str) -> None:
    """Run promtool, which says what it refuses."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_configuration_are_valid() -> None:
    promtool("check", "config", str(CONFIGURATION))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def test_each_rule_fires_beyond_its_bound_and_not_before() -> None:
    promtool("test", "rules", str(UNIT_TESTS))
    healthy, broken = UNIT_TESTS.read_text().split("# Each value is just beyond its bound.")
    alerts = ALERT.findall(RULES.read_text())
    assert len(alerts) == len(set(alerts)) > 20
    for alert in alerts:
        assert f'{{alertname="{alert}"}}' in broken, alert
    # Whatever a rule looks at is there in good health as well: it is quiet because of its value.
    for metric in METRIC.findall(RULES.read_text()):
        assert f"'{metric}{{" in healthy and f"'{metric}{{" in broken, metric


def test_every_metric_is_one_of_the_server(watched: Watched) -> None:
    status, text = watched.get("/metrics")
    assert status == 200
    known = set(METRIC.findall("\n".join(line for line in text.splitlines() if line[:1] != "#")))
    used = set(METRIC.findall(RULES.read_text()))
    for panel in panels():
        used |= set(METRIC.findall(" ".join(panel.queries)))
    assert used - known == set()
    documented = (OPERATIONS.parent / "operations.md").read_text()
    for name in known:
        assert name.removeprefix("ducktail_") in documented, name


def test_the_structure_of_the_dashboard() -> None:
    """What Grafana requires of a file: unique ids, a grid without overlaps, one variable as data source."""
    board = json.loads(DASHBOARD.read_text())
    assert (board["uid"], board["title"]) == ("ducktail", "ducktail") and board["schemaVersion"] >= 30
    names = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert set(names) == {"datasource", "instance", "schema", "stream"}
    assert names["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
            letters = [target["refId"] for target in panel["targets"]]
            assert letters == sorted(set(letters)) and panel["description"] and panel["title"]
    cells = set[tuple[int, int]]()
    for panel in panels():
        x, y, width, height = panel.place
        mine = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert x + width <= GRID_COLUMNS and not mine & cells, panel.title
        cells |= mine


def test_each_query_of_the_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    # A rate wants two samples in its interval.
    rate = 'rate(ducktail_statements_total{kind="ours"}[5s])'
    until(lambda: prometheus.ask("query", query=rate)["result"], "no second sample")
    for panel in panels():
        for query in panel.queries:
            result = prometheus.ask("query", query=query)["result"]
            assert result, (panel.title, query)
            assert all(sample["value"][1] != "NaN" for sample in result), (panel.title, result)


def test_the_variables_of_the_dashboard_have_values(watched: Watched, prometheus: Prometheus) -> None:
    found = {}
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match, variable["query"]
            series = match[1]
            for name, value in VARIABLES.items():
                series = series.replace(name, value)
            found[variable["name"]] = prometheus.ask(f"label/{match[2]}/values", **{"match[]": series})
    assert found == {
        "instance": [f"127.0.0.1:{watched.port}"],
        "schema": ["main"],
        "stream": ["orders_s", "short"],
    }


def test_alerts_of_a_server_in_trouble(prometheus: Prometheus) -> None:
    """Those without a waiting time fire within some scrapes; no other does."""
    expected = {"DucktailSinkStopped", "DucktailEventsLost"}
    firing = until(lambda: expected <= set(prometheus.firing()) and prometheus.firing(), "no alert fires")
    assert set(firing) == expected
    stopped, lost = firing["DucktailSinkStopped"], firing["DucktailEventsLost"]
    assert stopped["annotations"]["summary"] == "Sink hook on main.orders_s has stopped"
    assert (lost["labels"]["stream"], lost["labels"]["group"]) == ("short", "late")
    names = [rule["name"] for rule in prometheus.rules()]
    assert sorted(names) == sorted(ALERT.findall(RULES.read_text()))
