"""Results on their way to the client: batches, portals, cursors, spools."""
