"""Retention: which events a stream keeps, by its policy and its subscribers."""
