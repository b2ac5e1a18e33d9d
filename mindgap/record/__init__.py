"""The written form of a run; standard library only."""
