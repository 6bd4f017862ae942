"""What runs each statement."""
