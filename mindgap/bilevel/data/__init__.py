"""The problem, the data of its two levels, and the draws of samples."""
