"""Certificates for a test, made by openssl: each signs itself, and is its own authority."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "rsa": ("-newkey", "rsa:2048", "-sha256"),
    "rsa-sha384": ("-newkey", "rsa:2048", "-sha384"),
    "ec": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-sha256"),
    "ed25519": ("-newkey", "ed25519"),
}


@dataclass(frozen=True)
class Files:
    """Where a certificate and its key are."""

    certificate: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """The flags of `ducktail serve`."""
        return ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))


def make(directory: Path, name: str = "server", algorithm: str = "ec") -> Files:
    """A new certificate for localhost and 127.0.0.1, over whatever was there under its name."""
    files = Files(directory / f"{name}.crt", directory / f"{name}.key")
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", *ALGORITHMS[algorithm]]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return files
