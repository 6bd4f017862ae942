"""The command `ducktail pipeline KIND --config FILE`; importing this module does not import pyspark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConnectorError

KINDS = ("mirror", "aggregate", "dedupe", "dead_letter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="its TOML file")
    parser.add_argument("--once", action="store_true", help="read the present events, then exit")
    parser.add_argument(
        "--master", metavar="URL", help="Spark's master; local[*,4], or that of spark-submit, by default"
    )


def run_command(chosen: argparse.Namespace) -> int:
    """Run a pipeline; the exit status is 1 if it failed or could not begin, otherwise 0."""
    # Imported here, because the other commands do not need a client.
    from .config import read_config

    try:
        config = read_config(chosen.config, chosen.kind)
        try:
            from .kinds import BUILDS
            from .runner import run_pipeline
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] == "pyspark":
                raise ConnectorError("a pipeline wants Spark: pip install 'ducktail[spark]'") from None
            raise
        return run_pipeline(BUILDS[chosen.kind], config, chosen.master, once=chosen.once)
    except ConnectorError as error:
        print(f"ducktail: {error}", file=sys.stderr)
        return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command from a program, for spark-submit."""
    parser = argparse.ArgumentParser(prog="pipeline", description="Run a pipeline over a stream.")
    add_arguments(parser)
    return run_command(parser.parse_args(arguments))
