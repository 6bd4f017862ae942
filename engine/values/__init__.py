"""Values in other forms: what PostgreSQL's types are to DuckDB's, in text, binary, JSON and Arrow."""
