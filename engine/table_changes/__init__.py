"""Changes of captured tables: ALTER, rename, replace, resync."""
