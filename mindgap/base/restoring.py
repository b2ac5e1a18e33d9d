"""A guard that leaves a model, its loader and every random state exactly as they were found.

Whatever happens inside (an error, Ctrl-C), parameters, buffers, ``p.grad``, the modules' training
flags, the global random states of Python, numpy, torch and CUDA, and the generators that belong to
a loader stand on leaving as they stood on entering. A measurement must not disturb what it
measures.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mindgap.base.check import fail


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy, torch and CUDA; use it inside ``undisturbed``
    or ``seeded`` only.

    Example:
        >>> with undisturbed(nn.Linear(1, 1)):
        ...     seed_everything(3)
        ...     first = torch.rand(())
        ...     seed_everything(3)
        ...     bool(first == torch.rand(()))
        True
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed would queue a call, with a stack trace, for every seeding before CUDA
    # starts: slow, and a leak.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def loader_generators(batches: Any) -> list[torch.Generator]:
    """The torch generators that a ``DataLoader`` and its samplers draw from (none for a list of
    batches).

    Example:
        >>> loader = torch.utils.data.DataLoader([1, 2], shuffle=True, generator=torch.Generator())
        >>> len(loader_generators(loader))
        1
    """
    generators: dict[int, torch.Generator] = {}  # by id: samplers may share one
    queue, owners_seen = [batches], set()  # objects that may own a generator
    while queue:
        owner = queue.pop()
        if owner is None or id(owner) in owners_seen:
            continue
        owners_seen.add(id(owner))
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generators[id(generator)] = generator
        queue += [getattr(owner, name, None) for name in ("sampler", "batch_sampler")]
    return list(generators.values())


class _Randomness:
    """The global random states of Python, numpy, torch and CUDA (where it runs), and those of some
    generators, at the moment of construction.
    """

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        # Asking for the CUDA states would start CUDA; a process that has not started it has no
        # state to lose.
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        # Those of ``generators``.
        self._states = [(generator, generator.get_state()) for generator in generators]

    def restore(self) -> None:
        """Put all of these generators back to where they were."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        self.restore_generators()

    def restore_generators(self) -> None:
        """Put the given generators, but no global one, back to where they were."""
        for generator, state in self._states:
            generator.set_state(state)


