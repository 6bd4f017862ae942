CREATE TABLE orders (id INTEGER PRIMARY KEY, st TEXT, amount DECIMAL(10, 2));
CREATE STREAM orders_stream ON orders;
CREATE TOPIC paid_orders;
INSERT INTO orders VALUES (1, 'new', 10), (2, 'paid', 20), (3, 'new', 30);
UPDATE orders SET st = 'paid' WHERE id = 3;
