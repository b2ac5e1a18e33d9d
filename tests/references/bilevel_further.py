"""Literal transcriptions, part 4: methods beyond the sixteen."""

from __future__ import annotations

import numpy as np
from references.bilevel_oracles import ALL, into_ball, neumann_random, neumann_sum


def hypergradient(o, x, y, z, S_f, S_j):
    return o.f_x(x, y, S_f) - o.J(x, y, S_j) @ z


# --------------------------------------------------------------------------------------------------
# FSLA
def fsla_init(o, x0, y0):
    return {
        "x": x0.copy(),
        "y": y0.copy(),
        "z": np.zeros_like(y0),
        "d": None,
        "x_old": None,
        "k": 0,
    }


def fsla(o, s, S, *, rho, gamma, a_k):
    x, y, z = s["x"], s["y"], s["z"]
    y_new = y - rho * o.g_y(x, y, S["y"])
    z_new = z - rho * (o.H(x, y_new, S["z"]) @ z - o.f_y(x, y_new, S["f"]))
    d = hypergradient(o, x, y_new, z_new, S["fx"], S["J"])
    if s["k"]:
        d = d + (1 - a_k) * (s["d"] - hypergradient(o, s["x_old"], y, z, S["fx"], S["J"]))
    return {"x": x - gamma * d, "y": y_new, "z": z_new, "d": d, "x_old": x, "k": s["k"] + 1}


# -------------------------------------------------------------------------------------------------
# PBGD, BOME
def w_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "w": y0.copy(), "k": 0}


def pbgd(o, s, S, *, alpha, beta, gamma):
    x, y, w = s["x"], s["y"], s["w"]
    for S_t in S["w"]:
        w = w - beta * o.g_y(x, w, S_t)
    x_new = x - alpha * (o.f_x(x, y, S["f"]) + gamma * (o.g_x(x, y, S["g"]) - o.g_x(x, w, S["g"])))
    y_new = y - alpha * (o.f_y(x, y, S["f"]) + gamma * o.g_y(x, y, S["g"]))
    return {"x": x_new, "y": y_new, "w": w, "k": s["k"] + 1}


