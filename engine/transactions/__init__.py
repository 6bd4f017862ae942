"""Transactions: what they have read and written, their commits and conflicts, the writer lock."""
