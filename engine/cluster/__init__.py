"""Which node of a cluster has what: nodes, the placement of topics' partitions, and its plan."""
