"""One file a claim or a family of claims."""
