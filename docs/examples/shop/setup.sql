-- Here: the shop's changes as a stream, its tables as they are now, and what is made of both.
CREATE STREAM shop FROM POSTGRES 'host=127.0.0.1 dbname=shop user=ducktail password=quack' PUBLICATION shop;
CREATE TABLE orders MIRROR OF STREAM shop TABLE orders;
CREATE TABLE lines MIRROR OF STREAM shop TABLE lines;
CREATE CONSUMER GROUP billing ON shop;
CREATE TABLE invoices (order_id INTEGER PRIMARY KEY, customer VARCHAR, amount DECIMAL(12, 2));
CREATE TABLE sales (minute TIMESTAMP, product VARCHAR, sold BIGINT, PRIMARY KEY (minute, product));
