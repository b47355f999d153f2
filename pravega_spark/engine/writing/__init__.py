"""The path of events into a stream: queue, batch, routing, staging and append; write futures."""
