"""Which node owns which partitions: the file, the rules, the plan, and what is in force."""
