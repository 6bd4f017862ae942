"""The version, where every layer can see it; pyproject.toml reads it from here."""

VERSION = "0.1.0"
