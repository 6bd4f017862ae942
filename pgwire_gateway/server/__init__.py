"""Sockets, event loop and worker threads around the conversation."""

from .event_loop import TimedLoop
from .postmaster import Server, listen, serve_in_thread
from .tls import TlsFiles

__all__ = ["Server", "TimedLoop", "TlsFiles", "listen", "serve_in_thread"]
