"""The interface of statements to other nodes: links, requests and frames."""
