"""INSERT, UPDATE, DELETE and MERGE: divided by tokens into the pieces that capture needs, and run."""
