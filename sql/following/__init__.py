"""Following a stream in process: batches of events, their buffer, and how far a consumer is."""
