"""What PostgreSQL's clients ask about a database: pg_catalog and information_schema over DuckDB's own."""
