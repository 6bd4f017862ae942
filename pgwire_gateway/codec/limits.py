"""What a client may send and keep: the bounds of one connection, as its operator has set them."""

from __future__ import annotations

from dataclasses import dataclass

from .frontend import LARGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection.

    Args:
        unauthenticated_bytes_max: longest message of a client that is not let in yet, the startup packet
            included. PostgreSQL's bound: whoever has not said who he is gets little memory.
        message_bytes_max: longest query, parameter list or piece of COPY data after that.
        statements_max: prepared statements that a session keeps.
    """

    unauthenticated_bytes_max: int = 10_000
    message_bytes_max: int = LARGE_BYTES_MAX
    statements_max: int = 10_000
