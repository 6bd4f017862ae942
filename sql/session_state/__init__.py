"""The state of one session, as statements see it: block, names, positions, portals, settings."""
