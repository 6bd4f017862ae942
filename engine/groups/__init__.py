"""Consumer groups: offsets, members, read positions, waiting readers, parked events."""
