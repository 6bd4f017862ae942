"""Topics whose partitions are spread over the nodes of a cluster: definitions, publishing, commits, reads."""
