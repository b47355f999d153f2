"""What Spark shows of streams and queries: metadata frames and the lag of queries."""
