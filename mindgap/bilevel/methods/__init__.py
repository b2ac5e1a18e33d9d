"""One method a file; the table of them is :mod:`mindgap.bilevel.registry`."""
