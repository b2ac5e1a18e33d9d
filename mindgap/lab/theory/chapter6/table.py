"""The rows of chapter 6 in the table of theorems; no imports beyond the standard library."""

from __future__ import annotations

from mindgap.base.source import Source
from mindgap.lab.theory.theorem import Theorem

_AVERAGES = "tests/lab/theory/test_ch6_averages.py::"
_NETWORKS = "tests/lab/theory/test_ch6_networks.py::"
_HERE = "mindgap.lab.theory.chapter6."

CHAPTER_6: tuple[Theorem, ...] = (
    Theorem(
        "Theorem 6.4.1", "function values settle on average",
        "The time-averaged one-step change of a bounded function falls like 1/√n, with probability 1 - δ.",
        "|E_{θ~μ_n}[φ(θ) - φ(F(θ))]| <= 2M/n + M √(2 ln(2/δ)/n)",
        "BoundedValues", _HERE + "thm_6_4_1.one_step_change_bound",
        _AVERAGES + "test_one_step_change_stays_under_the_bound; study e7-one-step-change",
        "holds; 1/√n is tight (half the bound is exceeded); the proof gives √log(2/δ) where log(1/δ) is stated",
        Source("thesis", "Theorem 6.4.1"),
    ),
    Theorem(
        "Lemma 6.4.2", "window averages need not settle",
        "For every n there is a 1-Lipschitz f on which gradient descent has averages over n steps that never settle.",
        "limsup |M_t - M_{t-1}| >= 1/(2n) for n >= 2 (SteepSawtooth); (0.8n - 0.2)/(n(n+1)²) for (6.11)",
        "", _HERE + "lemma_6_4_2.Sawtooth",
        _AVERAGES + "test_window_averages_never_settle; study e8-windows",
        "holds; the printed function jumps by order 1/n², a repaired one by 1/(2n); θ_k is printed one step behind",
        Source("thesis", "Lemma 6.4.2 and 6.7.2"),
    ),
    Theorem(
        "Theorem 6.4.3", "time averages without a limit",
        "There are a continuous map on a compact set and a smooth φ whose time averages have no limit.",
        "(1/n) Σ_{k<n} φ(θ_k) -> 2/3 along n = 4^j - 1 and 1/3 along n = 2·4^j - 1",
        "", _HERE + "thm_6_4_3.block_average",
        _AVERAGES + "test_block_averages_have_no_limit",
        "holds, on an example of our own (the shift on doubling blocks); Yoccoz's was not rebuilt",
        Source("thesis", "Theorem 6.4.3"),
    ),
    Theorem(
        "Theorem 6.4.4", "empirical measures have invariant limits",
        "If F maps a compact set into itself, a subsequence of the empirical measures converges to an invariant one.",
        "μ_{n_k} -> μ weakly, and μ is invariant when F is continuous",
        "", _HERE + "thm_6_4_3.limit_weights",
        _AVERAGES + "test_limit_along_blocks_is_invariant_but_not_ergodic",
        "does not hold as stated: F must be continuous (halving_map has no invariant law), and the limit need not be "
        "ergodic; checked on the examples where it does hold",
        Source("thesis", "Theorem 6.4.4 and 6.7.3"),
    ),
    Theorem(
        "Lemma 6.4.5", "cross-entropy is bounded and Lipschitz",
        "With scores of spread c among d classes the loss is at most c + log d; it is √2-Lipschitz in the scores.",
        "|ℓ(x, y)| <= max x - min x + log d; ‖∂ℓ/∂x‖ <= √2",
        "", _HERE + "lemma_6_4_5.cross_entropy_bound",
        _NETWORKS + "test_cross_entropy_is_bounded_by_its_spread",
        "holds; both constants are tight; (6.9) has the loss with its sign reversed",
        Source("thesis", "Lemma 6.4.5 and 6.7.4"),
    ),
    Theorem(
        "Theorem 6.4.6", "weight decay keeps the weights in a compact set",
        "Weights that start in C_w stay in it under SGD with weight decay γ and steps up to 1/γ.",
        "w <= (γ/(c_ℓ c_σ^L))^(1/(L-2)), η <= 1/γ: ‖W_l‖_op <= w always; loss <= log d + c_ℓ (γ/(c_ℓ c_σ²))^(L/(L-2))",
        "DecayedNetwork", _HERE + "thm_6_4_6.DecayedNetwork",
        _NETWORKS + "test_weights_stay_in_the_compact_set; study e9-compact-set",
        "holds for L >= 3; the proof's last line lost a factor c_ℓ; a longer step or a larger set leaves",
        Source("thesis", "Theorem 6.4.6 and 6.7.5"),
    ),
    Theorem(
        "Theorem 6.4.7", "the same with batch normalisation",
        "With batch normalisation last, weight decay keeps |a_L| <= 2√m/γ and the loss bounded.",
        "η <= 1/γ: |a_L| <= 2√m/γ, |b_L| <= 1/γ, loss <= 4m/γ + 2/γ + log d",
        "DecayedBatchNorm", _HERE + "thm_6_4_7.DecayedBatchNorm",
        _NETWORKS + "test_batch_norm_scale_shift_and_loss_stay_bounded; study e9-compact-set",
        "holds once the shift b_L, which the proof forgets, is started within 1/γ",
        Source("thesis", "Theorem 6.4.7 and 6.7.6"),
    ),
    Theorem(
        "Theorem 6.5.1", "a small step lowers the loss",
        "At an invariant distribution that is not carried by stationary points, a small enough step lowers the loss.",
        "E f(θ - cηg) - E f(θ) <= -cη E‖∇f‖² + c²η² B E‖g‖²/2 < 0 for c < 2 E‖∇f‖²/(η B E‖g‖²)",
        "InvariantDistribution", _HERE + "thm_6_5_1.InvariantDistribution",
        _NETWORKS + "test_small_step_lowers_the_loss_of_a_network_at_its_invariant_law; study e10-small-step",
        "holds; the proof's expansion has a wrong sign and a wrong Hessian term: its identity before (6.10) does not",
        Source("thesis", "Theorem 6.5.1 and 6.7.7"),
    ),
)
