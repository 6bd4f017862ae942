"""Bytes of the Postgres wire to messages and back; no state of a session, no socket."""

from .backend import encode
from .frontend import Limits, Receiver

__all__ = ["Limits", "Receiver", "encode"]
