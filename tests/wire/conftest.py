"""What the wire tests share: messages as a client writes them, and a conversation without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from wire_messages import Written, answers, fields


@pytest.fixture
def written() -> Written:
    """Writes messages as a client does."""
    return Written()


@pytest.fixture
def read_answers() -> Callable[[bytes], list[tuple[str, bytes]]]:
    """Cuts what a server wrote into (type letter, body)."""
    return lambda data: list(answers(data))


@pytest.fixture
def read_fields() -> Callable[[bytes], dict[str, str]]:
    """The fields of an error or a notice by their letters."""
    return fields


@pytest.fixture
def samples(written: Written) -> dict[str, tuple[bytes, Any]]:
    """One sample of every message that a client may send once it is in."""
    from ducktail.pgwire_gateway.codec import frontend as f

    return {
        "query": (written.query("select 'é'"), f.Query("select 'é'")),
        "query, empty": (written.query(""), f.Query("")),
        "parse": (written.parse("select $1", "s", (23, 0)), f.Parse("s", "select $1", (23, 0))),
        "parse, unnamed": (written.parse("select 1"), f.Parse("", "select 1", ())),
        "bind": (
            written.bind("p", "s", (b"\0\1", None, b""), (1, 0, 0), (1,)),
            f.Bind("p", "s", (1, 0, 0), (b"\0\1", None, b""), (1,)),
        ),
        "bind, nothing": (written.bind(), f.Bind("", "", (), (), ())),
        "describe statement": (written.describe("S", "s"), f.Describe("S", "s")),
        "describe portal": (written.describe("P"), f.Describe("P", "")),
        "close statement": (written.close("S", "s"), f.Close("S", "s")),
        "close portal": (written.close("P", "p"), f.Close("P", "p")),
        "execute": (written.execute("p", 10), f.Execute("p", 10)),
        "execute, no limit": (written.execute(), f.Execute("", 0)),
        "sync": (written.sync, f.Sync()),
        "flush": (written.flush, f.Flush()),
        "terminate": (written.terminate, f.Terminate()),
        "copy data": (written.message("d", b"1\t2\n"), f.CopyData(b"1\t2\n")),
        "copy done": (written.message("c"), f.CopyDone()),
        "copy fail": (written.message("f", b"no\0"), f.CopyFail("no")),
        "function call": (written.message("F", bytes(10)), f.FunctionCall()),
        "password": (written.message("p", b"secret\0"), f.Password(b"secret\0")),
    }
