"""The shape of a query over streams: its columns, order and limits, and so its read position."""
