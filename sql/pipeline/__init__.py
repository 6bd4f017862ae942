"""The path of every statement: parse, resolve names, check rights, run."""
