"""Literal transcriptions, part 1: the methods that carry z for the linear system H z = f_y.

SLIP, BO-REP, SOBA, SABA, MA-SOBA, SRBA, AmIGO. A state is a dict of numpy vectors; a step takes the
oracles ``o``, the state ``s``, the samples ``S`` (a dict of index arrays, named as in the text) and
the method's letters, and returns a new state.
"""

from __future__ import annotations

import numpy as np
from references.bilevel_oracles import ALL, into_ball


# --------------------------------------------------------------------------------------------------
# SLIP
def slip_init(o, x0, y_init, S_warm, *, alpha_init):
    y = y_init.copy()
    for S in S_warm:  # T0 = len(S_warm) steps at the fixed x0
        y = y - alpha_init * o.g_y(x0, y, S)
    return {"x": x0.copy(), "y": y, "z": np.zeros_like(y), "m": np.zeros_like(x0), "k": 0}


def slip(o, s, S, *, alpha, gamma, beta, eta, eps=0.0, normalise=True, released=False):
    x, y, z, m = s["x"], s["y"], s["z"], s["m"]
    if released:  # the loop of the authors' hyper-cleaning code with gradients zeroed
        y_new = y - alpha * o.g_y(x, y, S["g"])
        z_new = z - gamma * (o.H(x, y, S["g"]) @ z - o.f_y(x, y_new, S["f"]))
        m_new = beta * m + (1 - beta) * (o.f_x(x, y_new, S["f"]) - o.J(x, y_new, S["J"]) @ z_new)
        x_new = x - eta * m_new / (np.linalg.norm(m_new) + eps)
        return {"x": x_new, "y": y_new, "z": z_new, "m": m_new, "k": s["k"] + 1}
    y_new = y - alpha * o.g_y(x, y, S["g"])
    z_new = z - gamma * (o.H(x, y, S["g'"]) @ z - o.f_y(x, y, S["f"]))
    m_new = beta * m + (1 - beta) * (o.f_x(x, y, S["f"]) - o.J(x, y, S["g'"]) @ z)
    x_new = x - eta * m_new / (np.linalg.norm(m_new) + eps) if normalise else x - eta * m_new
    return {"x": x_new, "y": y_new, "z": z_new, "m": m_new, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# BO-REP
def epoch_sgd(o, x0, y, S_epochs, *, alpha_0, D_0):
    """Projected SGD in epochs; T_s = len(S_epochs[s]) (the paper doubles it), step halved,
    radius by sqrt 2.
    """
    alpha_s, D_s = alpha_0, D_0
    for S_epoch in S_epochs:
        centre, iterates = y, []
        for S in S_epoch:
            y = into_ball(y - alpha_s * o.g_y(x0, y, S), centre, D_s)
            iterates.append(y)
        y = np.mean(iterates, axis=0)
        alpha_s, D_s = alpha_s / 2, D_s / np.sqrt(2)
    return y


def borep_init(o, x0, y_init, S_epochs, *, alpha_0, D_0=np.inf):
    y = epoch_sgd(o, x0, y_init.copy(), S_epochs, alpha_0=alpha_0, D_0=D_0)
    return {"x": x0.copy(), "y": y, "z": np.zeros_like(y), "m": np.zeros_like(x0), "k": 0}


def borep(o, s, S, *, alpha, nu, beta, eta, period_I, R=np.inf, eps=0.0):
    x, y, z, m, k = s["x"], s["y"], s["z"], s["m"], s["k"]
    if (
        k > 0 and k % period_I == 0
    ):  # UpdateLower: N = len(S["g"]) projected steps at the fixed x_k, averaged
        y_, iterates = y, []
        for S_i in S["g"]:
            y_ = into_ball(y_ - alpha * o.g_y(x, y_, S_i), y, R)
            iterates.append(y_)
        y = np.mean(iterates, axis=0)
    z_new = z - nu * (o.H(x, y, S["g'"]) @ z - o.f_y(x, y, S["f"]))
    m_new = beta * m + (1 - beta) * (o.f_x(x, y, S["f"]) - o.J(x, y, S["g'"]) @ z)
    x_new = x - eta * m_new / (np.linalg.norm(m_new) + eps)
    return {"x": x_new, "y": y, "z": z_new, "m": m_new, "k": k + 1}


# --------------------------------------------------------------------------------------------------
# SOBA
def soba_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros_like(y0), "k": 0}


def soba(o, s, S, *, c, c_x, exponent=0.5):
    x, y, z, k = s["x"], s["y"], s["z"], s["k"]
    rho, gamma = c / (k + 1) ** exponent, c_x / (k + 1) ** exponent
    D_y = o.g_y(x, y, S["g"])
    D_z = o.H(x, y, S["g"]) @ z - o.f_y(x, y, S["f"])
    D_x = o.f_x(x, y, S["f"]) - o.J(x, y, S["g"]) @ z
    return {"x": x - gamma * D_x, "y": y - rho * D_y, "z": z - rho * D_z, "k": k + 1}


