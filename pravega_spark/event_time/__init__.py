"""Event time: the watermarks of streams, from the times that their writers note."""
