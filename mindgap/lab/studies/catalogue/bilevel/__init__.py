"""Studies of bilevel methods (claims B)."""
