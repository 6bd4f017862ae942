"""The SQL front end: dialect, statements, planner and session."""
