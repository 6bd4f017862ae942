"""The text of a statement: its tokens, its kind by the opening words, and its spans."""
