"""Connections of this node to the other nodes of its cluster, and the directory of their streams."""

from .pool import Peers
from .synchronization import Learner, Mover

__all__ = ["Learner", "Mover", "Peers"]
