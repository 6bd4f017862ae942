"""What a query does with its stream scans, and so what it says of the read position."""
