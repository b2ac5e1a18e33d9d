"""Answer A2 to reviewer g3Q2 on SLIP: a hard single-level problem as a bilevel one, whose lower
bound carries over.

Upper level f(x, y) = the scaled zero-chain of Theorem 4.4.4 at α = 2 (Arjevani et al.), which does
not look at y; lower level g(x, y) = ‖y‖²/2. Then y*(x) = 0, Φ = f, and the hypergradient of one
upper sample is one draw of the chain's oracle, whatever y and the linear system are. A method that
moves x along hypergradients it has seen needs as many upper calls as a single-level method:
Ω(ε⁻⁴).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindgap.base.check import whole
from mindgap.base.checked import Positive, check_arguments
from mindgap.lab.theory.chapter4.zero_chain import (
    CHAIN_SMOOTHNESS,
    LARGE_ENTRY,
    HardChain,
    ZeroChain,
    noise_probability,
)

if TYPE_CHECKING:
    import torch

    from mindgap.bilevel import BilevelProblem


@dataclass(frozen=True)
class LiftedChain:
    """The zero-chain with noise of variance σ² as an upper level.

    Example:
        >>> hard = LiftedChain(L=1.0, delta=0.5, sigma=10.0, epsilon=0.0025)
        >>> hard.dimension, round(hard.probability, 6)
        (10, 0.000265)
        >>> round(hard.upper_calls)  # before half of all runs may have reached ε
        17013

    Source: slip-rebuttal-a, A2 to g3Q2; thesis, 4.7.7 for the chain.
    """

    L: Positive  # smoothness of Φ
    delta: Positive  # Φ(0) - inf Φ
    sigma: Positive  # root of the variance of an upper sample's gradient
    epsilon: Positive  # accuracy asked for: ‖∇Φ‖ <= ε

    def __post_init__(self) -> None:
        self._chain()

    def _chain(self) -> HardChain:
        """The single-level instance, α = 2. Its G decides its own p only, which is not used here
        (``probability`` is); so G only has to be large enough.
        """
        return HardChain(alpha=2.0, L=self.L, delta=self.delta, G=1e9, epsilon=self.epsilon)

    @property
    def dimension(self) -> int:
        """d of the chain, and of x."""
        return self._chain().dimension

    @property
    def probability(self) -> float:
        """p with which an upper sample shows the next coordinate."""
        return noise_probability(2.0, self.sigma, self.epsilon)

    @property
    def upper_calls(self) -> float:
        """(d-1)/(2p): with fewer upper samples ‖∇Φ‖ > ε with probability 1/2 at least, for every
        zero-respecting method. Of order L Δ σ²/ε⁴.
        """
        return (self.dimension - 1) / (2 * self.probability)

    def problem(self, samples: int = 100_000, seed: int = 0) -> BilevelProblem:
        """The bilevel problem in float64: x has ``dimension`` entries and starts at 0, y has one
        and starts at 1.

        An upper batch is one draw z ~ Bernoulli(p), as a tensor of shape (1,). The lower data are
        zeros; the lower level does not look at them.

        Args:
            samples: how many draws the upper data hold.
            seed: of the draws.
        """
        import torch

        from mindgap.base.rng import torch_stream
        from mindgap.bilevel import BilevelProblem

        whole("samples", samples, least=1)
        generator = torch_stream(seed, "lifted chain")
        coins = (torch.rand(samples, generator=generator) < self.probability).double()
        chain, dimension = self._chain(), self.dimension

        # A term of 0 keeps an argument that a level does not look at in autograd's graph.
        def upper(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
            """f: the chain at x for one draw of its oracle, ``batch[0]``; y only by a term of 0."""
            return _chain_value(chain, self.probability, x, batch[0]) + 0.0 * y.sum()

        def lower(x: torch.Tensor, y: torch.Tensor, batch: Any) -> torch.Tensor:
            """g = ‖y‖²/2; x and the batch only by terms of 0."""
            return y.square().sum() / 2 + 0.0 * x.sum() + 0.0 * batch[0].sum()

        return BilevelProblem(
            upper,
            lower,
            x=torch.zeros(dimension, dtype=torch.float64),
            y=torch.ones(1, dtype=torch.float64),
            batch_size=1,
            upper_data=(coins,),
            lower_data=(torch.zeros(samples, dtype=torch.float64),),
        )


def _chain_value(
    chain: HardChain, probability: float, x: torch.Tensor, coins: torch.Tensor
) -> torch.Tensor:
    """The value f(x), whose gradient for autograd is the oracle's stochastic gradient g(x).

    This is the torch twin of two methods of ``HardChain``, with another p:

    - the value, of ``HardChain.value``: f(x) = (Lλ²/152) f_d(x/λ) (thesis, 4.7.7, proof of Theorem
      4.4.4, where 152 is the smoothness of f_d by Lemma 4.7.9, 2);
    - the gradient, of ``HardChain.stochastic_gradient``: g(x) = 2ε g_d(x/λ) with the oracle g_d of
      Lemma 4.7.10, which multiplies entry prog_{1/4}(x/λ) + 1 of ∇f_d by z/p.

    Args:
        chain: gives L, ε, λ (``scale``) and d (``dimension``).
        probability: p.
        x: shape (d,).
        coins: the draws z of the batch, 0 or 1; their mean takes the place of z.

    Returns:
        A scalar.
    """
    import torch

    unscaled = x.detach() / chain.scale
    gradient = 2 * chain.epsilon * ZeroChain(chain.dimension).gradient(unscaled)
    index = torch.arange(1, chain.dimension + 1, dtype=unscaled.dtype)
    progress = (index * (unscaled.abs() > LARGE_ENTRY)).amax(-1)  # prog_{1/4}(x/λ)
    # z/p on the entry after the last large one, 1 elsewhere.
    factor = torch.where(index == progress + 1, coins.mean() / probability, torch.ones_like(index))
    value = chain.L * chain.scale**2 / CHAIN_SMOOTHNESS * ZeroChain(chain.dimension).value(unscaled)
    # x - x.detach() is 0 with derivative 1: it adds nothing to the value and g to the gradient.
    return value + (factor * gradient * (x - x.detach())).sum()


check_arguments(__name__)
