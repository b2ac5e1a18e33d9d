"""The rows of chapter 2 in the table of theorems; no imports beyond the standard library."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.lab.theory.theorem import Theorem

_TESTS = "tests/lab/theory/test_ch2_textbook.py::"
_HERE = "mindgap.lab.theory.chapter2."

CHAPTER_2: tuple[Theorem, ...] = (
    Theorem(
        "(2.3)", "gradient descent", "GD with step 1/L on a μ-strongly convex, L-smooth function converges linearly.",
        "f(x_k) - f* <= L/2 (L/(μ+L))^(2k) D²; ‖x_k - x*‖ <= (1 - μ/L)^k D",
        "SmoothConvex", _HERE + "table_2_1.gd_gap_printed",
        _TESTS + "test_gd_and_nesterov_stay_under_their_bounds_on_quadratics; study t1-textbook-rates",
        "holds; the stated factor is not the cited one and is loose, (1 - μ/L)^k is attained",
        Source("thesis", "(2.3) and the display after it"),
    ),
    Theorem(
        "Theorem 2.1.2", "lower bound",
        "No method in the span of its gradients converges faster than √(L/μ) log(1/ε) allows.",
        "‖x_k - x*‖² >= ((√Q-1)/(√Q+1))^(2k) ‖x_0 - x*‖² on Nesterov's chain",
        "SmoothConvex", _HERE + "table_2_1.Chain",
        _TESTS + "test_no_method_in_the_span_beats_theorem_2_1_2",
        "holds for GD, Nesterov, heavy-ball and conjugate gradients; printed with O where Ω is meant",
        Source("thesis", "Theorem 2.1.2"),
    ),
    Theorem(
        "Theorem 2.1.3", "Nesterov's method",
        "Nesterov's method with α = 1/L, β = (√Q-1)/(√Q+1) converges at the optimal rate.",
        "f(y_k) - f* <= (μ+L)/2 D² exp(-(k-1)/√Q)",
        "SmoothConvex", _HERE + "table_2_1.nesterov_gap",
        _TESTS + "test_gd_and_nesterov_stay_under_their_bounds_on_quadratics; study t1-textbook-rates",
        "holds, with y_0 = x_0, also with k in place of k-1; a step twice as long breaks it",
        Source("thesis", "Theorem 2.1.3"),
    ),
    Theorem(
        "Table 2.1", "iteration counts",
        "Steps to accuracy ε of GD and Nesterov's method on convex and strongly convex functions.",
        "convex: GD L/ε, Nesterov √(L/ε) (printed L/√ε); strongly convex: (L/μ) log(1/ε), √(L/μ) log(1/ε)",
        "SmoothConvex", _HERE + "table_2_1.iteration_bound",
        _TESTS + "test_iteration_counts_follow_table_2_1; study t1-textbook-rates",
        "holds with √(L/ε) in both convex Nesterov entries, not with L/√ε as printed",
        Source("thesis", "Table 2.1"),
    ),
    Theorem(
        "Fig. 2-1", "worst-case rates by semidefinite programs",
        "The computed rate of Nesterov's method is certified for every conditioning, heavy-ball's is not.",
        "GD 1 - 1/Q; 1 - 1/√Q < Nesterov < √(1 - 1/√Q); heavy-ball 1 from Q = (2 + √5)² on",
        "SmoothConvex", _HERE + "fig_2_1.lmi_rate",
        _TESTS + "test_matrix_inequality_agrees_with_analytic_rates; study t2-worst-case-rates",
        "holds; GD agrees with its analytic rate to 1e-4, performance estimation likewise",
        Source("thesis", "Fig. 2-1"),
    ),
    Theorem(
        "Fig. 2-3", "Adam's regret",
        "Adam's average regret does not go to zero on a convex online problem, AMSGrad's does.",
        "Adam: R_T/T >= 2(C-2)/3; AMSGrad: R_T/T <= (2C/α + αC/√(1-β2))/√T",
        "RareLargeLoss", _HERE + "fig_2_3.online_regret",
        _TESTS + "test_adam_keeps_its_regret_and_amsgrad_loses_it; study t3-adam-regret",
        "holds for β2 = 1/(1+C²) and α < √(1-β2); with a long memory Adam's regret vanishes too",
        Source("thesis", "Fig. 2-3 (Reddi et al.)"),
    ),
)
