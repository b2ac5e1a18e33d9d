"""Hessian-vector products that keep the graph of the first backward, within a stated memory bound.

Double backward costs a forward, a backward and a backward of both. Everything but the last does not
depend on the vector: kept over all products of one reading, a product costs about 1.3 gradients for
an MLP and 2 for a ResNet (``double_backward`` has its convolutions), against 2.5 and 3.6 when the
graph is built anew. The price is the memory of the graph, which ``memory`` bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.check import fail, positive
from mindgap.base.checked import checked_types
from mindgap.base.tensors import flatten
from mindgap.measure.double_backward import QuickSecondDerivatives
from mindgap.measure.gradients import GradientPasses, check_time, dense

#: Bytes of retained graphs allowed unless the caller says otherwise.
DEFAULT_MEMORY = 2**31


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Switch off kernels without a double backward, choose quick ones, and restore the switches on
    leaving.

    Flash and memory-efficient attention give way to the mathematical form; cuDNN gives way to
    native recurrent layers where the model has any (only there: cuDNN convolutions are twice
    differentiable); compiled functions run eagerly; convolutions and evaluating batch norms get
    ``QuickSecondDerivatives``.

    Example:
        >>> q = torch.ones(1, 1, 2, 4, requires_grad=True)
        >>> with twice_differentiable(nn.Linear(1, 1)):
        ...     out = nn.functional.scaled_dot_product_attention(q, q, q)
        >>> (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        >>> torch.autograd.grad(g.sum(), q)[0].shape
        torch.Size([1, 1, 2, 4])
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if torch.backends.cudnn.is_available() and any(
            isinstance(m, nn.RNNBase) for m in model.modules()
        ):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(QuickSecondDerivatives())
        yield


class HessianProduct:
    """v -> H v for H = the mean of the batches' Hessians, on flat vectors in the parameters' order.

    H v = (1/n) sum_b d/dx <grad L_b(x), v>. The graph of grad L_b is kept for as many batches as
    fit into ``memory``; the others are built again for every product. Loss and gradient come out of
    building the graphs.

    Args:
        passes: opened by ``gradient_passes``; the object is valid until that block ends.
        memory: bound in bytes on what the retained graphs hold. Tensors that several graph nodes
            share are counted once; the parameters are not counted. The graph of one batch is in
            memory at any time, whatever the bound: use smaller batches where that is too much.

    Attributes:
        loss: mean of the batches' losses.
        gradient: mean gradient, flat.
        products: products made so far.
        retained, batches: how many graphs are kept, of how many batches.
        bytes: what the kept graphs hold.

    Example:
        >>> from mindgap.base.objective import Objective
        >>> from mindgap.measure.gradients import gradient_passes
        >>> model = nn.Linear(2, 1, bias=False)
        >>> problem = Objective(model, lambda m, b: 0.5 * m(b).square().mean())
        >>> with gradient_passes(problem, [torch.eye(2)]) as passes:
        ...     HessianProduct(passes)(torch.tensor([1.0, 3.0]))
        tensor([0.5000, 1.5000])
    """

    @checked_types
    def __init__(self, passes: GradientPasses, *, memory: float = DEFAULT_MEMORY) -> None:
        positive("memory", memory, finite=False)
        self._passes = passes
        self._parameters = passes.parameters
        self._graphs: list[list[Tensor]] = []
        self.products = self.retained = self.batches = self.bytes = 0
        self.loss = 0.0
        held: set[int] = {p.untyped_storage().data_ptr() for p in passes.parameters}
        full = False
        total: Tensor | None = None
        for item, gradient, added in self._first_backward(held):
            flat = flatten([g.detach() for g in gradient])
            total = flat if total is None else total + flat
            self.loss += float(item.loss.detach())
            self.batches += 1
            full = full or (self.batches > 1 and self.bytes + added > memory)
            if not full:
                self._graphs.append(gradient)
                self.bytes += added
                self.retained += 1
        assert total is not None
        self.loss /= self.batches
        self.gradient = total / self.batches
        if self.bytes > memory:  # one batch alone is larger: nothing is kept between products
            self._graphs.clear()
            self.retained = self.bytes = 0

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.gradient.numel()

    @property
    def lengths(self) -> list[int]:
        """Number of coordinates of each parameter tensor, in order."""
        return [p.numel() for p in self._parameters]

    def __call__(self, vector: Tensor) -> Tensor:
        """H v; ``vector`` is flat."""
        self.products += 1
        vectors = [v.view_as(p) for v, p in zip(vector.split(self.lengths), self._parameters)]
        total = torch.zeros_like(vector)
        for graph in self._graphs:
            check_time()
            total += self._differentiate(graph, vectors)
        if self.retained < self.batches:
            for item, graph, _ in self._first_backward(set()):
                if item.index >= self.retained:
                    total += self._differentiate(graph, vectors)
        return total / self.batches

    def close(self) -> None:
        """Drop the retained graphs."""
        self._graphs.clear()

    def _differentiate(self, gradient: list[Tensor], vectors: list[Tensor]) -> Tensor:
        pairs = [(g, v) for g, v in zip(gradient, vectors, strict=True) if g.requires_grad]
        if not pairs:  # a loss that is linear in the parameters
            return torch.zeros_like(flatten(vectors))
        outputs, cotangents = [g for g, _ in pairs], [v for _, v in pairs]
        with twice_differentiable(
            self._passes.objective.model
        ):  # a checkpointed part runs its forward again here
            found = torch.autograd.grad(
                outputs, self._parameters, cotangents, retain_graph=True, allow_unused=True
            )
        return flatten(
            [
                torch.zeros_like(p) if h is None else dense(h)
                for h, p in zip(found, self._parameters, strict=True)
            ]
        )

    def _first_backward(self, held: set[int]) -> Iterator[tuple[Any, list[Tensor], int]]:
        """(batch, its gradient with graph, bytes its graph holds beyond ``held``)."""
        added = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal added
            for part in _owners_of_memory(tensor):
                storage = part.untyped_storage()
                if storage.data_ptr() not in held:
                    held.add(storage.data_ptr())
                    added += storage.nbytes()
            # The hook also spares the version check on running averages, which are rewound between
            # batches.
            return tensor.detach()

        source = self._passes.values()
        while True:
            # Switched around each batch, not around the loop: whoever leaves the loop early must
            # find nothing switched.
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with hooks, twice_differentiable(self._passes.objective.model):
                item = next(source, None)
                if item is None:
                    return
                if not item.loss.requires_grad:
                    fail("loss", "must depend on a parameter that takes a gradient", "a constant")
                raw = torch.autograd.grad(
                    item.loss, self._parameters, create_graph=True, allow_unused=True
                )
            gradient = [
                torch.zeros_like(p) if g is None else dense(g)
                for g, p in zip(raw, self._parameters, strict=True)
            ]
            yield item, gradient, added
            added = 0


def _owners_of_memory(tensor: Tensor) -> list[Tensor]:
    """The tensors that own the memory of one; a sparse tensor has no storage of its own."""
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return []  # compressed forms: their parts differ per layout, and they are small
