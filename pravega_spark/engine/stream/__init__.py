"""A stream over its log: state, lifecycle, truncation, reading by offset and time, sweeps."""
