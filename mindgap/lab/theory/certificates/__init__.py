"""Counterexamples to printed sentences, one module per chapter: each function returns a
:class:`~mindgap.lab.theory.certificate.Certificate`.

Arithmetic is in fractions wherever the instance allows it.
"""
