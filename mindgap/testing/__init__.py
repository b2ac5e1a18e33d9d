"""Contracts of torch optimizers, for anybody's class.

    pytest --pyargs mindgap.testing --optimizer my_package:Lion

runs every contract of ``mindgap.testing.contracts`` on the class: a NaN in a gradient shows,
``p.grad`` is only read, a resumed run is the same bit for bit, and so on. ``docs/contracts.md``
explains the contracts and has a table of what they found in other packages. Needs the extra
``mindgap[testing]``.
"""
