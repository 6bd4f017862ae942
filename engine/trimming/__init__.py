"""What goes from the logs: by age, by bytes, and what later events of a key supersede."""
