"""AdamW(clip="noise") on lists of Python's numbers, as "Fifth try" and "Sixth try" in
docs/appendix/clipping-tables.md have it.
"""

import math


def length(values):
    return math.sqrt(math.fsum(v * v for v in values))


class NoiseAdamW:
    """x is a list of tensors, each a list of numbers; ``step`` takes gradients of the same form,
    with None for a tensor that has none.
    """

    def __init__(self, x, lr, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0):
        self.x = [list(t) for t in x]
        self.lr, self.beta1, self.beta2, self.eps, self.decay = lr, beta1, beta2, eps, decay
        zeros = [[0.0] * len(t) for t in x]
        self.m, self.v, self.a = ([list(t) for t in zeros] for _ in range(3))
        self.counts = [0] * len(x)
        self.norms, self.squares, self.steps = [], 0.0, 0
        self.memory = [0.0] * len(self.entries([None] * len(x)))
        self.evidence, self.since, self.clarity, self.judged = 2.0, math.inf, 0.0, 0
        self.on, self.factor, self.ratio = False, 1.0, 2.0

    def entries(self, gradients):
        """At most 64 evenly spaced entries per tensor."""
        found = []
        for t, g in zip(self.x, gradients):
            spacing = max(1, math.ceil(len(t) / 64))
            found += [0.0 if g is None else g[i] for i in range(0, len(t), spacing)]
        return found

    def judge(self, gradients):
        """The factor on the gradients; sets ``on``."""
        norm = length([v for g in gradients if g is not None for v in g])
        before = sorted(self.norms[-128:])
        median = before[(len(before) - 1) // 2] if before else math.inf
        self.since += 1
        large, unknown = norm > 4 * median and len(before) >= 10, False
        if large:
            side = self.entries(gradients)
            size = length(side)
            side = [v / size if size else 0.0 for v in side]
            known = length(self.memory)
            r = math.fsum(a * b for a, b in zip(side, self.memory)) / known if known else 0.0
            unknown = r == 0
            self.memory = [0.97 * b + a for a, b in zip(side, self.memory)]
            if not unknown:
                self.judged, self.since = self.judged + 1, 0
                self.clarity = 0.97 * self.clarity + 0.03 * abs(r)
                weight = min(abs(r) / (self.clarity / (1 - 0.97**self.judged)), 3.0)
                self.evidence += weight * math.log((0.95 if r > 0 else 0.05) / 0.5)
                self.evidence = min(max(self.evidence, -3.0), 6.0)
        self.on = self.since <= 256 and self.evidence <= 2.5
        handed_on, self.factor = norm, 1.0
        if self.on:
            handed_on = math.sqrt(self.squares / (1 - self.beta2**self.steps))
            place = 0.25 * (len(before) - 1)
            low, high = before[math.floor(place)], before[math.ceil(place)]
            quantile = low + (place - math.floor(place)) * (high - low)
            self.factor = handed_on * min(1.0, quantile / norm) ** 2 / norm
        elif large:
            most = 4 * median if unknown else 2 * self.ratio * median
            handed_on = min(norm, most)
            self.factor = handed_on / norm
            self.ratio = max(0.97 * self.ratio, handed_on / median, 2.0)
        self.squares = self.beta2 * self.squares + (1 - self.beta2) * handed_on**2
        self.steps += 1
        self.norms.append(norm)
        return self.factor

    def step(self, gradients):
        factor = self.judge(gradients)
        for t, g in enumerate(gradients):
            if g is None:
                continue
            self.counts[t] += 1
            k = self.counts[t]
            for i, entry in enumerate(g):
                h = factor * entry
                m = self.m[t][i] = self.beta1 * self.m[t][i] + (1 - self.beta1) * h
                v = self.v[t][i] = self.beta2 * self.v[t][i] + (1 - self.beta2) * h * h
                a = self.a[t][i] = 0.99 * self.a[t][i] + 0.01 * abs(h)
                mean, bound = m / (1 - self.beta1**k), a / (1 - 0.99**k)
                if self.on:
                    update = mean / max(abs(mean), bound) if mean else 0.0
                else:
                    update = mean / (math.sqrt(v / (1 - self.beta2**k)) + self.eps)
                self.x[t][i] -= self.lr * self.decay * self.x[t][i] + self.lr * update
