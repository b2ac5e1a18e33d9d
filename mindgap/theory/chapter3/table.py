"""The rows of chapter 3 in the table of theorems; standard library only."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.theory.theorem import Theorem

_TESTS = "tests/theory/test_chapter3_theorems.py::"
_FUNCTIONS = "tests/theory/test_chapter3_functions.py::"
_HERE = "mindgap.theory.chapter3."


def _thesis(place: str) -> Source:
    return Source("thesis", place)


CHAPTER_3: tuple[Theorem, ...] = (
    Theorem(
        "Lemma 3.2.1", "polynomials", "polynomials of degree >= 3 are (L0, L1)-smooth and not L-smooth",
        "|f''(x)| <= L0 + L1 |f'(x)|", "", _HERE + "lemma_3_2_1.polynomial_l0",
        _FUNCTIONS + "test_polynomials_are_relaxed_smooth_and_not_smooth",
        "holds, with the smallest L0 for each L1; needs a_d != 0", _thesis("3.2.2"),
    ),
    Theorem(
        "Section 3.2.3", "deep linear networks", "gradient and Hessian norms of a deep linear network are correlated",
        "L(w) = ||Y - W_l ... W_1 X||^2", "", _HERE + "network_3_2_3.DeepLinear",
        _FUNCTIONS + "test_deep_linear_networks_are_not_relaxed_smooth_on_their_valley",
        "correlation holds; global (L0, L1)-smoothness does not: gradient 0 and unbounded curvature on w2 w1 x = y",
        _thesis("3.2.3"),
    ),
    Theorem(
        "Section 3.3.1", "clipped and normalised steps", "the two effective steps agree within a factor 2",
        "h_c/2 <= h_n <= h_c for gamma*eta_c = eta_n, eta_c = eta_n/beta", "",
        _HERE + "section_3_3_1.matching_clipped_step",
        _TESTS + "test_clipped_and_normalized_steps_agree_within_a_factor_two",
        "holds; the upper factor is 1, not 2", _thesis("3.3.1"),
    ),
    Theorem(
        "Theorem 3.4.1", "clipped GD, upper bound", "clipped GD finds an eps-stationary point of an (L0, L1)-smooth f",
        "T <= 20 L0 D/eps^2 + 20 max(1, L1^2) D/L0", "RelaxedSmooth", _HERE + "thm_3_4_1.clipped_gd_bound",
        _TESTS + "test_half_of_the_upper_bound_is_refuted_by_the_sawtooth",
        "holds on the grid; within a factor 2 of tight (sawtooth)", _thesis("Theorem 3.4.1, 3.7.1"),
    ),
    Theorem(
        "Theorem 3.4.2", "GD, lower bound", "every fixed step is slow on one of two functions of the class",
        "T >= L1 M (D - 5 eps/4) / (8 eps^2 (log M + 1))", "RelaxedSmooth",
        _HERE + "thm_3_4_2.fixed_step_lower_bound",
        _TESTS + "test_theorem_3_4_2_every_fixed_step_is_slow_on_one_of_the_two",
        "holds with 5 eps/4 (printed: 5 eps/8) and L0 >= L1 (printed: L0 >= 1); twice the bound is refuted",
        _thesis("Theorem 3.4.2, 3.7.2"),
    ),
    Theorem(
        "Theorem 3.4.3", "GD, upper bound", "GD with h = 1/(2(M L1 + L0)) finds an eps-stationary point",
        "T <= 4 (M L1 + L0) D/eps^2", "RelaxedSmooth", _HERE + "thm_3_4_3.gd_bound",
        _TESTS + "test_half_of_the_upper_bound_is_refuted_by_the_sawtooth",
        "holds on the grid; half of it is refuted by the sawtooth", _thesis("Theorem 3.4.3, 3.7.3"),
    ),
    Theorem(
        "Theorem 3.4.4", "stochastic clipped GD, upper bound", "clipped SGD with bounded noise, probability 1/2",
        "T <= D max(64 D/eps^4, 160 L0/eps^2, 1024 L1 tau/eps^2, 256 L1/eps)", "RelaxedSmooth",
        _HERE + "thm_3_4_4.clipped_sgd_bound",
        _TESTS + "test_theorem_3_4_4_is_met_by_most_of_twenty_seeds",
        "holds with the proof's step and constants; the printed step diverges, the printed constants are not proved",
        _thesis("Theorem 3.4.4, 3.7.4"),
    ),
    Theorem(
        "Theorem 3.4.5", "SGD, upper bound", "SGD with a fixed step and bounded noise, probability 1/2",
        "T <= (2 D + (5 L0 + 4 L1 M)(M + tau)^2)^2 / eps^4", "RelaxedSmooth", _HERE + "thm_3_4_5.sgd_bound",
        _TESTS + "test_theorem_3_4_5_as_printed_lost_a_square",
        "holds squared, as proved; refuted as printed", _thesis("Theorem 3.4.5, 3.7.5"),
    ),
    Theorem(
        "Lemma 3.7.1", "growth of the gradient", "the gradient grows at most by a factor within distance 1/L1",
        "||grad f(x+)|| <= 4 (L0/L1 + ||grad f(x)||)", "RelaxedSmooth", _HERE + "lemmas_3_7.gradient_growth_bound",
        _FUNCTIONS + "test_lemma_3_7_1_bounds_the_growth_and_three_quarters_of_it_do_not",
        "holds; the true constant is e", _thesis("Lemma 3.7.1"),
    ),
    *(
        Theorem(
            f"Lemma 3.7.{n}", f"error term T{n - 1} of (3.13)", "the term is paid for by a part of the descent",
            formula, "RelaxedSmooth", _HERE + "lemmas_3_7.error_terms",
            _TESTS + "test_lemmas_3_7_2_to_3_7_4_as_exact_sums", "holds as exact sums", _thesis(f"Lemma 3.7.{n}"),
        )
        for n, formula in (
            (2, "E[-h <grad f, g - grad f>] <= E[h] ||grad f||^2/4"),
            (3, "E[(5 L0 + 4 L1 ||grad f||) h^2 <grad f, xi>] <= 9 eta^2 tau L0^2/L1 + E[h] ||grad f||^2/8"),
            (4, "(5 L0 + 4 L1 ||grad f||)/2 E[h^2 ||xi||^2] <= (5 L0 + 2 L1 tau) eta^2 tau^2 + E[h] ||grad f||^2/8"),
        )
    ),
)
