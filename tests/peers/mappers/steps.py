"""Steps of a program: each prints its name and its value, or what went wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

HOST, PORT = os.environ["PGHOST"], int(os.environ["PGPORT"])
USER, DATABASE = os.environ["PGUSER"], os.environ["PGDATABASE"]
# Settings as -c name=value words.
OPTIONS = os.environ.get("PGOPTIONS", "")


def show(name: str, work: Callable[[], Any]) -> None:
    """Print a step's line."""
    try:
        value = work()
        told = "done" if value is None else json.dumps(value, default=str)
    except Exception as error:
        first = str(error).partition("\n")[0]
        told = f"error {type(error).__name__}: {first}"
    print(f"{name}\t{told}", flush=True)


def done(work: Callable[[], Any]) -> Callable[[], None]:
    """A step whose value is the library's own, and says nothing."""

    def wrapped() -> None:
        work()

    return wrapped
