"""The stream log on Delta: commits, chunks, epochs, cuts and state tables; no Spark, no JVM."""
