"""The path of every statement: parse, resolve names, ask for rights, run."""
