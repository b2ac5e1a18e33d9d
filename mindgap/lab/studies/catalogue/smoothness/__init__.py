"""Studies of relaxed smoothness and clipping (claims S)."""
