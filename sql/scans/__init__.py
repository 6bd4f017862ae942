"""Stream scans: planned, opened, polled, and how far each has read."""
