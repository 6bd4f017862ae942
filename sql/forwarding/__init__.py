"""Statements about streams that another node has: where they run, what nodes say, and both ends."""
