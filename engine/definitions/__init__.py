"""What defines streams and topics, and what alters the tables under them."""
