"""The user's DML, cut by tokens into the pieces that capture takes."""
