"""Topics with partitions on several nodes: the nodes that run a statement, and the share of each owner."""
