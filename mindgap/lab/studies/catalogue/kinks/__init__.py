"""Studies of non-differentiable objectives (claims N)."""
