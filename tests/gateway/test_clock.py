"""A server whose machine's clock jumps a year forward for one publication, and back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from preloaded import ran
from prometheus_client.parser import text_string_to_metric_families
from server_process import STOP_TIMEOUT_S, ServerProcess

YEAR_S = 365 * 86_400
# Read by each process that has this directory among its modules: what the system says, and so much more.
CLOCK = """
import os, time
told, place = time.time_ns, os.environ["TEST_CLOCK"]
def time_ns():
    with open(place) as file:
        return told() + int(file.read() or 0) * 10**9
time.time_ns = time_ns
"""
DONE = "1 commits were later than the clock, and have its time now\n"
WORDS = ("--port", "0", "--metrics-port", "0", "--log-format", "json", "--retention-interval-ms", "100")


def metric(server: ServerProcess, name: str) -> float:
    """One number of a scrape."""
    events = [json.loads(line) for line in server.lines if line.startswith("{")]
    port = [event["port"] for event in events if event["message"] == "metrics are served"][-1]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=STOP_TIMEOUT_S) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    return float(families[name].samples[0].value)


def until(found: Callable[[], bool]) -> None:
    """Wait for what a pass of retention does."""
    ends = time.monotonic() + STOP_TIMEOUT_S
    while not found():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_jump_is_told_and_ends(tmp_path: Path, serve: Callable[..., ServerProcess]) -> None:
    ahead = tmp_path / "ahead"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK)
    ahead.write_text("0")
    around = {"PYTHONPATH": str(tmp_path / "site"), "TEST_CLOCK": str(ahead)}
    server = serve("shop.duckdb", options=WORDS, environment=around)
    with server.connect() as client:
        client.execute("CREATE TOPIC jumps WITH (retention = '1 s')")
        client.execute("PUBLISH TO jumps '1'")
        ahead.write_text(str(YEAR_S))
        client.execute("PUBLISH TO jumps '2'")
        ahead.write_text("0")
        client.execute("PUBLISH TO jumps '3'")

        def retained() -> Any:
            return client.execute("SELECT events FROM ducktail.streams").fetchone()

        until(lambda: retained() == (0,))
        assert YEAR_S - 60 < metric(server, "ducktail_commit_time_ahead_seconds") <= YEAR_S
        assert metric(server, "ducktail_retention_time_behind_seconds") == 0
    events = [json.loads(line) for line in server.lines if line.startswith("{")]
    jumps = [round(e["seconds"] / YEAR_S) for e in events if e["message"] == "the machine's clock has jumped"]
    assert jumps == [1, -1]
    [told] = [e for e in events if e["message"] == "commit times are ahead of the machine's clock"]
    assert round(told["seconds"] / YEAR_S) == 1
    reset = ["reset-commit-times", str(server.path)]
    busy = ran(reset)
    assert (busy.returncode, busy.stdout) == (1, "")
    server.stop()
    done = ran(reset)
    assert (done.returncode, done.stdout) == (0, DONE)
    server.start()
    assert metric(server, "ducktail_commit_time_ahead_seconds") == 0
    with server.connect() as client:
        client.execute("PUBLISH TO jumps '4'")
        [(lsn, late)] = client.execute(
            "SELECT lsn, commit_time BETWEEN now() - INTERVAL 1 MINUTE AND now() FROM STREAM jumps"
        ).fetchall()
        assert (lsn, late) == (4, True)
