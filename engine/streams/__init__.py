"""What a stream is: its table or topic, its partitions, its options and its filter."""
