"""The rows of chapter 4 (and of acclip) in the table of theorems; standard library only."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.theory.theorem import Theorem

_LEMMAS = "tests/theory/test_chapter4_lemmas.py::"
_BOUNDS = "tests/theory/test_chapter4_bounds.py::"
_LOWER = "tests/theory/test_chapter4_lower.py::"
_HERE = "mindgap.theory.chapter4."


def _thesis(place: str) -> Source:
    return Source("thesis", place)


def _acclip(place: str) -> Source:
    return Source("acclip", place)


CHAPTER_4: tuple[Theorem, ...] = (
    Theorem(
        "Remark 4.4.1", "SGD under infinite variance", "fixed steps give E||grad f(x_k)||^2 = infinity",
        "x_k = A_k x_0 - sum_j w_j xi_j, stable again with scale s (sum |w_j|^a)^(1/a)", "",
        _HERE + "remark_4_4_1.stable_iterate_law",
        _LEMMAS + "test_sgd_iterates_inherit_the_stable_law_whatever_the_steps",
        "holds: the exact law of the iterate has the noise's tail index; see also study h7-infinite-variance",
        _thesis("Remark 4.4.1; acclip, App. A"),
    ),
    Theorem(
        "Theorem 4.4.1", "GClip, non-convex", "GClip finds stationary points under a bounded alpha-moment of the noise",
        "mean of E min(||grad f||^2, tau ||grad f||/3) <= 20 f0/(eta K) = O(K^(-2(a-1)/(3a-2)))", "HeavyTail",
        _HERE + "thm_4_4_1.gclip_nonconvex_bound", _BOUNDS + "test_nonconvex_exponent_is_attained_and_the_bound_holds",
        "holds as repaired, exponent attained; refuted as printed for small and for large sigma",
        _thesis("Theorem 4.4.1, 4.7.1"),
    ),
    Theorem(
        "Theorem 4.4.2", "GClip, strongly convex", "projected GClip with tau_k = G k^(1/alpha) and k-weighted averages",
        "E f(x_k) - f* <= 16 G^2 / (mu (k+1)^(2(a-1)/a))", "StronglyConvexMoment", _HERE + "thm_4_4_2.gclip_bound",
        _BOUNDS + "test_strongly_convex_exponent_is_attained_and_the_misprinted_threshold_fails",
        "holds with the proof's threshold, exponent attained; the printed k^(alpha-1) is slower",
        _thesis("Theorem 4.4.2, 4.7.2; acclip, Theorem 1"),
    ),
    Theorem(
        "Theorem 4.4.3", "strongly convex lower bound", "no method beats k^(-2(a-1)/a) on two Bernoulli quadratics",
        "max E f(x_k) >= 2^-14 k^(-2(a-1)/a)", "", _HERE + "thm_4_4_3.strongly_convex_lower_bound",
        _LOWER + "test_no_method_beats_the_lower_bound",
        "holds: the exact Bayes risk lies above it, and below 16 times it",
        _thesis("Theorem 4.4.3, 4.7.6; acclip, Theorems 4 and 6"),
    ),
    Theorem(
        "Theorem 4.4.4", "non-convex lower bound", "no zero-respecting method beats k^(-(a-1)/(3a-2))",
        "E||grad f(x_k)|| >= eps for k <= (d-1)/(2p) = c eps^(-(3a-2)/(a-1))", "",
        _HERE + "thm_4_4_4.nonconvex_lower_bound_steps",
        _LOWER + "test_zero_respecting_methods_stay_above_epsilon_for_the_stated_steps",
        "holds with p's exponent a/(a-1) (printed: a)", _thesis("Theorem 4.4.4, 4.7.7"),
    ),
    Theorem(
        "Corollary 4.5.1", "GClip under coordinate-wise noise", "GClip's bound in terms of the coordinates' moments",
        "E f(x_k) - f* <= 16 ||B||_a^2 / (mu (k+1)^(2(a-1)/a))", "CoordinateMoment",
        _HERE + "lemma_4_7_4.gclip_coordinate_bound",
        _LEMMAS + "test_lemma_4_7_4_upper_bound_needs_no_dimension",
        "holds, and without the printed factor d", _thesis("Corollary 4.5.1; acclip, Corollary 1"),
    ),
    Theorem(
        "Theorem 4.5.1", "CClip, strongly convex", "CClip with tau_k = B k^(1/alpha) depends on d only through ||B||_2",
        "E f(x_k) - f* <= 16 ||B||_2^2 / (mu (k+1)^(2(a-1)/a))", "CoordinateMoment", _HERE + "thm_4_5_1.cclip_bound",
        _BOUNDS + "test_projected_gclip_and_cclip_stay_below_their_bounds",
        "holds with the proof's threshold", _thesis("Theorem 4.5.1, 4.7.5; acclip, Theorem 3"),
    ),
    Theorem(
        "Lemma 4.7.1", "clipped gradients: second moment and bias", "clipping trades variance for bias",
        "E||g^||^2 <= G^a tau^(2-a), ||E g^ - grad f||^2 <= G^(2a) tau^(-2(a-1))", "",
        _HERE + "lemma_4_7_1.clipped_bias_bound", _LEMMAS + "test_lemma_4_7_1_on_exact_moments",
        "holds under Assumption 4.4.3 (printed: 4.4.1); the second moment bound is attained",
        _thesis("Lemma 4.7.1"),
    ),
    Theorem(
        "Lemma 2 (acclip)", "the same lemma in the first version", "printed for E||g^ - grad f||^2",
        "E||g^ - grad f||^2 <= G^(2a) tau^(-2(a-1))  [printed]", "", _HERE + "lemma_4_7_1.clipped_bias_bound",
        _LEMMAS + "test_lemma_2_as_printed_for_the_mean_square_error_is_false",
        "refuted as printed; the proof bounds the squared bias", _acclip("Lemma 2"),
    ),
    Theorem(
        "Lemma 4.7.2", "clipped gradients near a stationary point", "the lemma for noise moments, ||grad f|| <= tau/2",
        "E||g^||^2 <= 2||grad f||^2 + 4 s^a tau^(2-a), ||bias||^2 <= 4 s^(2a) tau^(-2(a-1))", "",
        _HERE + "lemma_4_7_2.small_gradient_second_moment_bound", _LEMMAS + "test_lemma_4_7_2_on_exact_moments",
        "holds; a fifth of the second moment bound is refuted", _thesis("Lemma 4.7.2"),
    ),
    Theorem(
        "Lemma 4.7.3", "direction of a noisy gradient", "a normalised noisy gradient still points downhill",
        "<v/||v||, grad f> >= ||grad f||/3 - 8||v - grad f||/3", "", _HERE + "lemma_4_7_2.direction_bound",
        _LEMMAS + "test_lemma_4_7_3_at_random_points", "holds; 4/3 in place of 8/3 is sharp", _thesis("Lemma 4.7.3"),
    ),
    Theorem(
        "Lemma 4.7.4", "norm moment from coordinate moments", "E||g||^a between two multiples of ||B||_a^a",
        "d^(a/2-1) ||B||_a^a <= D <= ||B||_a^a  (printed: d^(a/2) ||B||_a^a)", "CoordinateMoment",
        _HERE + "lemma_4_7_4.norm_moment_upper", _LEMMAS + "test_lemma_4_7_4_upper_bound_needs_no_dimension",
        "holds; the upper bound is loose by d^(a/2), both sharp sides are attained",
        _thesis("Lemma 4.7.4; acclip, Lemma 4"),
    ),
    Theorem(
        "Lemma 4.7.5", "one coordinate of CClip", "Lemma 4.7.1 in every coordinate",
        "E g^_i^2 <= B_i^a tau_i^(2-a)  (printed: tau_i^(2-2a))", "",
        _HERE + "lemma_4_7_1.clipped_second_moment_bound",
        _LEMMAS + "test_lemma_4_7_5_as_printed_is_false_and_lemma_5_of_acclip_holds",
        "refuted as printed in the thesis; holds as in acclip, Lemma 5", _thesis("Lemma 4.7.5; acclip, Lemma 5"),
    ),
    Theorem(
        "Lemma 4.7.8", "telling two coins apart", "k samples do not tell the two problems apart",
        "P(nu' = nu) <= 1/2 + sqrt(k (4 eps)^(a/(a-1)))", "", _HERE + "thm_4_4_3.success_bound",
        _LOWER + "test_lemma_4_7_8_against_the_exact_success_probability",
        "holds; two lines of its proof do not", _thesis("Lemmas 4.7.7 and 4.7.8; acclip, Lemmas 6 and 7"),
    ),
    Theorem(
        "Lemma 4.7.9", "the zero-chain f_d", "five properties of the hard function",
        "f_d(0) - inf f_d <= 12 d; 152-smooth; |grad|_inf <= 23; prog_0(grad) <= prog_1/2 + 1; ||grad|| >= 1", "",
        _HERE + "lemma_4_7_9.ZeroChain", _LOWER + "test_lemma_4_7_9_all_five_points",
        "holds at 10,000 points in 1, 2, 5 and 12 dimensions", _thesis("Lemma 4.7.9"),
    ),
    Theorem(
        "Lemma 4.7.10", "the probability-p oracle", "unbiased, with a bounded alpha-moment",
        "E||g_d||^a <= ||grad f_d||^a + 23^a p^(1-a)  (printed: twice that)", "", _HERE + "lemma_4_7_9.ChainOracle",
        _LOWER + "test_lemma_4_7_10_as_exact_sums", "holds with constants 1 and 1; its printed proof has a gap",
        _thesis("Lemma 4.7.10"),
    ),
    Theorem(
        "Theorem 2 (acclip)", "GClip, non-convex, first version", "GClip when E||g||^a <= G^a everywhere",
        "mean of E||grad f||^2 <= 4 G^(2a/(3a-2)) (L f0/K)^((2a-2)/(3a-2))", "SmoothMoment",
        _HERE + "acclip_thm_2.moment_nonconvex_bound",
        _BOUNDS + "test_theorem_2_of_acclip_holds_with_l_and_fails_without",
        "holds with the factor L of the proof; refuted as printed", _acclip("Theorem 2, App. E"),
    ),
    Theorem(
        "Corollary 3 (acclip)", "GClip, non-convex, coordinate-wise noise", "Theorem 2 with G = ||B||_a",
        "mean of E||grad f||^2 <= 4 ||B||_a^(2a/(3a-2)) (L f0/K)^((2a-2)/(3a-2))", "SmoothMoment",
        _HERE + "acclip_thm_2.coordinate_moment",
        _BOUNDS + "test_gclip_in_ten_dimensions_stays_below_corollary_3",
        "holds without the printed sqrt(d), with the lost L", _acclip("Corollary 3, App. F.1"),
    ),
    Theorem(
        "Theorem 5 (acclip)", "CClip, non-convex", "Theorem 2 with G = ||B||_2 for CClip",
        "mean of E||grad f||^2 <= 4 ||B||_2^(2a/(3a-2)) (L f0/K)^((2a-2)/(3a-2))", "SmoothMoment",
        _HERE + "acclip_thm_2.coordinate_moment",
        _BOUNDS + "test_theorem_5_of_acclip_holds_with_l_and_fails_without",
        "holds with the factor L; refuted as printed", _acclip("Theorem 5, App. F.2"),
    ),
)
