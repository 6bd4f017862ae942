"""Capture: the SQL that writes a table's rows and their log rows in one transaction."""
