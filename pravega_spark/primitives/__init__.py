"""What Python lacks: locks that survive a fork, lazy properties, printable texts."""
