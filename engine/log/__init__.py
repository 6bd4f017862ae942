"""The log of each captured table and topic: its rows, its versions and its events."""
