"""Names, units, limits, and checks of arguments: what every other room may use."""
