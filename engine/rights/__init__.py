"""Users, their passwords and what they are granted."""
