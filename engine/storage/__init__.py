"""The files of a database: opening, checking, copying; and the engine's own tables."""
