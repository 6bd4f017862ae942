"""The use of streams by a query: columns, order and limits, which determine the read position."""
