"""The language that is ours: statements as values, the grammar, the dialect, and back to text."""
