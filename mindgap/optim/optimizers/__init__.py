"""One optimizer a file; the table of them is ``mindgap.optim.table``."""
