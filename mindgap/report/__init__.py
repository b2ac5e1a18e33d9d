"""A self-contained page from saved records; imports no torch."""
