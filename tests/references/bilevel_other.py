"""Literal transcriptions, part 3: SVRB (dense matrices) and F2SA (penalty, first order only)."""

from __future__ import annotations

import numpy as np


# --------------------------------------------------------------------------------------------------
# SVRB
def svrb_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "E": None, "old": None, "k": 0}


def lift(H, mu):
    """The symmetric matrix with the eigenvalues of H raised to at least mu."""
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return (vectors * np.maximum(values, mu)) @ vectors.T


def svrb(o, s, S, *, tau, eta_k, a_k, mu, project=None):
    """w ~ g_y, s ~ f_x, v ~ f_y, V ~ J, H ~ g_yy by STORM with weight a_k; y -= tau eta w, x -= eta
    (s - V H^-1 v).

    S: "g" lower and "f" upper samples. ``project(name, value)``: the projections of s, v, V onto
    their balls, where wanted. The eigenvalues of the estimate of H are raised to mu where it is
    used.
    """
    x, y, k = s["x"], s["y"], s["k"]

    def sampled(x, y):
        return {
            "w": o.g_y(x, y, S["g"]),
            "s": o.f_x(x, y, S["f"]),
            "v": o.f_y(x, y, S["f"]),
            "V": o.J(x, y, S["g"]),
            "H": o.H(x, y, S["g"]),
        }

    new = sampled(x, y)
    if k == 0:
        E = new
    else:
        old = sampled(*s["old"])
        E = {q: new[q] + (1 - a_k) * (s["E"][q] - old[q]) for q in new}
    if project is not None:
        E = {q: project(q, e) for q, e in E.items()}
    x_new = x - eta_k * (E["s"] - E["V"] @ np.linalg.solve(lift(E["H"], mu), E["v"]))
    return {"x": x_new, "y": y - tau * eta_k * E["w"], "E": E, "old": (x, y), "k": k + 1}


# --------------------------------------------------------------------------------------------------
# F2SA
def f2sa_init(o, x0, y0, lam_0):
    return {"x": x0.copy(), "y": y0.copy(), "w": y0.copy(), "lam": lam_0, "k": 0}


def f2sa(o, s, S, *, gamma_k, alpha_k, xi, delta_k):
    """S: "w" = T lower batches (phi_w), "y" = T lower batches (phi_y), "zeta" = T upper batches,
    and for the x step "f" (upper), "1" and "2" (lower)."""
    x, y, w, lam = s["x"], s["y"], s["w"], s["lam"]
    for phi_w, phi_y, zeta in zip(S["w"], S["y"], S["zeta"], strict=True):
        w = w - gamma_k * o.g_y(x, w, phi_w)
        y = y - alpha_k * (o.f_y(x, y, zeta) + lam * o.g_y(x, y, phi_y))
    x_new = x - xi * alpha_k * (
        o.f_x(x, y, S["f"]) + lam * (o.g_x(x, y, S["1"]) - o.g_x(x, w, S["2"]))
    )
    return {"x": x_new, "y": y, "w": w, "lam": lam + delta_k, "k": s["k"] + 1}
