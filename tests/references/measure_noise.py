"""Gradient noise as the papers define it, with the whole P x M matrix in memory and one
backward pass per sample.
"""

from __future__ import annotations

import torch


def gradient_matrix(model, loss, batches):
    """Row b = g_b, flat."""
    rows = []
    for batch in batches:
        parameters = [p for p in model.parameters() if p.requires_grad]
        g = torch.autograd.grad(loss(model, batch), parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros_like(p).reshape(-1) if t is None else t.reshape(-1)
                    for t, p in zip(g, parameters)
                ]
            )
        )
    return torch.stack(rows)


def noise_norms(G):
    """‖g_b - mean‖ for every row."""
    return (G - G.mean(0)).norm(dim=1)


def pairwise_squared_mean(G):
    """Mean of ⟨g_a, g_b⟩ over all ordered pairs a ≠ b, by the double loop."""
    M, total = len(G), 0.0
    for a in range(M):
        for b in range(M):
            if a != b:
                total += float(G[a] @ G[b])
    return total / (M * (M - 1))


def leave_one_out(G):
    """The pairwise mean without row i, for every i."""
    return torch.tensor(
        [pairwise_squared_mean(torch.cat([G[:i], G[i + 1 :]])) for i in range(len(G))]
    )


def per_sample_norms(model, loss, take, n):
    """‖∇ loss(model, sample i alone)‖; ``take(i)`` gives the batch that holds sample i only."""
    return gradient_matrix(model, loss, [take(i) for i in range(n)]).norm(dim=1)