# --------------------------------------------------------------------------------------------------
# SABA
def saba_init(o, x0, y0, n_lower, n_upper):
    """Tables of zeros: one row a fixed batch; M[q] has n_lower or n_upper rows."""
    p, d = len(x0), len(y0)
    M = {
        "g_y": np.zeros((n_lower, d)),
        "Hz": np.zeros((n_lower, d)),
        "Jz": np.zeros((n_lower, p)),
        "f_y": np.zeros((n_upper, d)),
        "f_x": np.zeros((n_upper, p)),
    }
    avg = {q: np.zeros(t.shape[1]) for q, t in M.items()}
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros(d), "M": M, "avg": avg, "k": 0}


def saba(o, s, S, *, rho, gamma, rho_z=None):
    """S: "g" and "f" index arrays, "i" and "j" their batch numbers, "w_i" and "w_j" the
    batches' shares of the data.
    """
    x, y, z = s["x"], s["y"], s["z"]
    M, avg = {q: t.copy() for q, t in s["M"].items()}, dict(s["avg"])

    def saga(q, new, i, w):
        d = new - M[q][i] + avg[q]
        avg[q] = avg[q] + w * (new - M[q][i])
        M[q][i] = new
        return d

    i, j, w_i, w_j = S["i"], S["j"], S["w_i"], S["w_j"]
    g_y = saga("g_y", o.g_y(x, y, S["g"]), i, w_i)
    Hz = saga("Hz", o.H(x, y, S["g"]) @ z, i, w_i)
    Jz = saga("Jz", o.J(x, y, S["g"]) @ z, i, w_i)
    f_y = saga("f_y", o.f_y(x, y, S["f"]), j, w_j)
    f_x = saga("f_x", o.f_x(x, y, S["f"]), j, w_j)
    rho_z = rho if rho_z is None else rho_z  # one step for y and z, as the authors ask
    return {
        "x": x - gamma * (f_x - Jz),
        "y": y - rho * g_y,
        "z": z - rho_z * (Hz - f_y),
        "M": M,
        "avg": avg,
        "k": s["k"] + 1,
    }


# --------------------------------------------------------------------------------------------------
# MA-SOBA
def masoba_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros_like(y0), "h": np.zeros_like(x0), "k": 0}


def masoba(o, s, S, *, alpha, beta, gamma, theta):
    x, y, z, h = s["x"], s["y"], s["z"], s["h"]
    return {
        "x": x - alpha * h,  # the previous average: one step of delay
        "y": y - beta * o.g_y(x, y, S["g"]),
        "z": z - gamma * (o.H(x, y, S["g"]) @ z - o.f_y(x, y, S["f"])),
        "h": (1 - theta) * h + theta * (o.f_x(x, y, S["f"]) - o.J(x, y, S["g"]) @ z),
        "k": s["k"] + 1,
    }


# --------------------------------------------------------------------------------------------------
# SRBA
def srba_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros_like(y0), "D": None, "old": None, "k": 0}


def srba(o, s, S, *, rho, gamma, q, R=np.inf):
    x, y, z, k = s["x"], s["y"], s["z"], s["k"]

    def directions(x, y, z, S_g, S_f):
        return (
            o.g_y(x, y, S_g),
            o.H(x, y, S_g) @ z - o.f_y(x, y, S_f),
            o.f_x(x, y, S_f) - o.J(x, y, S_g) @ z,
        )

    if k % q == 0:
        D = directions(x, y, z, ALL, ALL)
    else:
        new, old = directions(x, y, z, S["g"], S["f"]), directions(*s["old"], S["g"], S["f"])
        D = tuple(d + n - e for d, n, e in zip(s["D"], new, old))
    D_y, D_z, D_x = D
    return {
        "x": x - gamma * D_x,
        "y": y - rho * D_y,
        "z": into_ball(z - rho * D_z, np.zeros_like(z), R),
        "D": D,
        "old": (x, y, z),
        "k": k + 1,
    }


# --------------------------------------------------------------------------------------------------
# AmIGO
def amigo_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "z": np.zeros_like(y0), "k": 0}


def amigo(o, s, S, *, alpha, beta, gamma):
    """S: "g" = T batches for y, "H" = N batches for z, "f" one upper batch, "J" one lower batch."""
    x, y, z = s["x"], s["y"], s["z"]
    for S_t in S["g"]:
        y = y - alpha * o.g_y(x, y, S_t)
    u, v = o.f_x(x, y, S["f"]), o.f_y(x, y, S["f"])
    for S_n in S["H"]:
        z = z - beta * (o.H(x, y, S_n) @ z - v)  # v stays the same over the N steps
    return {"x": x - gamma * (u - o.J(x, y, S["J"]) @ z), "y": y, "z": z, "k": s["k"] + 1}
