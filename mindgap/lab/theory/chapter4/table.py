"""The rows of chapter 4 (and of acclip) in the table of theorems; standard library only."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.lab.theory.theorem import Theorem

CHAPTER_4: tuple[Theorem, ...] = (
    Theorem(
        place="Remark 4.4.1",
        title="SGD under infinite variance",
        statement="Fixed steps give E‖∇f(x_k)‖² = ∞.",
        formula="x_k = A_k x_0 - Σ_j w_j ξ_j, stable again with scale s (Σ |w_j|^a)^(1/a)",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.remark_4_4_1.stable_iterate_law",
        checked_by=(
            "tests/lab/theory/test_chapter4_lemmas.py::test_sgd_iterates_inherit_the_stable_law_whatever_the_steps; "
            "study h7-infinite-variance"
        ),
        outcome="holds: the exact law of the iterate has the noise's tail index",
        source=Source("thesis", "Remark 4.4.1; acclip, App. A"),
    ),
    Theorem(
        place="Theorem 4.4.1",
        title="GClip, non-convex",
        statement="GClip finds stationary points under a bounded α-moment of the noise.",
        formula="mean of E min(‖∇f‖², τ ‖∇f‖/3) <= 20 f0/(η K) = O(K^(-2(α-1)/(3α-2)))",
        assumptions="HeavyTail",
        bounds="mindgap.lab.theory.chapter4.thm_4_4_1.gclip_nonconvex_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_nonconvex_exponent_is_attained_and_the_bound_holds; study"
            " h8-nonconvex-exponent"
        ),
        outcome=(
            "holds as repaired, exponent attained; "
            "refuted as printed (large σ), and with its last term put right (small σ)"
        ),
        source=Source("thesis", "Theorem 4.4.1, 4.7.1"),
    ),
    Theorem(
        place="Theorem 4.4.2",
        title="GClip, strongly convex",
        statement=(
            "Projected GClip with τ_k = G k^(1/α) and k-weighted averages converges on strongly convex functions."
        ),
        formula="E f(x_k) - f* <= 16 G² / (μ (k+1)^(2(α-1)/α))",
        assumptions="StronglyConvexMoment",
        bounds="mindgap.lab.theory.chapter4.thm_4_4_2.gclip_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_strongly_convex_exponent_is_attained_and_the_misprinted_threshold_fails;"
            " study h8-strongly-convex-exponent"
        ),
        outcome="holds with the proof's threshold, exponent attained; the printed k^(α-1) is slower",
        source=Source("thesis", "Theorem 4.4.2, 4.7.2; acclip, Theorem 1"),
    ),
    Theorem(
        place="Theorem 4.4.3",
        title="strongly convex lower bound",
        statement="No method beats k^(-2(α-1)/α) on two Bernoulli quadratics.",
        formula="max E f(x_k) >= 2^(-14) k^(-2(α-1)/α)",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.thm_4_4_3.strongly_convex_lower_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_lower.py::test_no_method_beats_the_lower_bound; study h9-bernoulli-quadratics"  # noqa: E501
        ),
        outcome="holds: the exact Bayes risk lies above it, and below 16 times it",
        source=Source("thesis", "Theorem 4.4.3, 4.7.6; acclip, Theorems 4 and 6"),
    ),
    Theorem(
        place="Theorem 4.4.4",
        title="non-convex lower bound",
        statement="No zero-respecting method beats k^(-(α-1)/(3α-2)).",
        formula="E‖∇f(x_k)‖ >= ε for k <= (d-1)/(2p) = c ε^(-(3α-2)/(α-1))",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.thm_4_4_4.nonconvex_lower_bound_steps",
        checked_by=(
            "tests/lab/theory/test_chapter4_lower.py::test_zero_respecting_methods_stay_above_epsilon_for_the_stated_steps;"
            " study h9-zero-chain"
        ),
        outcome="holds with p's exponent α/(α-1) (printed: α)",
        source=Source("thesis", "Theorem 4.4.4, 4.7.7"),
    ),
    Theorem(
        place="Corollary 4.5.1",
        title="GClip under coordinate-wise noise",
        statement="GClip's strongly convex bound follows from the coordinates' moments.",
        formula="E f(x_k) - f* <= 16 ‖B‖_α² / (μ (k+1)^(2(α-1)/α))",
        assumptions="CoordinateMoment",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_4.gclip_coordinate_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_4_upper_bound_needs_no_dimension; study h8-dimension"  # noqa: E501
        ),
        outcome="holds, and without the printed factor d",
        source=Source("thesis", "Corollary 4.5.1; acclip, Corollary 1"),
    ),
    Theorem(
        place="Theorem 4.5.1",
        title="CClip, strongly convex",
        statement="CClip with τ_k = B k^(1/α) depends on d only through ‖B‖_2.",
        formula="E f(x_k) - f* <= 16 ‖B‖_2² / (μ (k+1)^(2(α-1)/α))",
        assumptions="CoordinateMoment",
        bounds="mindgap.lab.theory.chapter4.thm_4_5_1.cclip_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_projected_gclip_and_cclip_stay_below_their_bounds; study "
            "h8-dimension"
        ),
        outcome="holds with the proof's threshold",
        source=Source("thesis", "Theorem 4.5.1, 4.7.5; acclip, Theorem 3"),
    ),
    Theorem(
        place="Lemma 4.7.1",
        title="clipped gradients: second moment and bias",
        statement="Clipping trades variance for bias.",
        formula="E‖ĝ‖² <= G^α τ^(2-α), ‖E ĝ - ∇f‖² <= G^(2α) τ^(-2(α-1))",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_1.clipped_bias_bound",
        checked_by="tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_1_on_exact_moments; study h13-clipped-moments",  # noqa: E501
        outcome="holds under Assumption 4.4.3 (printed: 4.4.1); the second moment bound is attained",
        source=Source("thesis", "Lemma 4.7.1"),
    ),
    Theorem(
        place="Lemma 2 (acclip)",
        title="the same lemma in the first version",
        statement="Lemma 4.7.1 in the first version, printed for the mean square error.",
        formula="E‖ĝ - ∇f‖² <= G^(2α) τ^(-2(α-1)) [printed]",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_1.clipped_bias_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_lemmas.py::test_lemma_2_as_printed_for_the_mean_square_error_is_false; "
            "study h13-clipped-moments"
        ),
        outcome="refuted as printed; the proof bounds the squared bias",
        source=Source("acclip", "Lemma 2"),
    ),
    Theorem(
        place="Lemma 4.7.2",
        title="clipped gradients near a stationary point",
        statement="Lemma 4.7.1 for the moment of the noise, where ‖∇f‖ <= τ/2.",
        formula="E‖ĝ‖² <= 2‖∇f‖² + 4 σ^α τ^(2-α), ‖bias‖² <= 4 σ^(2α) τ^(-2(α-1))",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_2.small_gradient_second_moment_bound",
        checked_by="tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_2_on_exact_moments; study h13-clipped-moments",  # noqa: E501
        outcome="holds; a fifth of the second moment bound is refuted",
        source=Source("thesis", "Lemma 4.7.2"),
    ),
    Theorem(
        place="Lemma 4.7.3",
        title="direction of a noisy gradient",
        statement="A normalised noisy gradient still points downhill.",
        formula="⟨v/‖v‖, ∇f⟩ >= ‖∇f‖/3 - 8‖v - ∇f‖/3",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_2.direction_bound",
        checked_by="tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_3_at_random_points",
        outcome="holds; 4/3 in place of 8/3 is sharp",
        source=Source("thesis", "Lemma 4.7.3"),
    ),
    Theorem(
        place="Lemma 4.7.4",
        title="norm moment from coordinate moments",
        statement="E‖g‖^α lies between two multiples of ‖B‖_α^α.",
        formula="d^(α/2-1) ‖B‖_α^α <= D <= ‖B‖_α^α (printed: d^(α/2) ‖B‖_α^α)",
        assumptions="CoordinateMoment",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_4.norm_moment_upper",
        checked_by="tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_4_upper_bound_needs_no_dimension",
        outcome="holds; the upper bound is loose by d^(α/2), both sharp sides are attained",
        source=Source("thesis", "Lemma 4.7.4; acclip, Lemma 4"),
    ),
    Theorem(
        place="Lemma 4.7.5",
        title="one coordinate of CClip",
        statement="Lemma 4.7.1 holds in every coordinate of CClip.",
        formula="E ĝ_i² <= B_i^α τ_i^(2-α) (printed: τ_i^(2-2α))",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_1.clipped_second_moment_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_lemmas.py::test_lemma_4_7_5_as_printed_is_false_and_lemma_5_of_acclip_holds;"
            " study h13-clipped-moments"
        ),
        outcome="refuted as printed in the thesis; holds as in acclip, Lemma 5",
        source=Source("thesis", "Lemma 4.7.5; acclip, Lemma 5"),
    ),
    Theorem(
        place="Lemma 4.7.8",
        title="telling two coins apart",
        statement="K samples do not tell the two problems apart.",
        formula="P(ν' = ν) <= 1/2 + √(k (4 ε)^(α/(α-1)))",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.thm_4_4_3.success_bound",
        checked_by="tests/lab/theory/test_chapter4_lower.py::test_lemma_4_7_8_against_the_exact_success_probability",
        outcome="holds; two lines of its proof do not",
        source=Source("thesis", "Lemmas 4.7.7 and 4.7.8; acclip, Lemmas 6 and 7"),
    ),
    Theorem(
        place="Lemma 4.7.9",
        title="the zero-chain f_d",
        statement="The zero-chain f_d has five properties.",
        formula="f_d(0) - inf f_d <= 12 d; 152-smooth; ‖∇f_d‖_∞ <= 23; prog_0(∇f_d) <= prog_{1/2} + 1; ‖∇f_d‖ >= 1",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_9.ZeroChain",
        checked_by="tests/lab/theory/test_chapter4_lower.py::test_lemma_4_7_9_all_five_points",
        outcome="holds at 10,000 points in 1, 2, 5 and 12 dimensions",
        source=Source("thesis", "Lemma 4.7.9"),
    ),
    Theorem(
        place="Lemma 4.7.10",
        title="the probability-p oracle",
        statement="The oracle of the chain is unbiased and has a bounded α-moment.",
        formula="E‖g_d‖^α <= ‖∇f_d‖^α + 23^α p^(1-α) (printed: twice that)",
        assumptions="",
        bounds="mindgap.lab.theory.chapter4.lemma_4_7_9.ChainOracle",
        checked_by="tests/lab/theory/test_chapter4_lower.py::test_lemma_4_7_10_as_exact_sums",
        outcome="holds with constants 1 and 1; its printed proof has a gap",
        source=Source("thesis", "Lemma 4.7.10"),
    ),
    Theorem(
        place="Theorem 2 (acclip)",
        title="GClip, non-convex, first version",
        statement="GClip finds stationary points of smooth functions when E‖g‖^α <= G^α everywhere.",
        formula="mean of E‖∇f‖² <= 4 G^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2))",
        assumptions="SmoothMoment",
        bounds="mindgap.lab.theory.chapter4.acclip_thm_2.moment_nonconvex_bound",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_theorem_2_of_acclip_holds_with_l_and_fails_without; study"
            " h8-nonconvex-exponent"
        ),
        outcome="holds with the factor L of the proof; refuted as printed",
        source=Source("acclip", "Theorem 2, App. E"),
    ),
    Theorem(
        place="Corollary 3 (acclip)",
        title="GClip, non-convex, coordinate-wise noise",
        statement="Theorem 2 under coordinate-wise moments: G = ‖B‖_α.",
        formula="mean of E‖∇f‖² <= 4 ‖B‖_α^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2))",
        assumptions="SmoothMoment",
        bounds="mindgap.lab.theory.chapter4.acclip_thm_2.coordinate_moment",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_gclip_in_ten_dimensions_stays_below_corollary_3; "
            "study h8-nonconvex-bounds"
        ),
        outcome="holds without the printed √d, with the lost L",
        source=Source("acclip", "Corollary 3, App. F.1"),
    ),
    Theorem(
        place="Theorem 5 (acclip)",
        title="CClip, non-convex",
        statement="CClip satisfies Theorem 2 with G = ‖B‖_2.",
        formula="mean of E‖∇f‖² <= 4 ‖B‖_2^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2))",
        assumptions="SmoothMoment",
        bounds="mindgap.lab.theory.chapter4.acclip_thm_2.coordinate_moment",
        checked_by=(
            "tests/lab/theory/test_chapter4_bounds.py::test_theorem_5_of_acclip_holds_with_l_and_fails_without; "
            "study h8-nonconvex-bounds"
        ),
        outcome="holds with the factor L; refuted as printed",
        source=Source("acclip", "Theorem 5, App. F.2"),
    ),
)
