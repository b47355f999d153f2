"""Retention: what a stream keeps by its policy and its subscribers, and what may go."""
