"""The Postgres wire as a state machine: messages in, requests to a session, bytes out; no socket."""

from .channel import Need, Step
from .interfaces import EndedStatement, Host, Session
from .message_loop import Conversation
from .startup import Door, Entry

__all__ = ["Conversation", "Door", "EndedStatement", "Entry", "Host", "Need", "Session", "Step"]
