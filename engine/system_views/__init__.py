"""The rows of system views whose contents are in memory."""
