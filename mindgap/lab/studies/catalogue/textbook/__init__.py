"""Studies of the textbook methods (claims T)."""
