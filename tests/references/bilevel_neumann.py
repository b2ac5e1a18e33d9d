"""Literal transcriptions, part 2: the methods with a Neumann series for H^-1 f_y.

BSA, ALSET, TTSA, StocBiO; with STORM: MRBO, SUSTAIN; with SPIDER: VRBO. Conventions as in part 1;
``S["H"]`` is the list of batches of the factors (its length is Q, or the drawn length of the
randomised series).
"""

from __future__ import annotations

from references.bilevel_oracles import neumann_random, neumann_sum


def hypergradient_sum(o, x, y, S, eta):
    """f_x - J Neumann_Q(f_y), all on the samples of one frozen bundle S: "f", "J", "H"."""
    return o.f_x(x, y, S["f"]) - o.J(x, y, S["J"]) @ neumann_sum(
        o, x, y, o.f_y(x, y, S["f"]), eta, S["H"]
    )


def hypergradient_random(o, x, y, S, eta, N):
    """f_x - J RandNeumann_N(f_y), the same bundle; k = len(S["H"])."""
    return o.f_x(x, y, S["f"]) - o.J(x, y, S["J"]) @ neumann_random(
        o, x, y, o.f_y(x, y, S["f"]), eta, N, S["H"]
    )


def point_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "k": 0}


# --------------------------------------------------------------------------------------------------
# BSA
def bsa(
    o,
    s,
    S,
    *,
    beta,
    alpha,
    eta,
    N,
    beta_exponent=1.0,
    alpha_exponent=0.5,
    y_cold=None,
    project_x=None,
):
    """S["g"] = t_k batches; beta_t = beta/(t+1)^e inside one call, alpha_k = alpha/(k+1)^e'."""
    x, k = s["x"], s["k"]
    y = s["y"] if y_cold is None else y_cold
    for t, S_t in enumerate(S["g"]):
        y = y - beta / (t + 1) ** beta_exponent * o.g_y(x, y, S_t)
    x_new = x - alpha / (k + 1) ** alpha_exponent * hypergradient_random(o, x, y, S, eta, N)
    return {"x": x_new if project_x is None else project_x(x_new), "y": y, "k": k + 1}


# --------------------------------------------------------------------------------------------------
# ALSET
def alset(o, s, S, *, beta_k, alpha_k, eta, N):
    """S["g"] = T batches (T = 1: the single loop); both steps of one time scale, handed over as
    numbers.
    """
    x, y = s["x"], s["y"]
    for S_t in S["g"]:
        y = y - beta_k * o.g_y(x, y, S_t)
    return {"x": x - alpha_k * hypergradient_random(o, x, y, S, eta, N), "y": y, "k": s["k"] + 1}


# --------------------------------------------------------------------------------------------------
# TTSA
def ttsa(o, s, S, *, a, b, eta, N, project_x=None):
    x, y, k = s["x"], s["y"], s["k"]
    alpha_k, beta_k = a / (1 + k) ** (3 / 5), b / (1 + k) ** (2 / 5)
    y_new = y - beta_k * o.g_y(x, y, S["g"])
    x_new = x - alpha_k * hypergradient_random(o, x, y_new, S, eta, N)
    return {"x": x_new if project_x is None else project_x(x_new), "y": y_new, "k": k + 1}


# --------------------------------------------------------------------------------------------------
# StocBiO
def stocbio(o, s, S, *, alpha, beta, eta):
    """S["g"] = T batches, S["H"] = Q batches, S["f"] = D_F, S["J"] = D_G."""
    x, y = s["x"], s["y"]
    for S_t in S["g"]:
        y = y - alpha * o.g_y(x, y, S_t)
    v_0 = o.f_y(x, y, S["f"])
    v_Q = neumann_sum(o, x, y, v_0, eta, S["H"])
    return {
        "x": x - beta * (o.f_x(x, y, S["f"]) - o.J(x, y, S["J"]) @ v_Q),
        "y": y,
        "k": s["k"] + 1,
    }


# --------------------------------------------------------------------------------------------------
# MRBO
def storm_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "u": None, "v": None, "old": None, "k": 0}


