"""Sources: databases outside whose changes are read into streams."""
