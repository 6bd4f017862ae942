"""Where groups are: committed LSNs, read positions, parked events."""
