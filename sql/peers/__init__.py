"""The wire between nodes as statements see it: links, requests and frames."""
