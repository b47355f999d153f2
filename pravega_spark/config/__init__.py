"""Configuration of streams and roots, and the frozen values of the stream model."""
