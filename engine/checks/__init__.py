"""Comparison of streams with their tables."""
