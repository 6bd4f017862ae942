"""INSERT, UPDATE, DELETE and MERGE: cut by tokens into what capture takes, and run."""
