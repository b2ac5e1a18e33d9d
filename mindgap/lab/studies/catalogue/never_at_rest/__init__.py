"""Studies of training that never comes to rest (claims E)."""
