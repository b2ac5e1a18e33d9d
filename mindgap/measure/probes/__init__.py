"""One quantity a file."""
