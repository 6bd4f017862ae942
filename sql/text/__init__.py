"""The text of a statement: its tokens, its kind by the first words, and its pieces."""
