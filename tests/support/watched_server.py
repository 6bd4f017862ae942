"""A server with a port for its metrics, as a test asks it."""

from __future__ import annotations

import json
import socket
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess

ANSWER_TIMEOUT_S = 20.0
WORDS = ("--port", "0", "--metrics-port", "0", "--log-format", "json", "--retention-interval-ms", "3600000")


class Watched:
    """A server with its other port."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        told = [json.loads(line) for line in server.lines if line.startswith("{")]
        # Of its latest start.
        event = [event for event in told if event["message"] == "metrics are served"][-1]
        assert event["host"] == "127.0.0.1"
        self.port: int = event["port"]

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and body."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def raw(self, data: bytes) -> bytes:
        """What comes back for bytes that no library would send, up to the end."""
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT_S) as client:
            client.sendall(data)
            found = b""
            try:
                while more := client.recv(65536):
                    found += more
            except ConnectionResetError:
                pass
            return found

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Name, and label values by their labels' alphabet -> value."""
        status, text = self.get("/metrics")
        assert status == 200
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = [value for _, value in sorted(sample.labels.items())]
                found[sample.name.removeprefix("ducktail_"), *labels] = sample.value
        return found
