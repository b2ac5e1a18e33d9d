"""Every contract on every class that ``--optimizer`` names."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mindgap.base.check import RuleError


def pytest_generate_tests(metafunc: Any) -> None:
    """Make one test per class and contract, named by both.

    Where no class is named, one test is made, which is skipped.

    Raises:
        pytest.UsageError: a class or its settings cannot be read.
    """
    names = metafunc.config.getoption("optimizer", default=None) or []
    if not names:
        metafunc.parametrize(("case", "contract"), [pytest.param(None, "", id="no-class")])
        return
    from mindgap.testing.case import case_of, load_class
    from mindgap.testing.contracts import CONTRACTS

    texts = metafunc.config.getoption("settings")  # JSON, one per class or none at all
    if len(texts) not in (0, len(names)):
        raise pytest.UsageError("--settings must be given once per --optimizer, or never")
    try:
        settings = [json.loads(text) for text in texts] if texts else [None] * len(names)
        cases = [
            replace(case_of(load_class(name), given), name=name)
            for name, given in zip(names, settings)
        ]
    except (RuleError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    rows = [
        pytest.param(case, contract, id=f"{case.name}-{contract.replace(' ', '-')}")
        for case in cases
        for contract in CONTRACTS
    ]
    metafunc.parametrize(("case", "contract"), rows)


# Importing parts of torch's own compiler warns about torch.jit, and its guards look at the .grad of
# every tensor.
@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_contract(case: Any, contract: str) -> None:
    """The class of ``case`` keeps the contract of that name; skipped where it does not offer what
    the contract is about.
    """
    if case is None:
        pytest.skip("no class was named: pytest --pyargs mindgap.testing --optimizer MODULE:CLASS")
    from mindgap.testing.contracts import CONTRACTS, NotApplicable

    try:
        CONTRACTS[contract](case, {})
    except NotApplicable as reason:
        pytest.skip(str(reason))
