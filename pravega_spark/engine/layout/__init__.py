"""The layout of a stream: epochs, stream cuts and what lies between two cuts. Pure, no I/O."""
