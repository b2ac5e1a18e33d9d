"""Plain numpy oracles of the bilevel quadratic and the two Neumann series, written out sample by
sample.

``S`` is always an array of sample numbers, or ``ALL`` for the whole data set. H and J are dense
matrices here, so that a method reads as in its paper: ``H(S) @ z``. J maps y-space to x-space; z* =
+H^-1 f_y throughout.
"""

from __future__ import annotations

import numpy as np

ALL = None


class Level:
    """One level, g_i = 1/2 y'A_i y + 1/2 x'B_i x + x'C_i y + a_i'y + b_i'x, from its dense
    matrices.

    ``rows``, ``outer_rows``: A_i = rows_i rows_i', B_i = outer_rows_i outer_rows_i'; ``left``,
    ``right``: C_i = left_i right_i'; ``a``, ``b``: the linear terms.
    """

    def __init__(self, rows, outer_rows, left, right, a, b):
        self.n = len(rows)
        self.A = np.stack([np.outer(r, r) for r in np.asarray(rows, float)])
        self.B = np.stack([np.outer(r, r) for r in np.asarray(outer_rows, float)])
        self.C = np.stack(
            [np.outer(p, q) for p, q in zip(np.asarray(left, float), np.asarray(right, float))]
        )
        self.a, self.b = np.asarray(a, float), np.asarray(b, float)

    def _mean(self, stack, S):
        return stack.mean(0) if S is ALL else stack[np.asarray(S)].mean(0)

    def d_y(self, x, y, S):
        return self._mean(self.A, S) @ y + self._mean(self.C, S).T @ x + self._mean(self.a, S)

    def d_x(self, x, y, S):
        return self._mean(self.B, S) @ x + self._mean(self.C, S) @ y + self._mean(self.b, S)

    def d_yy(self, S):
        return self._mean(self.A, S)

    def d_xy(self, S):
        return self._mean(self.C, S)


class Oracles:
    """g_y, g_x, H, J of the lower level and f_y, f_x of the upper one."""

    def __init__(self, lower: Level, upper: Level):
        self.lower, self.upper = lower, upper

    def g_y(self, x, y, S):
        return self.lower.d_y(x, y, S)

    def g_x(self, x, y, S):
        return self.lower.d_x(x, y, S)

    def H(self, x, y, S):
        return self.lower.d_yy(S)

    def J(self, x, y, S):
        return self.lower.d_xy(S)

    def f_x(self, x, y, S):
        return self.upper.d_x(x, y, S)

    def f_y(self, x, y, S):
        return self.upper.d_y(x, y, S)

    def y_star(self, x):
        return -np.linalg.solve(
            self.lower.d_yy(ALL), self.lower._mean(self.lower.a, ALL) + self.lower.d_xy(ALL).T @ x
        )

    def hypergradient(self, x):
        y = self.y_star(x)
        return self.f_x(x, y, ALL) - self.J(x, y, ALL) @ np.linalg.solve(
            self.H(x, y, ALL), self.f_y(x, y, ALL)
        )


def neumann_sum(o, x, y, v, eta, S_H):
    """eta * sum_{q=0..Q} r_q with r_0 = v, r_q = (I - eta H(S_q)) r_{q-1}; Q = len(S_H)."""
    r = v.copy()
    total = r.copy()
    for S in S_H:
        r = r - eta * o.H(x, y, S) @ r
        total = total + r
    return eta * total


def neumann_random(o, x, y, v, eta, N, S_H):
    """N * eta * prod_{q=1..k} (I - eta H(S_q)) v with the drawn k = len(S_H), 0 <= k <= N-1."""
    assert 0 <= len(S_H) <= N - 1
    r = v.copy()
    for S in S_H:
        r = r - eta * o.H(x, y, S) @ r
    return N * eta * r


def into_ball(v, centre, R):
    """The point of the ball of radius R about ``centre`` nearest to v."""
    away = v - centre
    length = np.linalg.norm(away)
    return v if length <= R else centre + R * away / length
