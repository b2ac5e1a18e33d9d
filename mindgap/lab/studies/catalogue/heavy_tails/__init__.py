"""Studies of heavy-tailed gradient noise (claims H)."""
