"""The demo of pravega_spark: a year of real flights through one stream."""
