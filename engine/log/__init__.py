"""The log of each captured table and topic: its rows, its versions, and the events that they make."""
