"""Positions and states from which work on a stream goes on, and where they are kept."""
