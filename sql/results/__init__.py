"""Results before they reach the client: batches, cursors, spools and notices."""
