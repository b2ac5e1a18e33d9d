"""The papers' theorems as running code."""
