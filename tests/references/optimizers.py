"""The papers' optimizers written down line by line, in numpy float64, with the papers' letters.

A state is a dict; ``x`` is the whole parameter vector. Slow and plain on purpose: the fast forms
are compared with it.
"""

from __future__ import annotations

import math

import numpy as np


def clipped_descent(state, g, eta, clip, beta1):
    """acclip, Algorithm 1, lines 3 to 5, with any clipping."""
    m = state.get("m", np.zeros_like(g))
    m = beta1 * m + (1 - beta1) * g
    g_hat = clip(m)
    return {"x": state["x"] - eta * g_hat, "m": m}


def clipped_gradient_first(state, g, eta, clip, beta1):
    """The order of the two lines exchanged: the clipped gradients are averaged."""
    m = state.get("m", np.zeros_like(g))
    m = beta1 * m + (1 - beta1) * clip(g)
    return {"x": state["x"] - eta * m, "m": m}


def gclip(tau, m):
    """acclip, (GClip)."""
    norm = math.sqrt(math.fsum(float(v) ** 2 for v in m))
    return (min(tau / norm, 1.0) if norm > 0 else 1.0) * m


def cclip(tau, m):
    """acclip, (CClip)."""
    tau = np.broadcast_to(tau, m.shape)
    return np.array([(min(t / abs(v), 1.0) if v != 0 else 1.0) * v for t, v in zip(tau, m)])


def acclip(state, g, eta, beta1, beta2, alpha, eps, *, normalized=False, bias_correction=False):
    """thesis, Algorithm 1, lines 3 to 6; the options are ours."""
    k = state.get("k", 0) + 1
    m = beta1 * state.get("m", np.zeros_like(g)) + (1 - beta1) * g
    tau_alpha = beta2 * state.get("tau_alpha", np.zeros_like(g)) + (1 - beta2) * np.abs(g) ** alpha
    m_used, tau = m, tau_alpha ** (1 / alpha)
    if bias_correction:
        m_used, tau = m / (1 - beta1**k), (tau_alpha / (1 - beta2**k)) ** (1 / alpha)
    g_hat = np.minimum(tau / (np.abs(m_used) + eps), 1.0) * m_used
    if normalized:
        g_hat = g_hat / (tau + eps)
    return {"x": state["x"] - eta * g_hat, "m": m, "tau_alpha": tau_alpha, "k": k}


def acclip_second_moment(state, g, step, beta1, beta2, eps, *, two=2.0, bias_correction=False):
    """acclip, 3.1: eta_k and tau_k as printed, with momentum; ``two`` is the factor 2. The
    correction is ours.
    """
    k = state.get("k", 0) + 1
    m = beta1 * state.get("m", np.zeros_like(g)) + (1 - beta1) * g
    v_k = state.get("v", np.zeros_like(g))
    v = beta2 * v_k + (1 - beta2) * np.abs(g) ** 2
    m_used = m
    if bias_correction:
        m_used, v_k = m / (1 - beta1**k), g**2 if k == 1 else v_k / (1 - beta2 ** (k - 1))
    eta = two * step / (eps + np.sqrt(beta2 * v_k))
    tau = (eps + np.sqrt(beta2 * v_k)) / np.sqrt(1 - beta2)
    g_hat = np.minimum(tau / np.abs(m_used), 1.0) * m_used
    return {"x": state["x"] - eta * g_hat, "m": m, "v": v, "k": k}


def normalized_first(state, g, eta_n, damping, beta):
    """thesis, (3.6), the normalised gradients averaged."""
    m = beta * state.get("m", np.zeros_like(g)) + (1 - beta) * g / (np.linalg.norm(g) + damping)
    return {"x": state["x"] - eta_n * m, "m": m}


def norm_clipped(g, threshold, added=1e-6):
    """The gradient as torch.nn.utils.clip_grad_norm_ leaves it, which adds 1e-6 to the norm."""
    return g * min(threshold / (np.linalg.norm(g) + added), 1.0)


