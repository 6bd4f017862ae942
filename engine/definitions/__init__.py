"""CREATE, ALTER and DROP of streams, topics, groups, bookmarks and copies."""
