"""The demo: a year of real flights through one stream."""
