"""COPY: between tables or queries and files, or the client."""
