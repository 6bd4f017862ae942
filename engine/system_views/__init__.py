"""The rows of the system views that live in memory."""
