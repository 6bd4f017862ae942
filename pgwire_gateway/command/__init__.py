"""The command `ducktail`: serve a database, maintain its file, plan a cluster."""

from .command_line import Subcommand, parser, run_command_line

__all__ = ["Subcommand", "parser", "run_command_line"]
