"""Sources: the databases outside that feed streams, one thread for each."""

from .supervisor import FeedRunners

__all__ = ["FeedRunners"]
