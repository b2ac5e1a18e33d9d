"""One optimizer per file; the table of them is ``mindgap.optim.table``."""
