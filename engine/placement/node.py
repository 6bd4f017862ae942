"""A node of a cluster: one server with its own database file, as the others reach it.

Source: docs/cluster.md, "The file".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidParameterValue, IoError

OFF, REQUIRE, VERIFY_FULL = "off", "require", "verify-full"
TLS = (OFF, REQUIRE, VERIFY_FULL)
_SSLMODES = {OFF: "disable", REQUIRE: "require", VERIFY_FULL: "verify-full"}
# Every server's database has this name besides its own.
DATABASE = "ducktail"
LOCAL_NAME = "local"
# Nobody's password is as long; what is larger is some other file.
PASSWORD_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Node:
    """See the head of the file.

    Args:
        name: its name in the cluster.
        host: where the other nodes reach it; "" for the only node of all.
        tls: 'off', 'require' (encrypted, whoever it is) or 'verify-full' (its certificate is checked, too).
        ca: the certificates by which 'verify-full' knows it, PEM; None: those of the system.
        user: as whom the others connect; None where it has no users.
        password_file: a file with that user's password; read at each connection.
        password_env: a variable of the environment that has it instead.
    """

    name: str
    host: str
    port: int
    tls: str = OFF
    ca: str | None = None
    user: str | None = None
    password_file: str | None = None
    password_env: str | None = None

    def conninfo(self) -> dict[str, Any]:
        """How libpq connects to it, but for what goes with one connection.

        Raises:
            As `password`.
        """
        return {
            "host": self.host,
            "port": self.port,
            "dbname": DATABASE,
            "user": self.user or DATABASE,
            "password": self.password(),
            "sslmode": _SSLMODES[self.tls],
            "sslrootcert": (self.ca or "system") if self.tls == VERIFY_FULL else None,
            "gssencmode": "disable",
        }

    def password(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The password of the user as whom others connect to it; None where none is said.

        Raises:
            IoError: 58030, its file cannot be read. InvalidParameterValue: 22023, the variable is not set.
        """
        if self.password_file is not None:
            try:
                with Path(self.password_file).open("rb") as file:
                    return file.read(PASSWORD_BYTES_MAX).decode().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = (getattr(error, "strerror", None) or str(error)).lower()
                raise IoError(
                    f'cannot read the password file of node "{self.name}", "{self.password_file}": {reason}'
                ) from None
        if self.password_env is not None:
            found = environment.get(self.password_env)
            if not found:
                raise InvalidParameterValue(
                    f'the password of node "{self.name}" is not set: {self.password_env} in the environment'
                )
            return found
        return None


# The only node, where there is no cluster.
LOCAL = Node(LOCAL_NAME, "", 0)
