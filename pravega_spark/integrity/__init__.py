"""Checks of what is stored: a log's commits, and the chunks that they name."""
