"""The vectorised forms of chapter 4 against their literal transcriptions."""

from __future__ import annotations

import numpy as np
import pytest
from references import theory_chapter4 as literal

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import ChainOracle, Student, ZeroChain, prog, weighted_average_runs


def test_zero_chain_prog_and_oracle() -> None:
    rng = numpy_stream(0, "literal chain")
    for d in (1, 2, 5):
        chain, x = ZeroChain(d), rng.uniform(-2, 2, (20, d))
        np.testing.assert_allclose(chain.value(x), [literal.f_d(list(row)) for row in x], rtol=1e-8)
        for beta in (0.0, 0.25, 0.5, 1.0):
            assert prog(x, beta).tolist() == [literal.prog(beta, list(row)) for row in x]
        oracle, gradient = ChainOracle(chain, 0.3), chain.gradient(x)
        for z in (0, 1):
            expected = [
                literal.g_d(list(row), z, 0.3, list(g)) for row, g in zip(x, gradient, strict=True)
            ]
            np.testing.assert_allclose(oracle.gradient(x, np.full(20, z)), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["gclip", "cclip"])
def test_projected_clipping_with_averaging(kind: str) -> None:
    alpha, mu, optimum, G, B = 1.4, 0.7, 0.25, 1.5, [1.0, 0.5, 2.0]
    rng = numpy_stream(1, "literal runs")
    noise, start = Student(df=1.5).sample(rng, (40, 3)), rng.uniform(-1, 1, 3)
    fast = weighted_average_runs(
        lambda x, k: mu * (x - optimum) + noise[k - 1],
        start[None],
        lambda k: 4 / (mu * (k + 1)),
        lambda k: (G if kind == "gclip" else np.array(B)) * k ** (1 / alpha),
        [40],
        method=kind,
        box=(-1.0, 1.0),
    )[0, 0]
    slow = literal.projected_clip(kind, mu, optimum, list(start), noise.tolist(), G, B, alpha)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)
