"""What bounds a stream, a root and a fleet, and what they cost: docs/scale.md."""
