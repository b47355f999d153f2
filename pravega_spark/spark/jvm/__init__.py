"""What the package has in Spark's JVM: its Java, and the events of queries."""
