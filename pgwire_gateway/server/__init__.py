"""Sockets, event loop and worker threads around the conversation."""

from .event_loop import TimedLoop
from .postmaster import AttachedPort, Server, listen, serve_in_thread
from .tls import TlsFiles

__all__ = ["AttachedPort", "Server", "TimedLoop", "TlsFiles", "listen", "serve_in_thread"]
