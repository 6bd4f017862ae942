"""The owners of partitions in a cluster: the file, the rules, the plan, and the placement in force."""
