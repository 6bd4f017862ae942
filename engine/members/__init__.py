"""Members of consumer groups: who is assigned which partitions, and who is fenced."""
