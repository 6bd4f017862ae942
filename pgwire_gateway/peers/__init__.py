"""Connections of this node to the others of its cluster, and the directory of what they have."""

from .pool import Peers
from .synchronization import Learner, Mover

__all__ = ["Learner", "Mover", "Peers"]