def adamw(state, g, eta, beta1, beta2, eps, decay):
    """Decoupled weight decay regularization, Alg. 2."""
    k = state.get("k", 0) + 1
    m = beta1 * state.get("m", np.zeros_like(g)) + (1 - beta1) * g
    v = beta2 * state.get("v", np.zeros_like(g)) + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**k), v / (1 - beta2**k)
    x = state["x"] - eta * decay * state["x"] - eta * m_hat / (np.sqrt(v_hat) + eps)
    return {"x": x, "m": m, "v": v, "k": k}


def adamw_largest(state, g, eta, beta1, beta2, eps, decay):
    """On the convergence of Adam and beyond, Alg. 2, with AdamW's bias correction, as in torch."""
    k = state.get("k", 0) + 1
    m = beta1 * state.get("m", np.zeros_like(g)) + (1 - beta1) * g
    v = beta2 * state.get("v", np.zeros_like(g)) + (1 - beta2) * g**2
    most = np.maximum(state.get("most", np.zeros_like(g)), v)
    x = state["x"] - eta * decay * state["x"]
    x = x - eta * (m / (1 - beta1**k)) / (np.sqrt(most / (1 - beta2**k)) + eps)
    return {"x": x, "m": m, "v": v, "most": most, "k": k}


def unit(g):
    """The gradient divided by its norm."""
    norm = math.sqrt(math.fsum(float(v) ** 2 for v in g))
    return g / norm if norm > 0 else g


def adamw_coordinates(state, g, eta, beta1, beta2, eps, decay, multiple):
    """AdamW on entries clipped at a multiple of the running mean of their size over events."""
    k = state.get("k", 0) + 1
    tau, held = state.get("tau", np.zeros_like(g)).copy(), g.copy()
    for i, entry in enumerate(g):
        if entry == 0:
            continue
        if tau[i] == 0:  # the first event: nothing to compare with
            tau[i] = abs(entry)
            continue
        held[i] = min(multiple * tau[i] / abs(entry), 1.0) * entry
        tau[i] += max(0.01, 1 / k) * (abs(entry) - tau[i])
    return {**adamw(state, held, eta, beta1, beta2, eps, decay), "tau": tau}


def sgd(state, g, eta, mu, dampening, decay, nesterov):
    """torch.optim.SGD's documentation, line by line."""
    g = g + decay * state["x"]
    b = mu * state["b"] + (1 - dampening) * g if "b" in state else g
    return {"x": state["x"] - eta * (g + mu * b if nesterov else b), "b": b}


def quantile_of_last(norms, q, window=128):
    """The order statistic of rank ceil(q(n+1)) of the last norms; infinite before the first."""
    seen = sorted(n for n in norms[-window:] if 0 < n < math.inf)
    return seen[min(math.ceil(q * (len(seen) + 1)), len(seen)) - 1] if seen else math.inf


def normalized_gd(state, g, eta_n, damping, beta):
    """thesis, (3.6), on the momentum."""
    m = beta * state.get("m", np.zeros_like(g)) + (1 - beta) * g
    return {"x": state["x"] - eta_n / (np.linalg.norm(m) + damping) * m, "m": m}


def stochastic_ingd(state, g_at_y, beta, p, q, u):
    """thesis, Algorithm 3: line 7 for the gradient just taken (line 2 for the first), then
    lines 4 and 5.
    """
    m = g_at_y if "m" not in state else beta * state["m"] + (1 - beta) * g_at_y
    x = state["x"]
    eta = 1 / (p * np.linalg.norm(m) + q)
    x_next = x - eta * m
    y = x + u * (x_next - x)
    return {"x": x_next, "m": m, "y": y}


def ingd_search(x_t, f, grad, delta, epsilon, lipschitz, inner, draws):
    """thesis, Algorithm 2, lines 4 to 15 from x_t. Returns (outcome, new x, m)."""
    m = grad(x_t)
    for _ in range(inner):
        norm = np.linalg.norm(m)
        if norm <= epsilon:
            return "certified", x_t, m
        x_tk = x_t - delta * m / norm
        if f(x_tk) - f(x_t) < -delta * norm / 4:
            return "descended", x_tk, m
        y = x_t + next(draws) * (x_tk - x_t)
        beta = (4 * lipschitz**2 - norm**2) / (4 * lipschitz**2 + 2 * norm**2)
        m = beta * m + (1 - beta) * grad(y)
    return "exhausted", x_t, m
