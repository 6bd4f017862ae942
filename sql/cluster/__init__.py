"""Topics whose partitions lie on several nodes: where a statement runs, and what each owner does of it."""