def random_states() -> list[object]:
    """The states of the global random number generators of Python, numpy, torch and CUDA (where it
    runs), to be compared with those at another time.
    """
    of_numpy: Any = np.random.get_state()
    states: list[object] = [
        random.getstate(),
        of_numpy[1].tolist(),  # the key and the position of its Mersenne twister
        of_numpy[2],
        torch.get_rng_state().tolist(),
    ]
    if torch.cuda.is_initialized():
        states += [state.tolist() for state in torch.cuda.get_rng_state_all()]
    return states


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global random numbers of Python, numpy, torch and CUDA follow from a seed inside; after
    it they go on as if nothing had drawn.

    Example:
        >>> def draw():
        ...     with seeded(7):
        ...         return torch.rand(1).item(), np.random.rand(), random.random()
        >>> draw() == draw()
        True
    """
    before = _Randomness([])
    try:
        seed_everything(seed)
        yield
    finally:
        before.restore()


class Guard:
    """What ``undisturbed`` hands to its block: ways to return to the first state before the
    block ends. Making one takes the parameters' gradients away until ``leave``.

    Args:
        model: the module to protect.
        batches: a loader whose generators are protected, or None.
        parameters: also keep a copy of the parameters.
    """

    # ``_buffers_of`` holds (module, its buffers by name), ``_buffer_copies`` the values of those
    # that are tensors, in the same order; ``_parameter_copies`` is None where none were asked for;
    # ``_versions`` are counters that torch raises when a parameter is written in place.

    def __init__(self, model: nn.Module, batches: Any, parameters: bool) -> None:
        """Keep the present state, and set ``p.grad`` of every parameter to None."""
        self._randomness = _Randomness(loader_generators(batches))
        self._modes = [(module, module.training) for module in model.modules()]
        self._parameters = list(model.parameters())
        self._versions = [p._version for p in self._parameters]
        self._buffers_of = [(module, dict(module._buffers)) for module in model.modules()]
        with torch.no_grad():
            self._buffer_copies = [
                buffer.clone()
                for _, buffers in self._buffers_of
                for buffer in buffers.values()
                if buffer is not None
            ]
            self._parameter_copies = (
                [p.detach().clone() for p in self._parameters] if parameters else None
            )
        # The gradients are taken away meanwhile: a loss that calls backward cannot spoil what is
        # not there.
        self._grads = [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None

    @property
    def may_move(self) -> bool:
        """Whether the parameters may be moved (a copy of them is kept)."""
        return self._parameter_copies is not None

    def rewind_loader(self) -> None:
        """Let the loader's own generators start where they stood, so that a shuffled pass
        repeats its order.
        """
        self._randomness.restore_generators()

    def rewind_buffers(self, *, every: bool = False) -> None:
        """Undo what a forward pass did to the buffers (running averages, power-iteration vectors).

        A buffer that was replaced by another tensor is put back, and one that is new (a mask made
        at the first call) is taken away. Then values are compared, because batch norm writes past
        the version counters, and only what changed is written, because a buffer may be saved in a
        live graph.

        Args:
            every: compare the buffers of all modules, not only of those in training mode.
        """
        compared = []  # (buffer, its copy)
        copies = iter(self._buffer_copies)
        for module, buffers in self._buffers_of:
            present = module._buffers
            if len(present) != len(buffers) or any(
                present.get(name) is not buffer for name, buffer in buffers.items()
            ):
                present.clear()
                present.update(buffers)
                module._non_persistent_buffers_set.intersection_update(buffers)
            tensors = [buffer for buffer in buffers.values() if buffer is not None]
            pairs = [(buffer, next(copies)) for buffer in tensors]
            compared += pairs if every or module.training else []
        if compared:
            with torch.no_grad():
                changes = torch.stack([(buffer != copy).any().cpu() for buffer, copy in compared])
                for (buffer, copy), changed in zip(compared, changes.tolist(), strict=True):
                    if changed:
                        buffer.copy_(copy)

    def restore_parameters(self) -> None:
        """Write the parameters' first values back; a no-op when no copy was asked for."""
        if self._parameter_copies is not None:
            with torch.no_grad():
                for p, copy in zip(self._parameters, self._parameter_copies, strict=True):
                    p.copy_(copy)

    def leave(self) -> None:
        """Return everything to its first state. Ctrl-C waits until this is done."""
        with _interrupt_deferred():
            if self._versions != [p._version for p in self._parameters]:
                self.restore_parameters()
            self.rewind_buffers(every=True)
            for p, grad in zip(self._parameters, self._grads, strict=True):
                p.grad = grad
            for module, training in self._modes:
                module.training = training
            self._randomness.restore()

    def check_untouched(self) -> None:
        """Raise when the block wrote into parameters of which no copy was kept."""
        if self._parameter_copies is None:
            for i, (p, version) in enumerate(zip(self._parameters, self._versions, strict=True)):
                if p._version != version:
                    rule = "must not write into the model's parameters"
                    fail("loss", rule, f"a changed parameter {i}")


@contextmanager
def undisturbed(
    model: nn.Module, batches: Any = None, *, parameters: bool = False
) -> Iterator[Guard]:
    """Leave ``model``, the loader and all random states as they were found, also after an error or
    Ctrl-C.

    Args:
        model: the module to protect: buffers, gradients and training flags always.
        batches: a loader whose own generators are protected too.
        parameters: also keep a copy of the parameters (one more gradient's worth of memory) and
            write it back; needed by whoever moves them. Without it a block that writes into them is
            an error.

    Yields:
        A guard with ways to return to the first state before the block ends.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> with undisturbed(model):
        ...     _ = model(torch.randn(8, 2))
        >>> model.running_mean
        tensor([0., 0.])
    """
    if not isinstance(model, nn.Module):
        fail("model", "must be a torch.nn.Module", model)
    guard = Guard(model, batches, parameters)
    try:
        yield guard
    finally:
        guard.leave()
    guard.check_untouched()


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Hold back SIGINT until the block has ended, where this is the main thread (Python delivers it
    to no other) and Python handles it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    interrupts: list[Any] = []  # the handler's arguments at each signal that was held back
    signal.signal(signal.SIGINT, lambda *arguments: interrupts.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            handler(*interrupts[0])


def first_batches(model: nn.Module, batches: Any, limit: int) -> list[Any]:
    """The first batches, at most ``limit``, in a list; random states are put back after drawing.

    Args:
        model: protected while batches are drawn (``undisturbed``).
        batches: an iterable of batches.

    Raises:
        RuleError: ``batches`` is no iterable, or gives none.
    """
    if not hasattr(batches, "__iter__") or (isinstance(batches, Tensor) and batches.ndim == 0):
        fail("batches", "must be an iterable of batches", batches)
    with undisturbed(model, batches):
        try:
            iterator = iter(batches)
        except TypeError as error:
            if "non-iterator" not in str(error):  # an error of the batches themselves
                raise
            fail("batches", "must be an iterable of batches", batches)
        drawn = list(islice(iterator, limit))
    return drawn or fail("batches", "must give at least one batch", batches)
