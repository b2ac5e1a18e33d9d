"""Source weights above, LoRA below: which of two sources should a causal language model be
fine-tuned on?

The base model is frozen, starts at random and comes from ``transformers`` (no download). The lower
level trains low-rank additions to its linear layers (LoRA) on sequences from a good and a corrupted
source, with one weight per source; the upper level moves the weights so that the loss on clean
validation sequences falls. In the good source a token has the same likely successor as in the
validation sequences; in the corrupted one half of the tokens are replaced at random::

    pip install 'mindgap[transformers]'
    python examples/lora_source_weights.py                 # CPU, under 2 minutes
    python examples/lora_source_weights.py --size large
        # GPU, 1.1 billion frozen parameters in bfloat16
"""

import argparse
import resource
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from mindgap.bilevel import SLIP, AdamStep, Batches, BilevelProblem, solve

#: shape of the model, rank of the additions, sequences, tokens per sequence, sequences per
#: minibatch, dtype of the base
SIZES = {
    "tiny": {
        "vocab": 16,
        "width": 16,
        "inner": 32,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "rank": 2,
        "count": 64,
        "tokens": 8,
        "batch": 8,
        "dtype": torch.bfloat16,
    },
    "small": {
        "vocab": 64,
        "width": 64,
        "inner": 256,
        "layers": 2,
        "heads": 4,
        "kv_heads": 4,
        "rank": 8,
        "count": 512,
        "tokens": 32,
        "batch": 16,
        "dtype": torch.float32,
    },
    "large": {
        "vocab": 32000,
        "width": 2048,
        "inner": 5632,
        "layers": 22,
        "heads": 32,
        "kv_heads": 4,
        "rank": 16,
        "count": 512,
        "tokens": 512,
        "batch": 8,
        "dtype": torch.bfloat16,
    },
}
SOURCES = ("good", "corrupted")


class LoRA(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, which starts at zero: W v + up
    (down v).
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        device = layer.weight.device
        self.down = nn.Parameter(
            torch.randn(rank, layer.in_features, device=device) / layer.in_features**0.5
        )
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))

    def forward(self, values: Tensor) -> Tensor:
        down, up = self.down.to(values.dtype), self.up.to(values.dtype)
        return self.layer(values) + values @ down.T @ up.T


def make_model(size: str, device: str) -> nn.Module:
    """A causal model at a random start, all of it frozen but the additions, which stay in
    float32.
    """
    s = SIZES[size]
    config = LlamaConfig(
        vocab_size=s["vocab"],
        hidden_size=s["width"],
        intermediate_size=s["inner"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        max_position_embeddings=s["tokens"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(device, s["dtype"])
    model.requires_grad_(False)
    linear = [
        (parent, name, part)
        for parent in model.modules()
        for name, part in parent.named_children()
        if isinstance(part, nn.Linear)
    ]
    for parent, name, part in linear:
        setattr(parent, name, LoRA(part, s["rank"]))
    return model


def draw_sequences(size: str, count: int, replaced: float, seed: int) -> Tensor:
    """Sequences in which a token's successor is a fixed one with probability 0.9; a share is
    replaced at random.
    """
    s = SIZES[size]
    vocab = min(s["vocab"], 64)
    successor = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (count, s["tokens"]), generator=draw)
    follows = torch.rand(count, s["tokens"], generator=draw) < 0.9
    for t in range(1, s["tokens"]):
        tokens[:, t] = torch.where(follows[:, t], successor[tokens[:, t - 1]], tokens[:, t])
    noise = torch.randint(vocab, tokens.shape, generator=draw)
    return torch.where(torch.rand(tokens.shape, generator=draw) < replaced, noise, tokens)


def sequence_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, one number per sequence."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    return cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def make_problem(
    size: str, device: str = "cpu", corrupted: str = "corrupted", fixed: str = ""
) -> BilevelProblem:
    """x: one logit per source. y: the additions. Half of the training sequences come from each
    source.

    ``corrupted`` names the source with replaced tokens. ``fixed`` keeps the weights: "equal", or
    the name of the only source with a weight.
    """
    s = SIZES[size]
    half = s["count"] // 2
    train = torch.cat(
        [
            draw_sequences(size, half, 0.5 * (name == corrupted), 1 + i)
            for i, name in enumerate(SOURCES)
        ]
    )
    source = torch.arange(2).repeat_interleave(half)
    valid = draw_sequences(size, half, 0.0, 3)
    x = torch.tensor([20.0 * (name == fixed) for name in SOURCES], device=device)

    def lower(x: Tensor, y: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, which = batch
        penalty = sum(p.square().sum() for p in y.parameters())
        return (2 * x.softmax(0)[which] * sequence_losses(y, tokens)).mean() + 1e-4 * penalty

    def upper(x: Tensor, y: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return sequence_losses(y, batch[0]).mean()

    return BilevelProblem(
        upper,
        lower,
        x=x,
        y=make_model(size, device),
        project_x=(lambda _: x.clone()) if fixed else None,
        upper_data=Batches((valid.to(device),), s["batch"], order="reshuffle"),
        lower_data=Batches((train.to(device), source.to(device)), s["batch"], order="reshuffle"),
    )


def peak_memory(device: str) -> float:
    """Largest memory in use so far, in MiB: of the GPU, or of the whole process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


def fine_tune(problem: BilevelProblem, steps: int) -> tuple[list[float], float, float]:
    """Weights of the sources and loss on all validation sequences after a run, and the seconds
    it took.
    """
    method = SLIP(lr_x=0.02, lr_y=0.003, lr_z=0.003, y_step=AdamStep(), samples="shared")
    solution = solve(problem, method, steps).check()
    x, y = solution.state.x, solution.state.y
    return x.softmax(0).tolist(), float(problem.loss("upper", x, y)), solution.seconds


def main(size: str, steps: int, device: str) -> None:
    """The learned weights, and what training with equal weights and on the good source alone
    gives.
    """
    problem = make_problem(size, device)
    frozen = sum(p.numel() for p in problem.pack_y.module.parameters()) - problem.dim_y
    idle = peak_memory(device)
    before = float(problem.loss("upper", problem.pack_x.start, problem.pack_y.start))
    weights, loss, seconds = fine_tune(problem, steps)
    tokens = 2 * SIZES[size]["batch"] * SIZES[size]["tokens"]
    print(
        f"{frozen:,} frozen parameters, {problem.dim_y:,} in the additions, {steps} iterations on "
        f"{device}"
    )
    print(f"{steps / seconds:.3g} iterations and {tokens * steps / seconds:,.0f} tokens per second")
    print(f"peak memory: {peak_memory(device):,.0f} MiB, before the run {idle:,.0f} MiB")
    print(f"validation loss before training: {before:.3f}")
    print(f"weights learned, {weights[0]:.3f} good and {weights[1]:.3f} corrupted: {loss:.3f}")
    for fixed in ("equal", "good"):
        print(
            f"weights fixed, {fixed}: "
            f"{fine_tune(make_problem(size, device, fixed=fixed), steps)[1]:.3f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    main(options.size, options.steps, options.device)
