"""``mindgap.testing`` on classes that break one contract each: it finds the fault, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.optimizers import generic

from mindgap.testing import contracts, test_optimizer
from mindgap.testing.case import arguments_of, case_of, load_class


class Momentum(torch.optim.Optimizer):
    """A plain optimizer that keeps every contract; its children break one each."""

    def __init__(self, params: Any, lr: Any = 0.05, maximize: bool = False) -> None:
        super().__init__(params, {"lr": lr, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    grad = -p.grad if group["maximize"] else p.grad
                    self.move(group, p, self.direction(grad))
        return self.returned(loss)

    def direction(self, grad: Any) -> Any:
        return grad

    def move(self, group: Any, p: Any, grad: Any) -> None:
        state = self.state[p]
        m = state.setdefault("m", torch.zeros_like(p))
        m.mul_(0.5).add_(grad)
        p.sub_(group["lr"] * m)

    def returned(self, loss: Any) -> Any:
        return loss


class SwallowsNan(Momentum):
    def direction(self, grad: Any) -> Any:
        return grad.nan_to_num(0.0)


class WritesGradients(Momentum):
    def move(self, group: Any, p: Any, grad: Any) -> None:
        super().move(group, p, grad)
        if group["maximize"]:
            p.grad.neg_()


class ForgetsItsState(Momentum):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "state": {}}


class LosesTheLoss(Momentum):
    def returned(self, loss: Any) -> Any:
        return None if loss is None else loss * 2


class OneRateForAll(Momentum):
    def move(self, group: Any, p: Any, grad: Any) -> None:
        super().move(self.param_groups[0], p, grad)


class DriftsAtZero(Momentum):
    def move(self, group: Any, p: Any, grad: Any) -> None:
        super().move(group, p, grad)
        p.sub_(group["lr"] * 0.01 * p)


class DependsOnOrder(Momentum):
    def move(self, group: Any, p: Any, grad: Any) -> None:
        super().move(group, p, grad * (1.0 if p is group["params"][0] else 0.5))


FAULTS = {
    Momentum: set(),
    SwallowsNan: {"nan"},
    WritesGradients: {"gradients"},
    ForgetsItsState: {"resume"},
    LosesTheLoss: {"closure"},
    OneRateForAll: {"groups"},
    DriftsAtZero: {"zero"},
    DependsOnOrder: {"order"},
}


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_each_planted_fault_is_found_and_no_other(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(contracts.CONTRACTS, "compile")  # it takes a second each
    found = contracts.outcomes(case_of(kind, {"lr": 0.05}))
    broken = {name for name, words in found.items() if words.startswith("broken")}
    assert broken == FAULTS[kind], found
    offered = {name for name, words in found.items() if words.startswith("not offered")}
    assert offered == {"foreach"}


@pytest.mark.parametrize(("case", "changes"), generic("order"))
def test_the_order_of_parameters_does_not_matter(case: Any, changes: Any) -> None:
    contracts.order(case, changes)


def test_arguments_that_a_class_passes_on_count() -> None:
    assert {"lr", "maximize", "foreach"} <= arguments_of(load_class("mindgap.optim:AdamW"))
    assert "foreach" not in arguments_of(Momentum)


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mindgap.testing.plugin"]
    command += ["-p", "no:cacheprovider", "-c", str(folder / "none.ini"), "--rootdir", str(folder)]
    (folder / "none.ini").write_text("[pytest]\n")
    return subprocess.run(
        [*command, "--pyargs", "mindgap.testing", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def test_the_command_names_class_and_contract(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Sign(torch.optim.SGD):\n"
        "    def step(self, closure=None):\n"
        "        for group in self.param_groups:\n"
        "            for p in group['params']:\n"
        "                p.grad.nan_to_num_(0.0)\n"
        "        return super().step(closure)\n"
    )
    done = _pytest(tmp_path, "--optimizer", "mine:Sign", "-k", "nan or descends")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "mine:Sign-nan" in done.stdout
    assert "a gradient of NaN must reach the parameters" in done.stdout


class FakeConfig:
    """A pytest configuration with the two options."""

    def __init__(self, names: list[str], texts: list[str]) -> None:
        self.options = {"optimizer": names, "settings": texts}
        self.config = self

    def getoption(self, name: str, default: Any = None) -> Any:
        return self.options[name]


@pytest.mark.parametrize(
    ("names", "texts", "said"),
    [
        (["torch.optim.SGD"], [], "must be written module:Class"),
        (["torch.optim:Nothing"], [], "can be imported"),
        (["torch.optim:SGD"], ["{"], "Expecting"),
        (["torch.optim:SGD"], ["{}", "{}"], "once per --optimizer"),
    ],
)
def test_a_wrong_command_line_is_named(names: list[str], texts: list[str], said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        test_optimizer.pytest_generate_tests(FakeConfig(names, texts))
