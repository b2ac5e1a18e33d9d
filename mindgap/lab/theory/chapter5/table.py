"""The rows of chapter 5 in the table of theorems; no imports beyond the standard library."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.lab.theory.theorem import Theorem

_RULES = "tests/lab/theory/test_ch5_rules.py::"
_ADVERSARIES = "tests/lab/theory/test_ch5_adversaries.py::"
_HERE = "mindgap.lab.theory.chapter5."

CHAPTER_5: tuple[Theorem, ...] = (
    Theorem(
        "Lemma 5.2.1", "chain rule", "Directional derivatives in Hadamard's sense compose.",
        "(ψ∘φ)'(x; d) = ψ'(φ(x); φ'(x; d))", "", _HERE + "prop_5_3_1.directional_derivative",
        _RULES + "test_lemmas_5_2_1_and_5_2_3_directional_derivatives_at_kinks",
        "holds at 10,000 directions at the kink of a difference of maxima",
        Source("thesis", "Lemma 5.2.1"),
    ),
    Theorem(
        "Lemma 5.2.2", "differences are path integrals",
        "For a Lipschitz, directionally differentiable f a difference is the integral of its directional derivative.",
        "f(y) - f(x) = ∫₀¹ f'(x + t(y-x); y-x) dt", "", _HERE + "prop_5_3_1.path_integral",
        _RULES + "test_lemma_5_2_2_differences_are_path_integrals",
        "holds on random ReLU networks, up to the quadrature's error",
        Source("thesis", "Lemma 5.2.2 and 5.7.1"),
    ),
    Theorem(
        "Lemma 5.2.3", "directional derivatives are attained",
        "Some element of the generalized gradient attains the directional derivative.",
        "for all x, d there is g in ∂f(x) with ⟨g, d⟩ = f'(x; d)", "", _HERE + "prop_5_3_1.directional_derivative",
        _RULES + "test_lemmas_5_2_1_and_5_2_3_directional_derivatives_at_kinks",
        "holds at 10,000 directions at the kink of a difference of maxima",
        Source("thesis", "Lemma 5.2.3 and 5.7.2"),
    ),
    Theorem(
        "Theorem 5.3.1", "ε-stationary points are out of reach",
        "No algorithm with values and gradients finds an ε-stationary point of every function of F(Δ, L), ε < L.",
        "answers f = 0, ∇f = L; then f_θ with kinks x_k - θδ, (x_k + x_{k+1})/2 - θδ",
        "LipschitzClass", _HERE + "thm_5_3_1.ValueAdversary",
        _ADVERSARIES + "test_nobody_finds_a_stationary_point; study n4-resisting-oracles",
        "holds against every run with a fixed seed (11 optimizers, 3 searches), for ε < L and not for ε < 1 as stated; "
        "the proof does not cover functions chosen before a random run",
        Source("thesis", "Theorem 5.3.1 and 5.7.3"),
    ),
    Theorem(
        "Lemma 5.7.1", "a family without common stationary points",
        "For any queries there are functions of F(Δ, L) that agree on them and share no stationary point.",
        "f_θ(x_k) = 0, ∇f_θ(x_k) = L; stationary points of f_θ and f_θ' disjoint for θ != θ'",
        "LipschitzClass", _HERE + "thm_5_3_1.resisting_function",
        _ADVERSARIES + "test_family_agrees_on_all_queries_and_shares_no_stationary_point",
        "holds, in exact arithmetic; the last piece is printed with the wrong sign of θδ",
        Source("thesis", "Lemma 5.7.1"),
    ),
    Theorem(
        "Proposition 5.3.1", "two notions of stationarity",
        "ε-stationary implies (δ, ε)-stationary; with L-Lipschitz ∇f, (ε/(3L), ε/3)-stationary implies ε-stationary.",
        "d(0, ∂f(x + ε/(3L) B)) <= ε/3 gives ‖∇f(x)‖ <= 2ε/3 <= ε", "", _HERE + "prop_5_3_1.stationarity_radius",
        _RULES + "test_goldstein_stationarity_of_smooth_functions",
        "holds at 10,000 points; 2ε/3 is what holds, and it is tight",
        Source("thesis", "Proposition 5.3.1 and 5.7.3"),
    ),
    Theorem(
        "Lemma 5.3.2", "Goldstein sets shrink to ∂f",
        "The Goldstein set converges to the generalized gradient as δ falls to zero.",
        "lim_{δ->0} ∂f(x + δB) = ∂f(x)", "", _HERE + "piecewise.PiecewiseLinear",
        _RULES + "test_lemma_5_3_2_goldstein_sets_shrink_to_the_generalized_gradient",
        "holds, in exact arithmetic on a piecewise linear function",
        Source("thesis", "Lemma 5.3.2 and 5.7.3"),
    ),
    Theorem(
        "Lemma 5.7.2", "the inner direction shrinks",
        "While the descent test fails, the direction shrinks; a loop of K steps fails with chance <= 1/16.",
        "E‖m_{t,k}‖² <= 3L²/(k+2); K = 48L²/ε²: E‖m_{t,K}‖² <= ε²/16", "", _HERE + "thm_5_4_1.direction_square_bound",
        _RULES + "test_inner_direction_shrinks_as_in_lemma_5_7_2",
        "holds, within 4 standard errors over 4,000 runs; tight at k = 1",
        Source("thesis", "Lemma 5.7.2"),
    ),
    Theorem(
        "Theorem 5.4.1", "INGD",
        "INGD finds a (δ, ε)-stationary point of F(Δ, L) with probability 1 - γ within the stated number of calls.",
        "192 Δ L²/(ε³δ) log(4Δ/(γδε)) calls (stated); T K (1 + log₁₆(T/γ)) gradients (proved)",
        "NonsmoothTarget", _HERE + "thm_5_4_1.ingd_gradient_calls",
        _RULES + "test_ingd_certifies_within_the_calls_of_theorem_5_4_1; study n1-ingd",
        "holds over the grid; the stated count forgets the first pass and the values, and is negative for small Δ",
        Source("thesis", "Theorem 5.4.1 and 5.7.4"),
    ),
    Theorem(
        "Remark 5.4.1", "one inner step on smooth functions",
        "On an L-smooth function the descent test passes in one inner step.",
        "δ < 3ε/(2L)", "", _HERE + "thm_5_4_1.one_inner_step_radius",
        _RULES + "test_one_inner_step_on_smooth_functions; study n1-ingd",
        "holds for δ < 3ε/(2L) and not always, as stated",
        Source("thesis", "Remark 5.4.1"),
    ),
    Theorem(
        "Theorem 5.5.1", "Stochastic INGD",
        "With the stated β, p, q, K, T the mean direction is at most ε/4, and x_{max(i-K,1)} (δ, ε)-stationary.",
        "(1/T) Σ E‖m_t‖ <= ε/4; E d(0, ∂f(x_out + δB)) <= ε/3",
        "StochasticTarget", _HERE + "thm_5_5_1.stochastic_rule",
        _RULES + "test_mean_direction_of_theorem_5_5_1; study n2-stochastic-ingd",
        "holds; K must be whole (p then follows from it), and (5.16) is printed the wrong way round",
        Source("thesis", "Theorem 5.5.1 and 5.7.5 (there 5.7.3)"),
    ),
    Theorem(
        "Theorem 5.5.2", "gradients alone need Δ/(8δ) calls",
        "An algorithm that sees generalized gradients only needs at least Δ/(8δ) calls for a (δ, ε)-stationary point.",
        "T >= Δ/(8δ) for L = 1 and ε in (0, 1)",
        "LipschitzClass", _HERE + "thm_5_5_2.GradientAdversary",
        _ADVERSARIES + "test_gradients_alone_need_many_calls; study n4-resisting-oracles",
        "holds with its constant, by other functions: the printed ones leave the class and share stationary points",
        Source("thesis", "Theorem 5.5.2 and 5.7.6"),
    ),
)
