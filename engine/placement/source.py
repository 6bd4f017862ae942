"""Where a node's placement comes from: its own copy of cluster.toml.

Source: docs/cluster.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidParameterValue, IoError
from ..toml_file import did_you_mean, read_text
from .file import WHAT, FilePlacement, read_cluster_text
from .node import Node

# Beside the file, until it is whole.
NEW_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A node's copy of the file.

    Args:
        node: the name of this node.
    """

    path: Path
    node: str

    def load(self, before: Node | None = None) -> FilePlacement:
        """The placement that the file says now.

        Args:
            before: this node as it was: a file that names it no more is one by which it has left.

        Raises:
            InvalidParameterValue: 22023, with file and line. IoError: 58030, it cannot be read.
        """
        return self.read(read_text(self.path, WHAT), str(self.path), before)

    def read(self, text: str, place: str, before: Node | None = None) -> FilePlacement:
        """The placement that a text says; see `load`."""
        file = read_cluster_text(text, place)
        local = file.node(self.node) or before
        if local is None:
            hint = did_you_mean(self.node, [node.name for node in file.nodes], "Its nodes")
            raise InvalidParameterValue(f'{place}: node "{self.node}" is not in it', hint=hint)
        return FilePlacement(file, local, self.path.parent)

    def write(self, text: str) -> None:
        """Put a text in the file's place; see `write_file`.

        Raises:
            IoError: 58030.
        """
        write_file(self.path, text)


def write_file(path: Path, text: str) -> None:
    """Put a text in a file's place: all of it or nothing, whenever the machine ends.

    Raises:
        IoError: 58030.
    """
    new = path.with_name(path.name + NEW_SUFFIX)
    try:
        with new.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise IoError(f'cannot write {WHAT} "{path}": {reason}') from None
