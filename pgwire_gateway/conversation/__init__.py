"""The Postgres wire as a state machine: messages in, requests to a session, bytes out; no socket."""

from .conversation import Conversation
from .needs import Host, Session
from .observed import Ended
from .startup import Door, Entry
from .steps import Need, Step

__all__ = ["Conversation", "Door", "Ended", "Entry", "Host", "Need", "Session", "Step"]
