"""The language: dialect, statements, planner and session."""