def mrbo(o, s, S, *, gamma, lam, d, m, c1, c2, eta, alpha=None, beta=None):
    """eta_k = d/(m+k)^(1/3), alpha_{k+1} = c1 eta_k^2, beta_{k+1} = c2 eta_k^2; alpha, beta:
    fixed instead.
    """
    x, y, k = s["x"], s["y"], s["k"]
    eta_k = d / (m + k) ** (1 / 3)
    if k == 0:
        u, v = o.g_y(x, y, S["g"]), hypergradient_sum(o, x, y, S, eta)
    else:
        eta_before = d / (m + k - 1) ** (1 / 3)
        a_k = c1 * eta_before**2 if alpha is None else alpha
        b_k = c2 * eta_before**2 if beta is None else beta
        x_old, y_old = s["old"]
        u = o.g_y(x, y, S["g"]) + (1 - b_k) * (s["u"] - o.g_y(x_old, y_old, S["g"]))
        v = hypergradient_sum(o, x, y, S, eta) + (1 - a_k) * (
            s["v"] - hypergradient_sum(o, x_old, y_old, S, eta)
        )
    return {
        "x": x - gamma * eta_k * v,
        "y": y - lam * eta_k * u,
        "u": u,
        "v": v,
        "old": (x, y),
        "k": k + 1,
    }


# --------------------------------------------------------------------------------------------------
# SUSTAIN
def sustain(o, s, S, *, c_alpha, w, c_beta, c_f, c_g, eta, N):
    """alpha_t = c_alpha/(w+t)^(1/3), beta_t = c_beta alpha_t, eta^f_{t+1} = c_f alpha_t^2,
    eta^g_{t+1} likewise.
    """
    x, y, t = s["x"], s["y"], s["k"]
    alpha_t = c_alpha / (w + t) ** (1 / 3)
    grad, hyper = o.g_y(x, y, S["g"]), hypergradient_random(o, x, y, S, eta, N)
    if t == 0:
        h_g, h_f = grad, hyper
    else:
        before = c_alpha / (w + t - 1) ** (1 / 3)
        eta_f, eta_g = c_f * before**2, c_g * before**2
        x_old, y_old = s["old"]
        # the same samples and the same k at the old point
        h_g = eta_g * grad + (1 - eta_g) * (s["u"] + grad - o.g_y(x_old, y_old, S["g"]))
        h_f = eta_f * hyper + (1 - eta_f) * (
            s["v"] + hyper - hypergradient_random(o, x_old, y_old, S, eta, N)
        )
    return {
        "x": x - alpha_t * h_f,
        "y": y - c_beta * alpha_t * h_g,
        "u": h_g,
        "v": h_f,
        "old": (x, y),
        "k": t + 1,
    }


# --------------------------------------------------------------------------------------------------
# VRBO
def vrbo_init(o, x0, y0):
    return {"x": x0.copy(), "y": y0.copy(), "u": None, "v": None, "at": None, "k": 0}


def vrbo(o, s, S, *, alpha, beta, q, eta, m):
    """S["big"] = bundle of the refresh ("g", "f", "J", "H"); S["small"] = list of bundles for the
    corrections.

    ``at`` is the point to which u and v belong. The first correction leads from there to (x_{k+1},
    y_k). With m + 1 small bundles the last one corrects to (x_{k+1}, y_{k+1}) without a further y
    step.
    """
    x, y, k = s["x"], s["y"], s["k"]
    if k % q == 0:
        u, v = o.g_y(x, y, S["big"]["g"]), hypergradient_sum(o, x, y, S["big"], eta)
        at = (x, y)
    else:
        u, v, at = s["u"], s["v"], s["at"]
    x_new = x - alpha * v
    y_t = y
    for t, S2 in enumerate(S["small"]):
        u = u + o.g_y(x_new, y_t, S2["g"]) - o.g_y(*at, S2["g"])
        v = v + hypergradient_sum(o, x_new, y_t, S2, eta) - hypergradient_sum(o, *at, S2, eta)
        at = (x_new, y_t)
        if t < m:
            y_t = y_t - beta * u
    return {"x": x_new, "y": y_t, "u": u, "v": v, "at": at, "k": k + 1}
