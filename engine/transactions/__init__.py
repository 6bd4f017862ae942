"""Transactions: their reads and writes, their commits and conflicts, the writer lock."""
