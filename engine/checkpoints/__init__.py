"""Checkpoints: positions and states from which work on a stream resumes, and their storage."""
