"""Continuous copies of the database file and its log, and restore to any moment in them."""
