"""The change buffers of streams in memory, the publisher that fills them, and scans over them and the log."""