def bome(o, s, S, *, lr_x, lr_y, eta):
    x, y = s["x"], s["y"]
    w = y
    for S_t in S["w"]:
        w = w - lr_y * o.g_y(x, w, S_t)
    q = np.concatenate([o.g_x(x, y, S["g"]) - o.g_x(x, w, S["g"]), o.g_y(x, y, S["g"])])
    f = np.concatenate([o.f_x(x, y, S["f"]), o.f_y(x, y, S["f"])])
    lam = max(eta * (q @ q) - f @ q, 0.0) / (q @ q)
    d = f + lam * q
    return {"x": x - lr_x * d[: len(x)], "y": y - lr_y * d[len(x) :], "w": w, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# PZOBO
def murmur(h):
    h ^= h >> 16
    h = h * 0x85EBCA6B % 2**32
    h ^= h >> 13
    h = h * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def normals(seed, count):
    """Box-Muller on hashed places, one number after another."""
    unit = [(murmur(murmur(seed) + i) + 0.5) / 2**32 for i in range(2 * count)]
    return np.array(
        [np.sqrt(-2 * np.log(unit[i])) * np.cos(2 * np.pi * unit[count + i]) for i in range(count)]
    )


def pzobo(o, s, S, *, lr_x, lr_y, mu):
    def descend(x):
        y = s["y"]
        for S_t in S["y"]:
            y = y - lr_y * o.g_y(x, y, S_t)
        return y

    x, y = s["x"], descend(s["x"])
    deltas = np.array([(descend(x + mu * u) - y) / mu for u in S["u"]])
    d = o.f_x(x, y, S["f"]) + S["u"].T @ (deltas @ o.f_y(x, y, S["f"])) / len(S["u"])
    return {"x": x - lr_x * d, "y": y, "w": s["w"], "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# MEHA
def meha(o, s, S, *, alpha, beta, eta, gamma, c, p):
    x, y, w, k = s["x"], s["y"], s["w"], s["k"]
    c_k = c * (k + 1) ** p
    w = w - eta * (o.g_y(x, w, S["w"]) + (w - y) / gamma)
    x_new = x - alpha * (o.f_x(x, y, S["f"]) / c_k + o.g_x(x, y, S["g"]) - o.g_x(x, w, S["g"]))
    y_new = y - beta * (o.f_y(x_new, y, S["f"]) / c_k + o.g_y(x_new, y, S["g"]) - (y - w) / gamma)
    return {"x": x_new, "y": y_new, "w": w, "k": k + 1}


# --------------------------------------------------------------------------------------------------
# SAMA
def point_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "k": 0}


def sama(o, s, S, *, lr_x, lr_y, alpha, epsilon):
    x, y = s["x"], s["y"]
    for S_t in S["y"]:
        y = y - lr_y * o.g_y(x, y, S_t)
    v = alpha * o.f_y(x, y, S["f"])
    e = epsilon / np.linalg.norm(v)
    Jv = (o.g_x(x, y + e * v, S["J"]) - o.g_x(x, y - e * v, S["J"])) / (2 * e)
    return {"x": x - lr_x * (o.f_x(x, y, S["f"]) - Jv), "y": y, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# F2SA-p
def f2sap_init(o, x0, y0, p):
    return {
        "x": x0.copy(),
        "y": y0.copy(),
        "nodes": {j: y0.copy() for j in range(-p // 2, p // 2 + 1) if j},
        "k": 0,
    }


def f2sap(o, s, S, *, lr_x, lr_y, nu, weights):
    x, nodes = s["x"], dict(s["nodes"])
    for S_g, S_f in zip(S["y"], S["f"]):
        nodes = {
            j: y - lr_y * (o.g_y(x, y, S_g) + j * nu * o.f_y(x, y, S_f)) for j, y in nodes.items()
        }
    d = (
        sum(
            a * (j * nu * o.f_x(x, nodes[j], S["fx"]) + o.g_x(x, nodes[j], S["g"]))
            for j, a in weights.items()
        )
        / nu
    )
    return {"x": x - lr_x * d, "y": (nodes[1] + nodes[-1]) / 2, "nodes": nodes, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# N2SBA
def n2sba(o, s, S, *, eta_x, lr_y, lam, tau, eps):
    x, y, w = s["x"], s["y"], s["w"]

    def c(d):
        return min(1.0, tau / np.linalg.norm(d)) * d

    for S_g, S_f in zip(S["y"], S["f"]):
        w, y = (
            w - lr_y * c(o.g_y(x, w, S_g)),
            y - lr_y * c(o.f_y(x, y, S_f) / lam + o.g_y(x, y, S_g)),
        )
    each = [
        o.f_x(x, y, S_f) + lam * (o.g_x(x, y, S_g) - o.g_x(x, w, S_g))
        for S_g, S_f in zip(S["g"], S["fx"])
    ]
    D = np.mean(each, axis=0)
    return {"x": x - eta_x * D / (np.linalg.norm(D) + eps), "y": y, "w": w, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# SPABA
def spaba_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros_like(y0), "D": None, "old": None, "k": 0}


def spaba(o, s, S, *, rho, gamma, R):
    x, y, z, k = s["x"], s["y"], s["z"], s["k"]

    def directions(x, y, z, S_g, S_f):
        return (
            o.g_y(x, y, S_g),
            o.H(x, y, S_g) @ z - o.f_y(x, y, S_f),
            o.f_x(x, y, S_f) - o.J(x, y, S_g) @ z,
        )

    if k == 0 or S["coin"]:
        D = directions(x, y, z, ALL, ALL)
    else:
        new, old = directions(x, y, z, S["g"], S["f"]), directions(*s["old"], S["g"], S["f"])
        D = tuple(d + n - e for d, n, e in zip(s["D"], new, old))
    z_new = into_ball(z - rho * D[1], np.zeros_like(z), R)
    return {
        "x": x - gamma * D[2],
        "y": y - rho * D[0],
        "z": z_new,
        "D": D,
        "old": (x, y, z),
        "k": k + 1,
    }


# ---------------------------------------------------------------------------------------------
# AdamBO, AccBO
def adambo_init(o, x0, y0, S_warm, *, alpha):
    y = y0.copy()
    for S in S_warm:
        y = y - alpha * o.g_y(x0, y, S)
    zero = np.zeros_like(x0)
    return {"x": x0.copy(), "y": y, "first": zero, "second": zero, "k": 0}


def adambo(o, s, S, *, lr_x, alpha, eta, beta1=0.9, beta2=0.999, eps=1e-8):
    x, y, k = s["x"], s["y"], s["k"] + 1
    for S_t in S["g"]:
        y = y - alpha * o.g_y(x, y, S_t)
    d = hypergradient(
        o, x, y, neumann_sum(o, x, y, o.f_y(x, y, S["f"]), eta, S["H"]), S["f"], S["J"]
    )
    first, second = beta1 * s["first"] + (1 - beta1) * d, beta2 * s["second"] + (1 - beta2) * d**2
    step = (first / (1 - beta1**k)) / (np.sqrt(second / (1 - beta2**k)) + eps)
    return {"x": x - lr_x * step, "y": y, "first": first, "second": second, "k": k}


def accbo_init(o, x0, y0, S_warm, *, alpha):
    y = adambo_init(o, x0, y0, S_warm, alpha=alpha)["y"]
    return {"x": x0.copy(), "y": y, "y_before": y, "a": y, "m": None, "old": None, "k": 0}


def accbo(o, s, S, *, lr_x, alpha, gamma, tau, beta, eta, N, eps):
    x, y, k = s["x"], s["y"], s["k"]
    u = y + gamma * (y - s["y_before"])
    y_new = u - alpha * o.g_y(x, u, S["g"])
    a = (1 - tau) * s["a"] + tau * y_new

    def G(x, y):
        return hypergradient(
            o, x, y, neumann_random(o, x, y, o.f_y(x, y, S["f"]), eta, N, S["H"]), S["f"], S["J"]
        )

    m = G(x, a) if k == 0 else G(x, a) + beta * (s["m"] - G(*s["old"]))
    x_new = x - lr_x * m / (np.linalg.norm(m) + eps)
    return {"x": x_new, "y": y_new, "y_before": y, "a": a, "m": m, "old": (x, a), "k": k + 1}
