"""Messages of the wire for tests: written as a client writes them, cut as a server sends them."""

from __future__ import annotations

import struct
from collections.abc import Iterator


class Written:
    """Messages as a client puts them on the wire."""

    @staticmethod
    def message(kind: str, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return kind.encode() + struct.pack("!i", len(body) + 4) + body

    @staticmethod
    def text(value: str) -> bytes:
        return value.encode() + b"\0"

    @staticmethod
    def packet(code: int, *parts: bytes) -> bytes:
        body = struct.pack("!I", code) + b"".join(parts)
        return struct.pack("!i", len(body) + 4) + body

    def startup(self, version: int = 3 << 16, **parameters: str) -> bytes:
        named = {"user": "ann", "database": "ducktail", **parameters}
        pairs = [self.text(word) for pair in named.items() for word in pair]
        return self.packet(version, *pairs, b"\0")

    def query(self, text: str) -> bytes:
        return self.message("Q", self.text(text))

    def parse(self, text: str, name: str = "", oids: tuple[int, ...] = ()) -> bytes:
        packed = struct.pack(f"!H{len(oids)}I", len(oids), *oids)
        return self.message("P", self.text(name), self.text(text), packed)

    def bind(
        self,
        portal: str = "",
        name: str = "",
        values: tuple[bytes | None, ...] = (),
        formats: tuple[int, ...] = (),
        results: tuple[int, ...] = (),
    ) -> bytes:
        raw = [struct.pack("!i", -1) if v is None else struct.pack("!i", len(v)) + v for v in values]
        return self.message(
            "B",
            self.text(portal),
            self.text(name),
            struct.pack(f"!H{len(formats)}H", len(formats), *formats),
            struct.pack("!H", len(values)),
            *raw,
            struct.pack(f"!H{len(results)}H", len(results), *results),
        )

    def describe(self, kind: str, name: str = "") -> bytes:
        return self.message("D", kind.encode(), self.text(name))

    def close(self, kind: str, name: str = "") -> bytes:
        return self.message("C", kind.encode(), self.text(name))

    def execute(self, portal: str = "", max_rows: int = 0) -> bytes:
        return self.message("E", self.text(portal), struct.pack("!i", max_rows))

    @property
    def sync(self) -> bytes:
        return self.message("S")

    @property
    def flush(self) -> bytes:
        return self.message("H")

    @property
    def terminate(self) -> bytes:
        return self.message("X")


def answers(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The type letter and body of each message that a server wrote."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("!i", data, at + 1)
        yield chr(data[at]), data[at + 5 : at + 1 + length]
        at += 1 + length


def fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse or NoticeResponse."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
