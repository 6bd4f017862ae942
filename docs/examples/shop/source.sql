-- The shop's own database: PostgreSQL with wal_level = logical.
CREATE TABLE orders (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    status text NOT NULL DEFAULT 'new',
    placed timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE lines (
    order_id integer REFERENCES orders (id) ON DELETE CASCADE,
    line integer,
    product text NOT NULL,
    quantity integer NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE ROLE ducktail LOGIN REPLICATION PASSWORD 'quack';
GRANT SELECT ON orders, lines TO ducktail;
CREATE PUBLICATION shop FOR TABLE orders, lines;
