"""The language: statements as values, their grammar, the sqlglot dialect, and statements as SQL text."""
