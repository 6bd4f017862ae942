"""The other nodes as statements see them: part, links, frames and requests."""
