"""Every method against its literal transcription, 200 iterations on the quadratic, same samples."""

from __future__ import annotations

import numpy as np
import pytest
from cases.bilevel import CASES
from references.bilevel_methods import REFERENCES
from references.bilevel_small import numpy_oracles, small_quadratic

from mindgap.bilevel import METHODS
from mindgap.bilevel.data.draws import draw_chunk, draw_start
from mindgap.bilevel.registry import SIXTEEN

QUADRATIC = small_quadratic(seed=4)
ORACLES = numpy_oracles(QUADRATIC)
STEPS = 200


class Index:
    """Sample numbers of a token."""

    def __init__(self, problem):
        self.problem = problem

    def __call__(self, level, token):
        return self.problem.data(level).indices(token)

    def weight(self, level, which):
        return self.problem.data(level).weights[which]

    def axes(self, level):
        return self.problem.data(level).sample_axes

    def batches(self, level):
        return self.problem.data(level).batches


def test_every_method_has_a_case_and_a_transcription():
    assert set(METHODS) == {case.key for case in CASES} == set(REFERENCES)
    assert len(SIXTEEN) == 16
    assert list(METHODS)[:16] == list(SIXTEEN)


@pytest.mark.parametrize("order", ["partition", "reshuffle"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_method_is_its_transcription(case, order):
    method = case.make()
    if method.fixed_batches and order != "partition":
        order = "partition"  # a second time, with the last batch shorter
        problem = QUADRATIC.problem(24, order=order)
    else:
        problem = QUADRATIC.problem(16, order=order)
    idx = Index(problem)
    state = method.start(problem, seed=3)
    start, _ = draw_start(method, state.oracle, 3)
    first, step = REFERENCES[case.key]
    args, kwargs = case.init(method, start, idx) if case.init else ((), {})
    ref = first(ORACLES, QUADRATIC.x0.numpy(), QUADRATIC.y0.numpy(), *args, **kwargs)
    cold = {} if "y_cold" not in case.names else {"y_cold": QUADRATIC.y0.numpy()}
    steps = (
        STEPS if order == "partition" else 40
    )  # the second pass only checks that indices are read right
    chunk = draw_chunk(method, state.oracle, 3, 0, steps, state.drawn)
    values = state.values
    moved = 0.0
    for t, (kind, draws) in enumerate(chunk.steps()):
        values = method.next_values(values, draws, state.oracle, kind)
        ref = step(ORACLES, ref, case.samples(draws, idx), **case.letters(method, t), **cold)
        for name in ("x", "y", "z", "m", "h", "w"):
            if name in values:
                scale = np.abs(ref[name]).max() + 1.0
                np.testing.assert_allclose(
                    values[name].numpy(),
                    ref[name],
                    rtol=1e-12,
                    atol=2e-13 * scale,
                    err_msg=f"{name} at {t}",
                )
        moved = float((values["x"] - QUADRATIC.x0).norm())
    assert moved > 0.05  # it went somewhere


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_single_steps_draw_what_a_chunk_draws(case):
    """Drawing one iteration at a time, or many at once, or through solve, gives the same
    trajectory bit by bit.
    """
    from mindgap.bilevel import solve

    problem, method = QUADRATIC.problem(16), case.make()
    state = method.start(problem, seed=1)
    for _ in range(13):
        state = method.step(state)
    solution = solve(problem, method, steps=13, seed=1, check_every=8)
    other = solve(problem, method, calls=state.total_calls, seed=1)
    for values in (solution.state, other.state):
        assert (values.x == state.x).all()
        assert (values.y == state.y).all()
        assert values.drawn == state.drawn
        assert values.calls == state.calls
        assert values.updates == state.updates
