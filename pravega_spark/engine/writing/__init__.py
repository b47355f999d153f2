"""The way of events into a stream: queue, batch, routing, staging, append, and their futures."""
