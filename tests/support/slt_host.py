"""The server process behind the .slt files: serves any number of databases, each on a port of its own.

Reads a JSON object a line, answers with one a line: {"open": path, "settings": {}} with
{"port": n}, {"close": path} with {}. Ends when its input does.
"""

from __future__ import annotations

import json
import sys

import ducktail


def main() -> None:
    """Answer requests until the input ends."""
    opened: dict[str, ducktail.Connection] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "open" in request:
            connection = ducktail.connect(request["open"], **request["settings"])
            opened[request["open"]] = connection
            answer = {"port": connection.serve(port=0).port}
        else:
            opened.pop(request["close"]).close()
            answer = {}
        print(json.dumps(answer), flush=True)
    for connection in opened.values():
        connection.close()


if __name__ == "__main__":
    main()
