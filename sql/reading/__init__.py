"""Reads of streams and their commits: scans opened, waited for and tracked; COMMIT OFFSETS."""
