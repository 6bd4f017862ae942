"""The connections of this node to the others of its cluster, and which of them has what."""

from .pool import Peers
from .synchronization import Learner, Mover

__all__ = ["Learner", "Mover", "Peers"]
