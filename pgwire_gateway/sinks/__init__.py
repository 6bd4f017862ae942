"""Sinks: tasks on the server's event loop that deliver the events of streams to receivers outside."""

from .supervisor import Sinks

__all__ = ["Sinks"]
