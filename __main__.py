"""Entry point of the command `ducktail`."""

from __future__ import annotations

import signal
import sys

if sys.argv[1:2] == ["serve"]:
    # A SIGHUP waits until the server takes it; loading what follows takes a second, in which it would end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})

import argparse
from collections.abc import Sequence

from .pgwire_gateway import command
from .spark_connector.pipelines import command as pipeline_command

PIPELINE = command.Subcommand(
    "pipeline",
    help="run a Spark pipeline over a stream",
    description="Run a pipeline on Spark until SIGTERM or SIGINT, or with --once until the present events "
    "have been read. It resumes from its checkpoint, and reports its progress in ducktail.pipelines.",
    add_arguments=pipeline_command.add_arguments,
    run=pipeline_command.run_command,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 fine, 1 it could not be done, 2 a wrong flag."""
    return command.run_command_line(arguments, [PIPELINE])


def parser() -> argparse.ArgumentParser:
    """The parser of all commands and flags."""
    return command.parser([PIPELINE])


if __name__ == "__main__":
    sys.exit(main())
