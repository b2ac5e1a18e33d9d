"""What may stand between the gradient and Adam's moments: candidates for ``clip="auto"``.

All models of a candidate are rows of one tensor: g has shape (seeds, rates, parameters). A rule
returns what the moments see. Norms are over the parameters of one model, as over all parameters of
a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

State = dict[str, Tensor]
Rule = Callable[[Tensor, State, int, list[int]], Tensor]
WINDOW = 128


def norm_of(g: Tensor) -> Tensor:
    return g.norm(dim=-1, keepdim=True)


def unit(g: Tensor) -> Tensor:
    size = norm_of(g)
    return torch.where(size > 0, g / size, g)


def none(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    return g


def whole(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    """The gradient divided by its norm."""
    return unit(g)


def fixed(tau: float) -> Rule:
    """``clip_grad_norm_``."""

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        return g * (tau / (norm_of(g) + 1e-6)).clamp_max(1.0)

    return rule


def quantile(q: float) -> Rule:
    """The running quantile of the last 128 norms, the present one included."""

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        size = norm_of(g)
        window = s.get("window")
        window = size if window is None else torch.cat([window[..., -WINDOW + 1 :], size], -1)
        s["window"] = window
        n = window.shape[-1]
        rank = min(n, max(1, -int(-q * (n + 1) // 1)))
        tau = window.kthvalue(rank, dim=-1, keepdim=True).values
        return g * (tau / size.clamp_min(1e-38)).clamp_max(1.0)

    return rule


def zclip(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    """Kumar and others 2025: a norm beyond 2.5 deviations goes to mean + 2.5²/z deviations."""
    size = norm_of(g)
    if k <= 25:
        s["first"] = size if k == 1 else torch.cat([s["first"], size], -1)
        s["mean"] = s["first"].mean(-1, keepdim=True)
        s["var"] = s["first"].var(-1, correction=0, keepdim=True)
        return g
    spread = s["var"].sqrt() + 1e-6
    z = (size - s["mean"]) / spread
    aim = torch.where(z > 2.5, s["mean"] + 2.5**2 / z * spread, size)
    s["mean"] = 0.97 * s["mean"] + 0.03 * aim
    s["var"] = 0.97 * s["var"] + 0.03 * (aim - s["mean"]).square()
    return g * (aim / size.clamp_min(1e-38)).clamp_max(1.0)


def autoclip(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    """Seetharaman and others 2020: the 10th percentile of all norms so far."""
    size = norm_of(g)
    s["all"] = size if k == 1 else torch.cat([s["all"], size], -1)
    n = s["all"].shape[-1]
    tau = s["all"].kthvalue(max(1, round(0.1 * n)), dim=-1, keepdim=True).values
    return g * (tau / (size + 1e-6)).clamp_max(1.0)


def adagc(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    """Wang and others 2025: each tensor's norm at most 1.05 times its running mean; first 100
    steps at most 1 over all."""
    if k <= 100:
        g = g * (1.0 / (norm_of(g) + 1e-6)).clamp_max(1.0)
    out = []
    for i, part in enumerate(g.split(sizes, -1)):
        size, name = norm_of(part), f"mean{i}"
        if k <= 100:
            s[name] = torch.minimum(s[name], size) if k > 1 else size
            out.append(part)
        else:
            factor = (1.05 * s[name] / size.clamp_min(1e-38)).clamp_max(1.0)
            out.append(part * factor)
            s[name] = 0.98 * s[name] + 0.02 * factor * size
    return torch.cat(out, -1)


def coordinates(c: float, *, signal: bool = False) -> Rule:
    """Entries of the unit gradient clipped at c times a running mean (0.99) of their own size over
    the steps with an entry.

    With ``signal`` the mean sees entries of at most five times itself, and what was cut, e, is
    given back as far as its sign repeats: if the signs are random, the square of its running mean
    ē is near the sum of the squared weights times e²; if rare large entries are signal, it grows
    like the number of events in memory.
    """

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        g = unit(g)
        if k == 1:
            s["tau"], s["count"] = torch.zeros_like(g), torch.zeros_like(g)
        event = g != 0
        size = g.abs()
        known = s["count"] > 0
        tau = s["tau"] / (1 - 0.99 ** s["count"]).clamp_min(1e-12)
        limit = torch.where(known, c * tau, size)
        seen = torch.where(known, size.clamp_max(5.0 * tau), size) if signal else size
        s["tau"] = torch.where(event, 0.99 * s["tau"] + 0.01 * seen, s["tau"])
        s["count"] = s["count"] + event
        cut = torch.minimum(torch.maximum(g, -limit), limit)
        if not signal:
            return cut
        e = g - cut
        if k == 1:
            s["cut"], s["chance"] = torch.zeros_like(g), torch.zeros_like(g)
        agree = (s["cut"] * e.sign()).clamp_min(0) / s["chance"].clamp_min(1e-38).sqrt()
        share = ((agree.square() - 1) / (agree.square() + 1)).clamp(0, 1)
        s["cut"] = 0.99 * s["cut"] + 0.01 * e
        s["chance"] = 0.99**2 * s["chance"] + 0.01**2 * e.square()
        s["share"] = share.mean(-1)
        return cut + share * e

    return rule


def hill(values: Tensor, count: int) -> Tensor:
    """1/α of Hill: the mean logarithm of the largest values over the next one."""
    top = values.topk(count + 1, dim=-1).values.clamp_min(1e-38).log()
    return top[..., :count].mean(-1, keepdim=True) - top[..., count:]


def tail(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
    """The second try: AdamW's gradient where the norms' tail is light, the unit gradient where it
    is heavy.

    The tail index α of the last 128 norms is Hill's, from the tenth of the largest ratios of a norm
    to the one before it (a level that drifts has no tail in the ratios). h goes from 0 at α = 4 to
    1 at α = 2, below which the variance is infinite. The gradient's norm becomes ‖g‖^(1−h)·ρ^h
    with ρ = S·min(1, q/‖g‖): S the median of the first 20 norms, which keeps the unit that v has
    seen, q the 0.25 quantile of the last 128 norms. The first 20 norms say nothing yet: they are
    clipped at three times their running median.
    """
    size = norm_of(g).clamp_min(1e-38)
    window = s.get("window")
    count = 0 if window is None else window.shape[-1]
    s["window"] = size if window is None else torch.cat([window[..., -WINDOW + 1 :], size], -1)
    if window is None:
        return g
    if count < 20:
        s["start"] = window.median(-1, keepdim=True).values
        return g * (3 * s["start"] / size).clamp_max(1.0)
    h = (4 * hill(window[..., 1:] / window[..., :-1], max(4, count // 10)) - 1).clamp(0, 1)
    s["heavy"] = s.get("heavy", 0.0) + h
    s["share"] = s["heavy"] / k
    weight = (window.quantile(0.25, -1, keepdim=True) / size).clamp_max(1.0)
    return g * (s["start"] / size * weight) ** h


def switched(
    *,
    light: float = 4.0,
    level: float = 0.25,
    power: float = 1.0,
    cut: float = 0.0,
    decay: float = 0.999,
    beta: float = 0.99,
) -> Rule:
    """The third try: the gradient itself where the norms' tail is light, and where it is heavy a
    gradient whose norm is that of √v̂, which v neither grows nor falls by.

    Hill's index α of the ratios of consecutive norms is as in :func:`tail`; h goes from 0 at
    α = light to 1 at α = 2. S² is the bias-corrected running mean of the squared norms b that were
    handed on, so S = ‖√v̂‖ with v's memory. b = ‖g‖^(1−h)·S^h; a norm above the quantile q of the
    last 128 counts less by (q/‖g‖)^(power·h). Until 20 norms are known, h = 0: torch's AdamW.

    Args:
        light: the index above which nothing changes.
        level: of the quantile q.
        power: how fast a norm's weight falls above q.
        cut: entries are clipped at cut/h times the running mean of their own size over the steps
            with an entry; 0: never. At h = 0 nothing is clipped.
        decay: of v.
        beta: memory of the entries' running mean.
    """

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        size = norm_of(g).clamp_min(1e-38)
        window = s.get("window")
        count = 0 if window is None else window.shape[-1]
        s["window"] = size if window is None else torch.cat([window[..., -WINDOW + 1 :], size], -1)
        if window is None:
            s["sum"] = torch.zeros_like(size)
        h = torch.zeros_like(size)
        base = factor = size
        if window is not None and count >= 20:
            inverse = hill(window[..., 1:] / window[..., :-1], max(4, count // 10))
            h = ((inverse - 1 / light) / (0.5 - 1 / light)).clamp(0, 1)
            scale = (s["sum"] / (1 - decay ** (k - 1))).sqrt()
            base = size * (scale / size) ** h
            weight = (window.quantile(level, -1, keepdim=True) / size).clamp_max(1.0)
            factor = base * weight ** (power * h)
        s["sum"] = decay * s["sum"] + (1 - decay) * base.square()
        s["heavy"] = s.get("heavy", 0.0) + h
        s["share"] = s["heavy"] / k
        out = torch.where(h > 0, g * (factor / size), g)
        if not cut:
            return out
        entry = out.abs()
        if k == 1:
            s["tau"], s["count"] = torch.zeros_like(g), torch.zeros_like(g)
        tau = s["tau"] / (1 - beta ** s["count"]).clamp_min(1e-12)
        limit = torch.where((s["count"] > 0) & (h > 0), cut * tau / h.clamp_min(1e-6), entry)
        event = out != 0
        s["tau"] = torch.where(event, beta * s["tau"] + (1 - beta) * entry, s["tau"])
        s["count"] = s["count"] + event
        return torch.minimum(torch.maximum(out, -limit), limit)

    return rule


def entries(g: Tensor, sizes: list[int], most: int = 64) -> Tensor:
    """At most so many entries of every tensor, evenly spread: enough to tell to which side a
    gradient points."""
    parts = g.split(sizes, -1)
    return torch.cat([p[..., :: max(1, -(-p.shape[-1] // most))] for p in parts], -1)


def sided(
    *,
    large: float = 2.5,
    stay: int = 2 * WINDOW,
    power: float = 0.0,
    level: float = 0.25,
    cut: float = 0.0,
    decay: float = 0.999,
) -> Rule:
    """The fourth try: large gradients that point to both sides are noise, those that point to one
    side are signal.

    A gradient is large if its norm is above ``large`` medians M of the last 128 norms, of which ten
    must be known. L ← 0.9·L + g/‖g‖ remembers large gradients only, and only at 64 entries per
    tensor. Evidence W for signal: the logarithm of the likelihood ratio of "19 of 20 large
    gradients agree with L" (⟨g, L⟩ > 0) to "one of two does"; it begins at 2 and stays between −3
    and 6. The rule is on after the second large gradient, for ``stay`` steps after each, as long as
    W ≤ 2.5. Off: the gradient as it is, torch's AdamW, except that the first large gradient, of
    which nothing is known, is clipped at ``large``·M. On: its norm becomes S·min(1, q/‖g‖)^power,
    with S = ‖√v̂‖ (the bias-corrected running mean of the squared norms that were handed on) and q a
    quantile of the last 128 norms.

    Args:
        large: what is large, in medians.
        stay: steps for which a large gradient is remembered as one.
        power: how fast a norm's weight falls above q; 0: all count alike.
        level: of the quantile q.
        cut: while on, entries are clipped at so many times the running mean of their own size; 0:
            never.
        decay: of v.
    """
    agree, differ = math.log(0.95 / 0.5), math.log(0.05 / 0.5)

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        size = norm_of(g).clamp_min(1e-38)
        window = s.get("window")
        s["window"] = size if window is None else torch.cat([window[..., -WINDOW + 1 :], size], -1)
        sign = entries(unit(g), sizes)
        if window is None:
            s["sum"] = (1 - decay) * size.square()
            s["memory"] = torch.zeros_like(sign)
            s["evidence"], s["on"] = torch.full_like(size, 2.0), torch.zeros_like(size)
            s["since"] = torch.full_like(size, torch.inf)
            s["agreed"], s["differed"] = torch.zeros_like(size), torch.zeros_like(size)
            return g
        limit = large * window.median(-1, keepdim=True).values
        hit = (size > limit) & (k > 10)
        side = (sign * s["memory"]).sum(-1, keepdim=True)
        found = torch.where(side > 0, agree, torch.where(side < 0, differ, 0.0))
        s["evidence"] = torch.where(hit, (s["evidence"] + found).clamp(-3, 6), s["evidence"])
        s["since"] = torch.where(hit & (side != 0), 0.0, s["since"] + 1)
        s["agreed"], s["differed"] = (
            s["agreed"] + (hit & (side > 0)),
            s["differed"] + (hit & (side < 0)),
        )
        on = (s["since"] <= stay) & (s["evidence"] <= 2.5)
        first = hit & (side == 0)
        s["memory"] = torch.where(hit, 0.9 * s["memory"] + sign, s["memory"])
        scale = (s["sum"] / (1 - decay ** (k - 1))).sqrt()
        weight = (window.quantile(level, -1, keepdim=True) / size).clamp_max(1.0) ** power
        base = torch.where(on, scale, torch.where(first, limit, size))
        s["sum"] = decay * s["sum"] + (1 - decay) * base.square()
        s["on"] = s["on"] + on
        s["share"] = s["on"] / k
        factor = torch.where(on, scale * weight, torch.where(first, limit, size)) / size
        out = torch.where(on | first, g * factor, g)
        return held_at_means(out, s, k, cut, on) if cut else out

    return rule


def weighed(
    *,
    large: float = 4.0,
    stay: int = 2 * WINDOW,
    power: float = 1.0,
    level: float = 0.25,
    decay: float = 0.999,
    growth: float = math.inf,
    forget: float = 0.97,
) -> Rule:
    """The fifth try: as the fourth, but a large gradient counts by how clearly it points to a side.

    A gradient is large above ``large`` medians of the last 128 norms, of which ten must be known.
    a is its direction at 64 entries per tensor, of length 1; L ← 0.97·L + a remembers large
    gradients only, and r is the cosine of a and L. The evidence W gains the logarithm of the
    likelihood ratio of :func:`sided`, times |r| over the running mean of |r| (0.97, at most 3): a
    gradient that is nearly orthogonal to those before says little. When the rule is on, and what
    it does then, is as in :func:`sided`.

    Args:
        large: what is large, in medians.
        stay: steps for which a large gradient is remembered as one.
        power: how fast a norm's weight falls above the quantile; 0: all count alike.
        level: of the quantile.
        decay: of v.
        growth: off, a large gradient is handed on with at most so many times the most medians that
            one was handed on with before (the sixth try).
        forget: weight of those at the next large gradient.
    """
    agree, differ = math.log(0.95 / 0.5), math.log(0.05 / 0.5)

    def rule(g: Tensor, s: State, k: int, sizes: list[int]) -> Tensor:
        size = norm_of(g).clamp_min(1e-38)
        window = s.get("window")
        s["window"] = size if window is None else torch.cat([window[..., -WINDOW + 1 :], size], -1)
        side = entries(g, sizes)
        side = side / norm_of(side).clamp_min(1e-38)
        if window is None:
            s["sum"] = (1 - decay) * size.square()
            s["memory"] = torch.zeros_like(side)
            s["evidence"], s["on"] = torch.full_like(size, 2.0), torch.zeros_like(size)
            s["since"] = torch.full_like(size, torch.inf)
            s["clarity"], s["judged"] = torch.zeros_like(size), torch.zeros_like(size)
            s["agreed"], s["differed"] = torch.zeros_like(size), torch.zeros_like(size)
            s["now"] = torch.zeros_like(size, dtype=torch.bool)
            return g
        limit = large * window.median(-1, keepdim=True).values
        hit = (size > limit) & (k > 10)
        cosine = (side * s["memory"]).sum(-1, keepdim=True) / norm_of(s["memory"]).clamp_min(1e-38)
        judged = hit & (cosine != 0)
        first = hit & (cosine == 0)
        s["judged"] = s["judged"] + judged
        s["clarity"] = torch.where(judged, 0.97 * s["clarity"] + 0.03 * cosine.abs(), s["clarity"])
        usual = s["clarity"] / (1 - 0.97 ** s["judged"]).clamp_min(1e-12)
        weight = (cosine.abs() / usual.clamp_min(1e-38)).clamp_max(3.0)
        found = weight * torch.where(cosine > 0, agree, differ)
        s["evidence"] = torch.where(judged, (s["evidence"] + found).clamp(-3, 6), s["evidence"])
        s["agreed"] = s["agreed"] + weight * (judged & (cosine > 0))
        s["differed"] = s["differed"] + weight * (judged & (cosine < 0))
        s["since"] = torch.where(judged, 0.0, s["since"] + 1)
        on = (s["since"] <= stay) & (s["evidence"] <= 2.5)
        s["memory"] = torch.where(hit, 0.97 * s["memory"] + side, s["memory"])
        scale = (s["sum"] / (1 - decay ** (k - 1))).sqrt()
        less = (window.quantile(level, -1, keepdim=True) / size).clamp_max(1.0) ** power
        middle = limit / large
        most = s.get("most", torch.full_like(size, large / growth))
        passed = torch.where(hit, torch.minimum(size, growth * most * middle), size)
        passed = torch.where(first, limit, passed)
        most = torch.where(hit & ~on, torch.maximum(forget * most, passed / middle), most)
        s["most"] = most.clamp_min(large / growth)
        base = torch.where(on, scale, passed)
        s["sum"] = decay * s["sum"] + (1 - decay) * base.square()
        s["now"], s["on"] = on, s["on"] + on
        s["share"] = s["on"] / k
        factor = torch.where(on, scale * less, passed) / size
        return torch.where(on | (passed < size), g * factor, g)

    return rule


def held_at_means(g: Tensor, s: State, k: int, cut: float, on: Tensor) -> Tensor:
    """Entries clipped at ``cut`` times the running mean (0.99) of their own size over the steps
    with an entry, where the rule is on."""
    entry = g.abs()
    if k <= 2:
        s["tau"], s["count"] = torch.zeros_like(g), torch.zeros_like(g)
    tau = s["tau"] / (1 - 0.99 ** s["count"]).clamp_min(1e-12)
    limit = torch.where((s["count"] > 0) & on, cut * tau, entry)
    event = g != 0
    s["tau"] = torch.where(event, 0.99 * s["tau"] + 0.01 * entry, s["tau"])
    s["count"] = s["count"] + event
    return torch.minimum(torch.maximum(g, -limit), limit)


@dataclass
class Candidate:
    """A rule before AdamW's moments, or another optimizer of AdamW's scale."""

    name: str
    rule: Rule
    betas: tuple[float, float] = (0.9, 0.999)
    form: str = "adam"  # "adam", "acclip", "sgd"; "either": ACClip's step while the rule is on
    eps: float = 1e-8
    state: State = field(default_factory=dict)

    def update(self, g: Tensor, k: int, sizes: list[int]) -> Tensor:
        """The step per unit of lr."""
        s, (b1, b2) = self.state, self.betas
        g = self.rule(g, s, k, sizes)
        if k == 1:
            s["m"], s["v"] = torch.zeros_like(g), torch.zeros_like(g)
        if self.form == "sgd":  # ten times as long: rates of 0.003 to 0.3
            s["m"] = b1 * s["m"] + g
            return 10 * s["m"]
        s["m"] = b1 * s["m"] + (1 - b1) * g
        if self.form == "acclip":
            s["v"] = b2 * s["v"] + (1 - b2) * g.abs()
            m, tau = s["m"] / (1 - b1**k), s["v"] / (1 - b2**k)
            return (tau / (m.abs() + self.eps)).clamp_max(1.0) * m / (tau + self.eps)
        mean = s["m"] / (1 - b1**k)
        s["v"] = b2 * s["v"] + (1 - b2) * g.square()
        step = mean / ((s["v"] / (1 - b2**k)).sqrt() + self.eps)
        if self.form == "adam":
            return step
        s["a"] = 0.99 * s.get("a", 0.0) + 0.01 * g.abs()
        held = mean / torch.maximum(mean.abs(), s["a"] / (1 - 0.99**k)).clamp_min(1e-38)
        return torch.where(s["now"], held, step)


FIXED = (0.03, 0.1, 0.3, 1.0, 3.0)


def candidates() -> list[Candidate]:
    """Fresh states."""
    return [
        Candidate("AdamW", none),
        *(Candidate(f"clip {tau:g}", fixed(tau)) for tau in FIXED),
        Candidate("auto 0.9", quantile(0.9)),
        Candidate("unit", whole),
        Candidate("ZClip", zclip),
        Candidate("AutoClip", autoclip),
        Candidate("AdaGC", adagc),
        Candidate("ACClip", quantile(0.9), betas=(0.9, 0.99), form="acclip", eps=1e-5),
        Candidate("ACClip unit", whole, betas=(0.9, 0.99), form="acclip", eps=1e-12),
        Candidate("coordinates 3", coordinates(3.0)),
        Candidate("coordinates 3, coordinate", coordinates(3.0, signal=True)),
        # the second try
        Candidate("tail", tail),
        Candidate("ACClip tail", tail, betas=(0.9, 0.99), form="acclip", eps=1e-12),
        # the third try, and AdamW once more in the same call
        Candidate("AdamW again", none),
        Candidate("switch", switched()),
        Candidate("switch 3", switched(light=3.0)),
        Candidate("switch, coordinates 3", switched(cut=3.0)),
        Candidate("switch, coordinates 1", switched(cut=1.0)),
        Candidate("switch, square", switched(power=2.0)),
        Candidate("ACClip switch", switched(decay=0.99), (0.9, 0.99), "acclip", 1e-12),
        Candidate(
            "ACClip switch, square", switched(decay=0.99, power=2.0), (0.9, 0.99), "acclip", 1e-12
        ),
        # the fourth try
        Candidate("sides", sided()),
        Candidate("sides 1", sided(power=1.0)),
        Candidate("sides 1, coordinates 3", sided(power=1.0, cut=3.0)),
        Candidate("ACClip sides 1", sided(power=1.0, decay=0.99), (0.9, 0.99), "acclip", 1e-12),
        Candidate("ACClip sides 2", sided(power=2.0, decay=0.99), (0.9, 0.99), "acclip", 1e-12),
        # the fifth try
        Candidate("weighed", weighed()),
        Candidate("weighed, either", weighed(), form="either"),
        Candidate("weighed 2, either", weighed(power=2.0), form="either"),
        # the sixth try
        *(
            Candidate(f"weighed 2, growth {x:g}", weighed(power=2.0, growth=x), form="either")
            for x in (1.5, 2.0, 4.0)
        ),
        # rules whose steps follow the gradient's scale
        Candidate("SGD", none, form="sgd"),
        *(Candidate(f"SGD {q:g}", quantile(q), form="sgd") for q in (0.9, 0.5, 0.25, 0.1)),
        Candidate("SGD unit", whole, form="sgd"),
        Candidate("SGD tail", tail, form="sgd"),
    ]
