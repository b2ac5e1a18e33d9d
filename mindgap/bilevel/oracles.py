"""First and second derivatives of both levels on the samples of a token: the only place where autograd is used.

One sign convention everywhere: H = d2g/dy2, J = d2g/dxdy (maps y-space to x-space), z* = +H^-1 f_y,
grad Phi = f_x - J z*. One double backward gives g_y, Hz and Jz together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import RuleError, fail
from mindgap.base.count import OracleCount
from mindgap.bilevel.ops import TorchOps
from mindgap.bilevel.problem import BilevelProblem
from mindgap.bilevel.sample import Batches, Sample, is_full, row


@contextlib.contextmanager
def double_backward_kernels() -> Iterator[None]:
    """Kernels that can be differentiated twice: cuDNN's recurrent nets and fused attention off inside, restored after.

    Example:
        >>> before = torch.backends.cudnn.enabled
        >>> with double_backward_kernels():
        ...     torch.backends.cudnn.enabled
        False
        >>> torch.backends.cudnn.enabled == before
        True
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


class TorchOracle:
    """Counted derivatives of a problem at flat vectors.

    A call on a minibatch counts one for each quantity it returns (g_y, Hz, Jz, f_x, f_y, g_x); a call on all samples
    counts as many as there are minibatches in an epoch.

    Args:
        problem: the two losses with their data.
        distributed: average over the ranks of torch.distributed's default group; each rank evaluates its part of
            every minibatch. All quantities are linear in the samples, so the result is that of one process.

    Example:
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y * b).sum(), lower=lambda x, y, b: (y.square() * x.exp()).sum() / 2,
        ...     x=torch.zeros(2), y=torch.ones(2), upper_data=torch.ones(4, 1), lower_data=torch.ones(4, 1),
        ...     batch_size=2)
        >>> oracle = TorchOracle(problem)
        >>> g_y, Hz, Jz = oracle.system(torch.zeros(2), torch.ones(2), torch.ones(2), Sample(0))
        >>> g_y.tolist(), Hz.tolist(), Jz.tolist(), oracle.calls.total
        ([1.0, 1.0], [1.0, 1.0], [1.0, 1.0], 3)
    """

    ops = TorchOps

    def __init__(self, problem: BilevelProblem, *, distributed: bool = False) -> None:
        self.problem = problem
        self.calls = OracleCount()
        self.plain_kernels = False
        self.seeded = False
        self.distributed = distributed
        self.share = (0, 1)
        if distributed:
            import torch.distributed as dist

            if not dist.is_initialized():
                fail("distributed", "needs torch.distributed to be initialised", distributed)
            self.share = (dist.get_rank(), dist.get_world_size())

    def take_calls(self) -> dict[str, int]:
        """The calls counted since the last time this was asked."""
        calls, self.calls = self.calls.as_dict(), OracleCount()
        return calls

    def start_calls(self, method: Any, draws: Any) -> dict[str, int]:
        """Oracle calls of the phase before the first iteration, which has just run."""
        return self.take_calls()

    @staticmethod
    def to_torch(vector: Tensor) -> Tensor:
        """A vector of this backend as a tensor."""
        return vector

    @staticmethod
    def from_torch(vector: Tensor) -> Tensor:
        """A tensor as a vector of this backend."""
        return vector

    # What methods need to know of the problem, besides derivatives.

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        """Copies of x and y at the start, flat."""
        return self.problem.pack_x.start.clone(), self.problem.pack_y.start.clone()

    @property
    def project_x(self) -> Callable[[Any], Any] | None:
        """Projection of the flat x, if the problem has one."""
        return self.problem.project_x

    @property
    def project_y(self) -> Callable[[Any], Any] | None:
        """Projection of the flat y, if the problem has one."""
        return self.problem.project_y

    def batches(self, level: str) -> int:
        """Minibatches in an epoch of a level."""
        return self.problem.data(level).batches

    def weight(self, level: str, token: Sample) -> float:
        """Share of the level's samples that the token's batch holds."""
        data = self.problem.data(level)
        return data.size(token) / data.n

    # Derivatives.

    def lower(self, x: Tensor, y: Tensor, token: Sample) -> Tensor:
        """g_y."""
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Any) -> tuple[Tensor, ...]:
            ys = pack_y.leaves(y)
            loss = self._loss("lower", pack_x.view(x), pack_y.assemble(ys), batch, token)
            return (pack_y.join(torch.autograd.grad(loss, ys, allow_unused=True)),)

        return self._run("lower", evaluate, token, ("g_y",))[0]

    def lower_x(self, x: Tensor, y: Tensor, token: Sample) -> Tensor:
        """g_x."""
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Any) -> tuple[Tensor, ...]:
            xs = pack_x.leaves(x)
            loss = self._loss("lower", pack_x.assemble(xs), pack_y.view(y), batch, token)
            if not loss.requires_grad:
                return (torch.zeros_like(x),)
            return (pack_x.join(torch.autograd.grad(loss, xs, allow_unused=True)),)

        return self._run("lower", evaluate, token, ("g_x",))[0]

    def system(self, x: Tensor, y: Tensor, z: Tensor, token: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """g_y, Hz and Jz from one double backward."""
        g_y, hz, jz = self._second(x, y, z, token, ("g_y", "Hz", "Jz"))
        return g_y, hz, jz

    def products(self, x: Tensor, y: Tensor, z: Tensor, token: Sample) -> tuple[Tensor, Tensor]:
        """Hz and Jz."""
        hz, jz = self._second(x, y, z, token, ("Hz", "Jz"))
        return hz, jz

    def hessian(self, x: Tensor, y: Tensor, z: Tensor, token: Sample) -> Tensor:
        """Hz."""
        return self._second(x, y, z, token, ("Hz",))[0]

    def mixed(self, x: Tensor, y: Tensor, z: Tensor, token: Sample) -> Tensor:
        """Jz."""
        return self._second(x, y, z, token, ("Jz",))[0]

    def upper(self, x: Tensor, y: Tensor, token: Sample) -> tuple[Tensor, Tensor]:
        """f_x and f_y."""
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Any) -> tuple[Tensor, ...]:
            xs, ys = pack_x.leaves(x), pack_y.leaves(y)
            loss = self._loss("upper", pack_x.assemble(xs), pack_y.assemble(ys), batch, token)
            got = torch.autograd.grad(loss, (*xs, *ys), allow_unused=True)
            return pack_x.join(got[: len(xs)]), pack_y.join(got[len(xs) :])

        f_x, f_y = self._run("upper", evaluate, token, ("f_x", "f_y"))
        return f_x, f_y

    def dense(self, x: Tensor, y: Tensor, token: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """g_y, H (d_y, d_y) and J (d_x, d_y) as matrices, from one product for each lower unknown."""
        names = ("g_y",) + ("Hz", "Jz") * y.numel()

        def evaluate(batch: Any) -> tuple[Tensor, ...]:
            x_, y_ = x.detach().requires_grad_(), y.detach().requires_grad_()
            loss = self._loss("lower", self.problem.view_x(x_), self.problem.view_y(y_), batch, token)
            (g_y,) = torch.autograd.grad(loss, y_, create_graph=True)
            if not g_y.requires_grad:
                return g_y, y.new_zeros(y.numel(), y.numel()), x.new_zeros(x.numel(), y.numel())
            units = torch.eye(y.numel(), dtype=y.dtype, device=y.device)
            pairs = torch.autograd.grad(
                g_y, (y_, x_), grad_outputs=units, is_grads_batched=True, allow_unused=True, materialize_grads=True
            )
            return g_y.detach(), pairs[0], pairs[1].T.contiguous()

        g_y, h, j = self._run("lower", evaluate, token, names, second=True)
        return g_y, h, j

    def _second(self, x: Tensor, y: Tensor, z: Tensor, token: Sample, names: tuple[str, ...]) -> tuple[Tensor, ...]:
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Any) -> tuple[Tensor, ...]:
            ys = pack_y.leaves(y)
            xs = pack_x.leaves(x) if "Jz" in names else []
            variable = pack_x.assemble(xs) if xs else pack_x.view(x)
            loss = self._loss("lower", variable, pack_y.assemble(ys), batch, token)
            g_y = torch.autograd.grad(loss, ys, create_graph=True, allow_unused=True)
            bent = [(g, v) for g, v in zip(g_y, pack_y.split(z), strict=True) if g is not None and g.requires_grad]
            wanted = (*(ys if "Hz" in names else ()), *xs)
            got: tuple[Tensor | None, ...] = (None,) * len(wanted)
            if bent:
                got = torch.autograd.grad([g for g, _ in bent], wanted, [v for _, v in bent], allow_unused=True)
            found: list[Tensor] = []
            if "g_y" in names:
                found.append(pack_y.join([None if g is None else g.detach() for g in g_y]))
            if "Hz" in names:
                found.append(pack_y.join(got[: len(ys)]))
            if xs:
                found.append(pack_x.join(got[len(got) - len(xs) :]))
            return tuple(found)

        return self._run("lower", evaluate, token, names, second=True)

    def _loss(self, level: str, x: Any, y: Any, batch: Any, token: Sample) -> Tensor:
        """A loss at variables in the user's form, under the token's random state where the losses draw numbers."""
        function = self.problem.lower if level == "lower" else self.problem.upper
        if not self.seeded:
            return function(x, y, batch)
        device = self.problem.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(token.seed))
            return function(x, y, batch)

    def _run(
        self,
        level: str,
        evaluate: Callable[[Any], tuple[Tensor, ...]],
        token: Sample,
        names: tuple[str, ...],
        second: bool = False,
    ) -> tuple[Tensor, ...]:
        """Evaluate on the token's samples (all in chunks for FULL), count, and average over ranks."""
        data = self.problem.lower_data if level == "lower" else self.problem.upper_data
        if type(token.which) is int and self.share[1] == 1 and not (second and self.plain_kernels) and _is_plain():
            # The common case, without a context: a minibatch, one process, autograd on.
            for name in names:
                self.calls.add(name)
            return evaluate(data.fetch(token))
        with contextlib.ExitStack() as stack:
            if not torch.is_grad_enabled():
                stack.enter_context(torch.enable_grad())
            if second and self.plain_kernels:
                stack.enter_context(double_backward_kernels())
            if second and torch.is_autocast_enabled(self.problem.device.type):
                stack.enter_context(torch.autocast(self.problem.device.type, enabled=False))
            if is_full(token):
                result, times = self._full(data, evaluate), data.batches
            elif isinstance(token.which, np.ndarray) and token.which.ndim > data.token_axes:
                return self._large(level, evaluate, token, names, second)
            else:
                result, times = evaluate(data.fetch(token, self.share)), 1
        for name in names:
            self.calls.add(name, times)
        if self.share[1] > 1:
            result = self._reduce(result, data, token)
        return result

    def _large(
        self,
        level: str,
        evaluate: Callable[[Any], tuple[Tensor, ...]],
        token: Sample,
        names: tuple[str, ...],
        second: bool,
    ) -> tuple[Tensor, ...]:
        """A token with one more axis is a large batch: the mean over its minibatches."""
        count = len(token.which)
        parts = [self._run(level, evaluate, row(token, i), names, second) for i in range(count)]
        return tuple(sum(p[1:], p[0]) / count for p in zip(*parts, strict=True))

    def _full(self, data: Any, evaluate: Callable[[Any], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        total: list[Tensor] = []
        for batch, weight in data.chunks(self.share):
            part = evaluate(batch)
            if total:
                for a, b in zip(total, part, strict=True):
                    a.add_(b, alpha=weight)
            else:
                total = [p * weight for p in part]
        return tuple(total)

    def _reduce(self, result: tuple[Tensor, ...], data: Any, token: Sample) -> tuple[Tensor, ...]:
        import torch.distributed as dist

        if not is_full(token):  # chunks carry their weight already
            rank, world = self.share
            size = data.size(token)
            mine = size * (rank + 1) // world - size * rank // world
            result = tuple(r * (mine / size) for r in result)
        flat = torch.cat([r.reshape(-1) for r in result])
        dist.all_reduce(flat)
        parts = flat.split([r.numel() for r in result])
        return tuple(p.view(r.shape) for p, r in zip(parts, result, strict=True))

    # A look at the problem before the first step.

    def check(self, seed: int = 0, *, second_order: bool = True) -> None:
        """Evaluate both levels once at the start; find out what they need and refuse what cannot work.

        Sets ``seeded`` when a loss draws random numbers (so tokens seed it) and ``plain_kernels`` when a kernel in the
        lower loss has no double backward.

        Raises:
            RuleError: a loss that is not one finite number, a lower loss that does not depend on y, an upper level that
                does not depend on x even through y, a loss that fails (devices, shapes, missing double backward).
        """
        problem = self.problem
        x, y = self.start
        lower_token, upper_token = (row(problem.data(level).draw(seed, level, 0, 1), 0) for level in ("lower", "upper"))
        for name in ("upper_data", "lower_data"):
            data = getattr(problem, name)
            if isinstance(data, Batches) and data.is_tensors:
                where = data.devices()
                if where != {problem.device}:
                    fail(name, f"must be on the device of x and y, {problem.device}", sorted(map(str, where)))
        loss, x_, y_ = self._trial("lower", x, y, lower_token)
        g_x, g_y = _trial_grad(loss, x_, y_)
        if g_y is None:
            fail("lower", "must depend on y", "a loss without gradient in y")
        loss, x_, y_ = self._trial("upper", x, y, upper_token)
        f_x, f_y = _trial_grad(loss, x_, y_)
        if f_x is None and (f_y is None or g_x is None):
            fail("upper", "must depend on x, directly or through y*(x)", "a problem whose value does not change with x")
        if second_order:
            self._trial_second(x, y, lower_token)

    def _trial(self, level: str, x: Tensor, y: Tensor, token: Sample) -> tuple[Tensor, Tensor, Tensor]:
        x_, y_ = x.requires_grad_(), y.requires_grad_()
        cuda = x.device.type == "cuda"
        before = torch.get_rng_state(), torch.cuda.get_rng_state(x.device) if cuda else None
        batch = self.problem.data(level).fetch(token)
        try:
            with torch.enable_grad():
                loss = self._loss(level, self.problem.view_x(x_), self.problem.view_y(y_), batch, token)
        except RuleError:
            raise
        except Exception as error:
            sizes = f"x {self.problem.pack_x.shapes}, y {self.problem.pack_y.shapes}"
            raise RuleError(f"{level} must be computable at the start ({sizes}), got {error}") from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            fail(level, "must return a tensor with one element", shape)
        if not bool(torch.isfinite(loss.detach()).all()):
            fail(level, "must be finite at the start", float(loss.detach()))
        moved = not torch.equal(before[0], torch.get_rng_state())
        if cuda and before[1] is not None:
            moved = moved or not torch.equal(before[1], torch.cuda.get_rng_state(x.device))
            torch.cuda.set_rng_state(before[1], x.device)
        torch.set_rng_state(before[0])
        self.seeded = self.seeded or moved
        return loss, x_, y_

    def _trial_second(self, x: Tensor, y: Tensor, token: Sample) -> None:
        x, y = x.detach(), y.detach()
        calls, share = self.calls, self.share
        self.calls, self.share = OracleCount(), (0, 1)
        try:
            for plain in (False, True):
                self.plain_kernels = plain
                try:
                    self.system(x, y, torch.ones_like(y), token)
                    return
                except (RuntimeError, NotImplementedError) as error:
                    if plain:
                        raise RuleError(f"lower must be differentiable twice, got {error}") from error
        finally:
            self.calls, self.share = calls, share


def _is_plain() -> bool:
    return torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")


def _trial_grad(loss: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if not loss.requires_grad:
        return None, None
    g_x, g_y = torch.autograd.grad(loss, (x, y), allow_unused=True)
    return g_x, g_y
