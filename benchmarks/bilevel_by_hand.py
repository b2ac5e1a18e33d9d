"""Loops written by hand, as a user in a hurry would write them for one problem: what the library is
measured against.

Each JAX loop is one jitted ``fori_loop`` over batch numbers drawn ahead, with contiguous slices and
no library around it; the eager ones use one double backward an iteration. They are kept apart from
the library on purpose: no line is shared.
"""

from __future__ import annotations

from typing import Any

STEP_X, STEP_Y, ETA, TERMS, INNER, BETA = 0.01, 0.1, 0.5, 10, 10, 0.9


def jax_loops(upper: Any, lower: Any, inner: int = INNER, terms: int = TERMS) -> dict[str, Any]:
    """Name -> (draws, carry, body): how many lower and upper batches an iteration takes, the first
    carry from (x, y), and ``body(carry, lower batches, upper batches, k, t) -> carry`` with k the
    random length where there is one."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    g_y, f_xy = jax.grad(lower, 1), jax.grad(upper, (0, 1))

    def hvp(x, y, v, b):
        return jax.jvp(lambda y: g_y(x, y, b), (y,), (v,))[1]

    def jvp(x, y, v, b):
        return jax.jvp(lambda y: jax.grad(lower, 0)(x, y, b), (y,), (v,))[1]

    def fused(x, y, z, b):
        (_, g), (j, h) = jax.jvp(lambda y: jax.grad(lower, (0, 1))(x, y, b), (y,), (z,))
        return g, h, j

    def pick(batches, i):
        return jax.tree.map(lambda a: a[i], batches)

    def descend(x, y, batches, lr, count=inner):
        return lax.fori_loop(0, count, lambda i, y: y - lr * g_y(x, y, batches(i)), y)

    def shia(x, y, v, batches):
        def body(i, c):
            r = c[0] - ETA * hvp(x, y, c[0], batches(i))
            return r, c[1] + r

        return ETA * lax.fori_loop(0, terms, body, (v, v))[1]

    def hia(x, y, v, batches, k):
        return terms * ETA * lax.fori_loop(0, k, lambda i, r: r - ETA * hvp(x, y, r, batches(i)), v)

    def soba(c, lo, up, k, t):
        x, y, z = c
        g, h, j = fused(x, y, z, lo(0))
        fx, fy = f_xy(x, y, up(0))
        rate = 1 / jnp.sqrt(t + 1.0)
        return x - STEP_X * rate * (fx - j), y - STEP_Y * rate * g, z - STEP_Y * rate * (h - fy)

    def normalised(x, y, z, m, b, u):
        g, h, j = fused(x, y, z, b)
        fx, fy = f_xy(x, y, u)
        m = BETA * m + (1 - BETA) * (fx - j)
        return x - STEP_X * m / (jnp.sqrt(m @ m) + 1e-10), g, z - STEP_Y * (h - fy), m

    def slip(c, lo, up, k, t):
        x, y, z, m = c
        g = g_y(x, y, lo(0))
        x, _, z, m = normalised(x, y, z, m, lo(1), up(0))
        return x, y - STEP_Y * g, z, m

    def slip_shared(c, lo, up, k, t):
        x, y, z, m = c
        x, g, z, m = normalised(x, y, z, m, lo(0), up(0))
        return x, y - STEP_Y * g, z, m

    def masoba(c, lo, up, k, t):
        x, y, z, m = c
        g, h, j = fused(x, y, z, lo(0))
        fx, fy = f_xy(x, y, up(0))
        return x - STEP_X * m, y - STEP_Y * g, z - STEP_Y * (h - fy), 0.9 * m + 0.1 * (fx - j)

    def borep(c, lo, up, k, t):  # two iterations at once: hold, then update (N = 3)
        x, y, z, m = c
        x, _, z, m = normalised(x, y, z, m, lo(0), up(0))
        v, total = y, jnp.zeros_like(y)
        for i in range(3):
            v = v - STEP_Y * g_y(x, v, lo(1 + i))
            total = total + v
        y = total / 3
        x, _, z, m = normalised(x, y, z, m, lo(4), up(1))
        return x, y, z, m

    def saba(c, lo, up, k, t):
        x, y, z, tables, means = c
        new = [*fused(x, y, z, lo(0)), *f_xy(x, y, up(0))]
        i = [lo.id(0)] * 3 + [up.id(0)] * 2
        w = [1 / lo.count] * 3 + [1 / up.count] * 2
        change = [n - m[j] for n, m, j in zip(new, tables, i)]
        d = [a + b for a, b in zip(change, means)]
        tables = [m.at[j].set(n) for m, j, n in zip(tables, i, new)]
        means = [b + v * a for a, b, v in zip(change, means, w)]
        return (
            x - STEP_X * (d[3] - d[2]),
            y - STEP_Y * d[0],
            z - STEP_Y * (d[1] - d[4]),
            tables,
            means,
        )

    def amigo(c, lo, up, k, t):
        x, y, z = c
        y = descend(x, y, lo, STEP_Y)
        fx, fy = f_xy(x, y, up(0))
        z = lax.fori_loop(0, inner, lambda i, z: z - STEP_Y * (hvp(x, y, z, lo(inner + i)) - fy), z)
        return x - STEP_X * (fx - jvp(x, y, z, lo(2 * inner))), y, z

    def stocbio(c, lo, up, k, t):
        x, y = c
        y = descend(x, y, lo, STEP_Y)
        fx, fy = f_xy(x, y, up(0))
        v = shia(x, y, fy, lambda i: lo(inner + i))
        return x - STEP_X * (fx - jvp(x, y, v, lo(inner + terms))), y

    def bsa(c, lo, up, k, t):
        x, y = c
        rate = 1 / jnp.sqrt(t + 1.0)
        y = descend(x, y, lo, STEP_Y * rate)
        fx, fy = f_xy(x, y, up(0))
        v = hia(x, y, fy, lambda i: lo(inner + i), k)
        return x - STEP_X * rate * (fx - jvp(x, y, v, lo(inner + terms - 1))), y

    def ttsa(c, lo, up, k, t):
        x, y = c
        y = y - STEP_Y / (t + 1.0) ** 0.4 * g_y(x, y, lo(0))
        fx, fy = f_xy(x, y, up(0))
        v = hia(x, y, fy, lambda i: lo(1 + i), k)
        return x - STEP_X / (t + 1.0) ** 0.6 * (fx - jvp(x, y, v, lo(terms))), y

    def storm(inverse, last):
        def body(c, lo, up, k, t):
            x, y, x_, y_, u, v = c

            def both(x, y):
                fx, fy = f_xy(x, y, up(0))
                return g_y(x, y, lo(0)), fx - jvp(x, y, inverse(x, y, fy, lo, k), lo(last))

            rate = (t + 1.0) ** (-1 / 3)
            a = 1 - jnp.minimum(1.0, 0.5 * (t + 0.0) ** (-2 / 3))
            (g, d), (g_, d_) = both(x, y), both(x_, y_)
            u, v = g + a * (u - g_), d + a * (v - d_)
            return x - STEP_X * rate * v, y - STEP_Y * rate * u, x, y, u, v

        return body

    def vrbo(period):
        def body(c, lo, up, k, t):  # q iterations at once: one refresh
            x, y, *_ = c

            def both(x, y, b, u, hs):
                fx, fy = f_xy(x, y, u)
                return g_y(x, y, b[0]), fx - jvp(x, y, shia(x, y, fy, hs), b[1])

            u, v = both(x, y, (lo.all, lo.all), up.all, lambda i: lo.all)

            def outer(q, c):
                x, y, xo, yo, u, v = c
                x = x - STEP_X * v

                def inner_step(i, c):
                    y, xo, yo, u, v = c
                    base = (q * inner + i) * (2 + terms)
                    args = ((lo(base), lo(base + 1)), up(q * inner + i), lambda j: lo(base + 2 + j))
                    (g, d), (g_, d_) = both(x, y, *args), both(xo, yo, *args)
                    u, v = u + g - g_, v + d - d_
                    return y - STEP_Y * u, x, y, u, v

                y, xo, yo, u, v = lax.fori_loop(0, inner, inner_step, (y, xo, yo, u, v))
                return x, y, xo, yo, u, v

            return lax.fori_loop(0, period, outer, (x, y, x, y, u, v))

        return body

    def srba(period):
        def body(c, lo, up, k, t):  # q iterations at once: one refresh
            x, y, z, *_ = c

            def three(x, y, z, b, u):
                g, h, j = fused(x, y, z, b)
                fx, fy = f_xy(x, y, u)
                return g, h - fy, fx - j

            d = three(x, y, z, lo.all, up.all)
            before = (x, y, z)
            x, y, z = x - STEP_X * d[2], y - STEP_Y * d[0], z - STEP_Y * d[1]

            def move(i, c):
                x, y, z, (x0, y0, z0), d = c
                new, was = three(x, y, z, lo(i), up(i)), three(x0, y0, z0, lo(i), up(i))
                d = tuple(e + (a - b) for e, a, b in zip(d, new, was))
                return x - STEP_X * d[2], y - STEP_Y * d[0], z - STEP_Y * d[1], (x, y, z), d

            return lax.fori_loop(0, period - 1, move, (x, y, z, before, d))

        return body

    def f2sa(steps):
        def body(c, lo, up, k, t):
            x, y, w, lam = c
            gamma = STEP_Y / (t + 1.0) ** (4 / 7)
            a = gamma / (2 * lam)

            def inner_step(i, c):
                y, w = c
                w = w - gamma * g_y(x, w, lo(i))
                return y - a * (f_xy(x, y, up(i))[1] + lam * g_y(x, y, lo(steps + i))), w

            y, w = (
                inner_step(0, (y, w)) if steps == 1 else lax.fori_loop(0, steps, inner_step, (y, w))
            )
            g_x = jax.grad(lower, 0)
            d = f_xy(x, y, up(steps))[0] + lam * (
                g_x(x, y, lo(2 * steps)) - g_x(x, w, lo(2 * steps + 1))
            )
            return x - STEP_X * a * d, y, w, lam + 0.1 / (t + 1.0) ** (6 / 7)

        return body

    mrbo = storm(lambda x, y, v, lo, k: shia(x, y, v, lambda i: lo(1 + i)), 1 + terms)
    sustain = storm(lambda x, y, v, lo, k: hia(x, y, v, lambda i: lo(1 + i), k), terms)
    point = lambda x, y: (x, y)  # noqa: E731
    linear = lambda x, y: (x, y, jnp.zeros_like(y))  # noqa: E731
    mean = lambda x, y: (x, y, jnp.zeros_like(y), jnp.zeros_like(x))  # noqa: E731
    pair = lambda x, y: (x, y, x, y, jnp.zeros_like(y), jnp.zeros_like(x))  # noqa: E731

    def triple(x, y):
        return (
            *linear(x, y),
            linear(x, y),
            (jnp.zeros_like(y), jnp.zeros_like(y), jnp.zeros_like(x)),
        )

    def tables(x, y, rows):
        vectors = [(rows[0], y), (rows[0], y), (rows[0], x), (rows[1], x), (rows[1], y)]
        return (
            *linear(x, y),
            [jnp.zeros((n, len(v)), v.dtype) for n, v in vectors],
            [jnp.zeros_like(v) for _, v in vectors],
        )

    # name: (lower batches, upper batches an iteration of the loop, first carry, body, method
    # iterations in one round)
    return {
        "soba": (1, 1, linear, soba, 1),
        "slip-shared": (1, 1, mean, slip_shared, 1),
        "slip": (2, 1, mean, slip, 1),
        "masoba": (1, 1, mean, masoba, 1),
        "borep": (5, 2, mean, borep, 2),
        "saba": (1, 1, tables, saba, 1),
        "srba": (None, None, triple, srba, None),
        "amigo": (2 * inner + 1, 1, linear, amigo, 1),
        "stocbio": (inner + terms + 1, 1, point, stocbio, 1),
        "bsa": (inner + terms, 1, point, bsa, 1),
        "ttsa": (terms + 1, 1, point, ttsa, 1),
        "mrbo": (terms + 2, 1, pair, mrbo, 1),
        "sustain": (terms + 1, 1, pair, sustain, 1),
        "vrbo": (None, None, pair, vrbo, None),
        "f2sa": (4, 2, lambda x, y: (x, y, y, jnp.asarray(10.0, y.dtype)), f2sa(1), 1),
        "f2sa-10": (22, 11, lambda x, y: (x, y, y, jnp.asarray(10.0, y.dtype)), f2sa(10), 1),
    }
