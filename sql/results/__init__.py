"""Results on their way to the client: batches, cursors, spools and notices."""
