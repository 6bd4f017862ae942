"""Joining a cluster, its users, and the moves of partitions between nodes."""
