"""The files of a database: opened, checked, kept, copied; and the tables that are ours."""
