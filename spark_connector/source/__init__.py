"""The source: streams and tables read into Spark, by batch queries and streaming queries."""
