"""The connections of this node to the others of its cluster, and which of them has what."""

from .learner import Learner
from .mover import Mover
from .peers import Peers

__all__ = ["Learner", "Mover", "Peers"]
