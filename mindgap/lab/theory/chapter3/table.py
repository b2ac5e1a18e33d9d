"""The rows of chapter 3 in the table of theorems; standard library only."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.lab.theory.theorem import Theorem

CHAPTER_3: tuple[Theorem, ...] = (
    Theorem(
        place="Lemma 3.2.1",
        title="polynomials",
        statement="Polynomials of degree 3 or more are (L0, L1)-smooth and not L-smooth.",
        formula="|f''(x)| <= L0 + L1 |f'(x)|",
        assumptions="",
        bounds="mindgap.lab.theory.chapter3.lemma_3_2_1.polynomial_l0",
        checked_by=(
            "tests/lab/theory/test_chapter3_functions.py::test_polynomials_are_relaxed_smooth_and_not_smooth; study "
            "s6-polynomials"
        ),
        outcome="holds, with the smallest L0 for each L1; needs a_d != 0",
        source=Source("thesis", "3.2.2"),
    ),
    Theorem(
        place="Section 3.2.3",
        title="deep linear networks",
        statement="Gradient and Hessian norms of a deep linear network grow together.",
        formula="L(w) = ‖Y - W_l ... W_1 X‖²",
        assumptions="",
        bounds="mindgap.lab.theory.chapter3.network_3_2_3.DeepLinear",
        checked_by=(
            "tests/lab/theory/test_chapter3_functions.py::test_deep_linear_networks_are_not_relaxed_smooth_on_their_valley;"
            " study s6-deep-linear"
        ),
        outcome=(
            "correlation holds; global (L0, L1)-smoothness does not: gradient 0 and unbounded curvature on w2 w1 x = y"
        ),
        source=Source("thesis", "3.2.3"),
    ),
    Theorem(
        place="Section 3.3.1",
        title="clipped and normalised steps",
        statement="The effective steps of clipped and normalised GD agree within a factor 2.",
        formula="h_c/2 <= h_n <= h_c for γ η_c = η_n, η_c = η_n/β",
        assumptions="",
        bounds="mindgap.lab.theory.chapter3.section_3_3_1.matching_clipped_step",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_clipped_and_normalized_steps_agree_within_a_factor_two;"
            " study s5-clipping-is-normalising"
        ),
        outcome="holds; the upper factor is 1, not 2",
        source=Source("thesis", "3.3.1"),
    ),
    Theorem(
        place="Theorem 3.4.1",
        title="clipped GD, upper bound",
        statement="Clipped GD finds an ε-stationary point of an (L0, L1)-smooth f.",
        formula="T <= 20 L0 Δ/ε² + 20 max{1, L1²} Δ/L0",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.thm_3_4_1.clipped_gd_bound",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_half_of_the_upper_bound_is_refuted_by_the_toothed_slope;"
            " study s4-counts-below-bounds"
        ),
        outcome="holds on the grid; within a factor 2 of tight (toothed slope)",
        source=Source("thesis", "Theorem 3.4.1, 3.7.1"),
    ),
    Theorem(
        place="Theorem 3.4.2",
        title="GD, lower bound",
        statement="Every fixed step is slow on one of two functions of the class.",
        formula="T >= L1 M (Δ - 5 ε/4) / (8 ε² (log M + 1))",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.thm_3_4_2.fixed_step_lower_bound",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_theorem_3_4_2_every_fixed_step_is_slow_on_one_of_the_two;"
            " study s4-clipping-beats-fixed-steps"
        ),
        outcome="holds with 5 ε/4 (printed: 5 ε/8) and L0 >= L1 (printed: L0 >= 1); twice the bound is refuted",
        source=Source("thesis", "Theorem 3.4.2, 3.7.2"),
    ),
    Theorem(
        place="Theorem 3.4.3",
        title="GD, upper bound",
        statement="GD with h = 1/(2(M L1 + L0)) finds an ε-stationary point.",
        formula="T <= 4 (M L1 + L0) Δ/ε²",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.thm_3_4_3.gd_bound",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_half_of_the_upper_bound_is_refuted_by_the_toothed_slope;"
            " study s4-counts-below-bounds"
        ),
        outcome="holds on the grid; half of it is refuted by the toothed slope",
        source=Source("thesis", "Theorem 3.4.3, 3.7.3"),
    ),
    Theorem(
        place="Theorem 3.4.4",
        title="stochastic clipped GD, upper bound",
        statement="Clipped SGD with bounded noise finds an ε-stationary point with probability 1/2.",
        formula="T <= Δ max(64 Δ/ε⁴, 160 L0/ε², 1024 L1 τ/ε², 256 L1/ε)",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.thm_3_4_4.clipped_sgd_bound",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_theorem_3_4_4_is_met_by_most_of_twenty_seeds; study "
            "s4-counts-below-bounds"
        ),
        outcome=(
            "holds with the proof's step and constants; the printed step diverges, the printed constants are not "
            "proved"
        ),
        source=Source("thesis", "Theorem 3.4.4, 3.7.4"),
    ),
    Theorem(
        place="Theorem 3.4.5",
        title="SGD, upper bound",
        statement="SGD with a fixed step and bounded noise finds an ε-stationary point with probability 1/2.",
        formula="T <= (2 Δ + (5 L0 + 4 L1 M)(M + τ)²)² / ε⁴",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.thm_3_4_5.sgd_bound",
        checked_by=(
            "tests/lab/theory/test_chapter3_theorems.py::test_theorem_3_4_5_as_printed_lost_a_square; study "
            "s4-counts-below-bounds"
        ),
        outcome="holds squared, as proved; refuted as printed",
        source=Source("thesis", "Theorem 3.4.5, 3.7.5"),
    ),
    Theorem(
        place="Lemma 3.7.1",
        title="growth of the gradient",
        statement="The gradient grows at most by a factor within distance 1/L1.",
        formula="‖∇f(x⁺)‖ <= 4 (L0/L1 + ‖∇f(x)‖)",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.lemmas_3_7.gradient_growth_bound",
        checked_by="tests/lab/theory/test_chapter3_functions.py::test_lemma_3_7_1_bounds_the_growth_and_three_quarters_of_it_do_not",
        outcome="holds; the true constant is e",
        source=Source("thesis", "Lemma 3.7.1"),
    ),
    Theorem(
        place="Lemma 3.7.2",
        title="error term T1 of (3.13)",
        statement="The term T1 of (3.13) is paid for by a part of the descent.",
        formula="E[-h ⟨∇f, g - ∇f⟩] <= E[h] ‖∇f‖²/4",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.lemmas_3_7.error_terms",
        checked_by="tests/lab/theory/test_chapter3_theorems.py::test_lemmas_3_7_2_to_3_7_4_as_exact_sums",
        outcome="holds as exact sums",
        source=Source("thesis", "Lemma 3.7.2"),
    ),
    Theorem(
        place="Lemma 3.7.3",
        title="error term T2 of (3.13)",
        statement="The term T2 of (3.13) is paid for by a part of the descent.",
        formula="E[(5 L0 + 4 L1 ‖∇f‖) h² ⟨∇f, ξ⟩] <= 9 η² τ L0²/L1 + E[h] ‖∇f‖²/8",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.lemmas_3_7.error_terms",
        checked_by="tests/lab/theory/test_chapter3_theorems.py::test_lemmas_3_7_2_to_3_7_4_as_exact_sums",
        outcome="holds as exact sums",
        source=Source("thesis", "Lemma 3.7.3"),
    ),
    Theorem(
        place="Lemma 3.7.4",
        title="error term T3 of (3.13)",
        statement="The term T3 of (3.13) is paid for by a part of the descent.",
        formula="(5 L0 + 4 L1 ‖∇f‖)/2 E[h² ‖ξ‖²] <= (5 L0 + 2 L1 τ) η² τ² + E[h] ‖∇f‖²/8",
        assumptions="RelaxedSmooth",
        bounds="mindgap.lab.theory.chapter3.lemmas_3_7.error_terms",
        checked_by="tests/lab/theory/test_chapter3_theorems.py::test_lemmas_3_7_2_to_3_7_4_as_exact_sums",
        outcome="holds as exact sums",
        source=Source("thesis", "Lemma 3.7.4"),
    ),
)
