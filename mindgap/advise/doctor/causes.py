"""The table of causes: what each one looks like, how strongly each finding speaks for it or against
it, and its cure.

A cause's score is its prior plus the weights of the findings times their strengths, in units of
log-odds. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mindgap.advise.doctor.chart import Finding, FindingName


@dataclass(frozen=True)
class Cause:
    """One way in which training goes wrong."""

    key: str
    name: str  # "the learning rate is too large"
    signs: Mapping[FindingName, float]  # finding -> weight; below 0: speaks against
    cure: str  # a key of CURES, "" if none can be tried
    change: str  # what to change, in words
    code: str  # what to paste
    source: str  # where cause or cure are described
    needs: tuple[
        FindingName, ...
    ] = ()  # without one of these findings the cause is out of the question
    prior: float = -3.0  # log-odds before any finding
    proof: bool = True  # named only if its cure helps on a copy (or cannot be tried)
    resembles: tuple[str, ...] = ()  # causes that look like this one, the likeliest first

    def score(self, findings: Mapping[FindingName, Finding]) -> float:
        """Log-odds of this cause; minus infinity where what it needs is missing.

        Example:
            >>> sign = Finding("zero_kept", 1.0, "")
            >>> CAUSES["zero_grad_forgotten"].score({"zero_kept": sign}) > 0
            True
        """
        if self.needs and not any(name in findings for name in self.needs):
            return float("-inf")
        total = self.prior
        for name, weight in self.signs.items():
            if name in findings:
                total += weight * findings[name].strength
        return total


def _against(weight: float, *names: FindingName) -> dict[FindingName, float]:
    """The same weight for several findings."""
    return dict.fromkeys(names, weight)


#: Findings that name a fault by themselves; they speak against causes that only explain the curve.
PLAIN: tuple[FindingName, ...] = (
    "zero_kept",
    "added",
    "loss_is_sum",
    "probabilities_as_scores",
    "softmax_over_batch",
    "broadcasts",
    "samples_mix",
    "no_graph",
    "cut",
    "unregistered",
    "never_steps",
    "rate_negative",
    "rate_gone",
    "evaluates",
    "equal_weights",
    "nan_op",
    "half_overflow",
    "batch_of_one",
    "feature_not_finite",
)
#: Findings on the data, which speak against causes that only explain the curve, too.
_DATA: tuple[FindingName, ...] = (
    "sample_outlier",
    "batch_outlier",
    "unscaled",
    "constant_large",
    "heavy_targets",
)

#: The clipping that was tried on a copy, in the user's own step.
_CLIPPED = "torch.nn.utils.clip_grad_norm_(model.parameters(), {limit:.3g})\noptimizer.step()"

#: What to paste instead, by cause and case: see :func:`~mindgap.advise.doctor.answer.code_of`.
CODE_OF_CASE: Mapping[tuple[str, str], str] = {
    ("softmax_twice", "binary"): "loss = torch.nn.functional.binary_cross_entropy_with_logits(\n"
    "    scores, targets  # scores before the sigmoid\n)",
    ("heavy_tailed_noise", "huber"): "criterion = torch.nn.SmoothL1Loss(beta={beta:.3g})  # in "
    f"place of the squared error\nloss = criterion(outputs, targets)\nloss.backward()\n{_CLIPPED}",
}

_ROWS = (
    Cause(
        "lr_too_large",
        "the learning rate is too large",
        {
            "slower_helps": 5.0,
            "thrown": 5.0,  # of a monitored run, where no cure is tried
            "overshoots": 1.0,
            "blew_up": 1.0,
            "above_start": 0.5,
            "moves_much": 1.0,
            "died": 0.5,
            **_against(-4.0, *PLAIN, *_DATA),
            **_against(
                -3.0, "explodes_time", "large_weights", "extreme_momentum", "no_warmup_sign"
            ),
            **_against(
                -2.0, "explodes_depth", "signal_grows", "large_decay", "sorted", "clipping_helps"
            ),
            **_against(-2.0, "dead", "saturated", "left_out"),
        },
        "slower",
        "lower it",
        "for group in optimizer.param_groups:\n    group['lr'] *= {variant:g}",
        "thesis, 6.3: above the stability threshold the iterates cannot settle",
        needs=("slower_helps", "thrown"),
        resembles=(
            "no_warmup",
            "smoothness_grows",
            "exploding_gradients",
            "momentum_extreme",
            "init_too_large",
        ),
    ),
    Cause(
        "lr_too_small",
        "the learning rate is too small",
        {
            "faster_helps": 3.0,
            "crawls": 3.0,  # of a monitored run, where no cure is tried
            "moves_little": 3.0,
            **_against(-4.0, *PLAIN, *_DATA),
            **_against(-3.0, "small_weights", "vanishes", "vanishes_time", "dead", "saturated"),
            **_against(-3.0, "tight", "left_out", "frozen", "large_decay", "large_weights"),
            **_against(-2.0, "sorted", "labels_carry_nothing", "labels_disagree"),
        },
        "faster",
        "raise it",
        "for group in optimizer.param_groups:\n    group['lr'] *= {variant:g}",
        "L. N. Smith 2017: learning-rate range test",
        needs=("faster_helps", "crawls"),
        resembles=("clipping_too_tight", "vanishing_gradients", "init_too_small", "underfitting"),
    ),
    Cause(
        "no_warmup",
        "training needs a warm-up and has none",
        {
            "warmup_helps": 5.0,
            "no_warmup_sign": 1.5,
            "blew_up": 0.5,
            **_against(-4.0, *PLAIN, *_DATA),
            **_against(-3.0, "explodes_time", "large_weights", "extreme_momentum", "large_decay"),
        },
        "warm_up",
        "raise the learning rate linearly over the first steps",
        "scheduler = torch.optim.lr_scheduler.LinearLR(\n"
        "    optimizer, start_factor=0.01, total_iters={steps}\n)",
        "Xiong and others 2020: layer norm after the sum needs warm-up",
        needs=("warmup_helps",),
        resembles=("lr_too_large", "missing_normalisation"),
    ),
    Cause(
        "init_too_large",
        "the initial weights are too large",
        {"large_weights": 6.0, "explodes_time": -0.5, "equal_weights": -3.0},
        "reset",
        "start from torch's default weights",
        "for module in model.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n        module.reset_parameters()",
        "Glorot and Bengio 2010; He and others 2015",
        needs=("large_weights",),
        resembles=("exploding_gradients", "missing_normalisation", "lr_too_large"),
    ),
    Cause(
        "init_too_small",
        "the initial weights are too small",
        {"small_weights": 6.0, "equal_weights": -5.0, "left_out": -2.0, "frozen": -2.0},
        "reset",
        "start from torch's default weights",
        "for module in model.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n        module.reset_parameters()",
        "Glorot and Bengio 2010; He and others 2015",
        needs=("small_weights",),
        resembles=("vanishing_gradients", "init_equal", "lr_too_small"),
    ),
    Cause(
        "init_equal",
        "all units of a layer start equal and stay equal",
        {"equal_weights": 7.0, "collapsed": 0.5},
        "reset",
        "start from random weights",
        "for module in model.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n        module.reset_parameters()",
        "Goodfellow, Bengio, Courville: Deep Learning, 8.4",
        needs=("equal_weights",),
        resembles=("vanishing_gradients", "init_too_small", "dead_units"),
    ),
    Cause(
        "dead_units",
        "units are dead: their ReLU is zero on every sample",
        {"dead": 6.0, "large_weights": -2.0, **_against(-3.0, *_DATA), "equal_weights": -4.0},
        "reset",
        "start those layers anew (their biases are far below zero), or use LeakyReLU",
        "for module in model.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n        module.reset_parameters()",
        "Lu and others 2020: dying ReLU and initialization",
        needs=("dead",),
        resembles=("init_equal", "lr_too_large", "unscaled_features"),
    ),
    Cause(
        "saturated_units",
        "units are saturated: their output hardly changes",
        {"saturated": 6.0, "large_weights": -3.0, **_against(-4.0, *_DATA), "vanishes": -1.0},
        "reset",
        "start those layers anew, with small biases",
        "for module in model.modules():\n"
        "    if hasattr(module, 'reset_parameters'):\n        module.reset_parameters()",
        "Glorot and Bengio 2010, section 3",
        needs=("saturated",),
        resembles=("vanishing_gradients", "init_too_large", "unscaled_features"),
    ),
    Cause(
        "exploding_gradients",
        "gradients explode through {through}",
        {
            "explodes_time": 6.0,
            "explodes_depth": 6.5,
            "huge_gradient": 0.5,
            "large_weights": -2.0,
            "residual": -3.0,
            **_against(-3.0, *_DATA),
        },
        "calm_recurrence",
        "clip the gradient's norm and start from orthogonal recurrent (or default) weights",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
        "Pascanu, Mikolov, Bengio 2013; thesis, Thm. 3.4.1",
        needs=("explodes_time", "explodes_depth"),
        resembles=("missing_normalisation", "init_too_large", "lr_too_large"),
    ),
    Cause(
        "vanishing_gradients",
        "gradients vanish through {through}",
        {
            "vanishes": 6.0,
            "vanishes_time": 5.0,
            "collapsed": 0.5,
            "denormal": 1.0,
            "small_weights": -3.0,
            "saturated": -2.0,
            "equal_weights": -4.0,
            "dead": -2.0,
            **_against(-3.0, *_DATA),
        },
        "remember",
        "normalise hidden layers and use ReLU; in a recurrence use a GRU or identity weights",
        "# for every hidden layer: linear, of that width\n"
        "hidden = torch.nn.Sequential(\n    linear, torch.nn.LayerNorm(width), torch.nn.ReLU()\n)",
        "Hochreiter 1991; Ioffe and Szegedy 2015; Le, Jaitly, Hinton 2015",
        needs=("vanishes", "vanishes_time"),
        resembles=("saturated_units", "init_equal", "init_too_small"),
    ),
    Cause(
        "missing_normalisation",
        "the signal grows with depth: normalisation or a residual scale is missing",
        {
            "signal_grows": 3.0,
            "residual": 2.5,
            "large_weights": -2.0,
            "explodes_time": -4.0,
            **_against(-3.0, *_DATA),
        },
        "normalise",
        "add LayerNorm to every block, or scale each residual branch by 1/√depth",
        "# for every block, in forward of your module\n"
        "x = x + block(torch.nn.functional.layer_norm(x, x.shape[-1:]))",
        "Zhang, Dauphin, Ma 2019 (Fixup); Xiong and others 2020",
        needs=("signal_grows",),
        resembles=("exploding_gradients", "init_too_large", "lr_too_large"),
    ),
    Cause(
        "wrong_labels",
        "many labels are wrong",
        {
            "labels_disagree": 6.0,
            "targets_equal": 8.0,
            "labels_carry_nothing": 5.5,
            **_against(-4.0, "slower_helps", "faster_helps"),
            **_against(-2.0, "vanishes_time", "explodes_time"),
            "heavy_targets": -4.0,
            "shift_found": -6.0,
            **_against(-3.0, *PLAIN, "unscaled", "constant_large"),
            "sorted": -3.0,
        },
        "drop_suspects",
        "check the labels of the samples listed, or leave them out",
        "# indices of suspicious samples: answer.facts['suspects']",
        "Northcutt, Jiang, Chuang 2021: confident learning",
        needs=("labels_disagree", "labels_carry_nothing", "targets_equal"),
        proof=False,
        resembles=("heavy_tailed_noise", "labels_shifted", "overfitting"),
    ),
    Cause(
        "labels_shifted",
        "the targets are shifted against the inputs by one sample",
        {"shift_found": 8.0, "targets_are_inputs": 8.0, "labels_outside": 8.0},
        "shift_labels",
        "move the targets back by one",
        "targets = targets.roll({shift}, 0)",
        "ours",
        needs=("shift_found", "targets_are_inputs", "labels_outside"),
        resembles=("wrong_labels", "not_shuffled"),
    ),
    Cause(
        "bad_sample",
        "one sample (or a few) spoils training",
        {"sample_outlier": 6.5, "spikes": 1.0, "batch_outlier": -4.0},
        "drop_samples",
        "leave the sample out, or clip the gradient",
        "# (batch, row) of the samples to drop: {where}",
        "acclip, Alg. 1",
        needs=("sample_outlier",),
        resembles=("bad_batch", "heavy_tailed_noise", "unscaled_features"),
    ),
    Cause(
        "bad_batch",
        "one batch spoils training",
        {"batch_outlier": 6.5, "inputs_lost": 6.5, "spikes": 1.0},
        "drop_batches",
        "leave the batch out, or clip the gradient",
        "# batches to drop: {where}",
        "acclip, Alg. 1",
        needs=("batch_outlier", "inputs_lost"),
        resembles=("bad_sample", "unscaled_features", "nan_operation"),
    ),
    Cause(
        "constant_feature",
        "an input is constant",
        {"constant_large": 6.5, "feature_not_finite": 6.5},
        "scale_inputs",
        "drop the input; dividing by its spread of zero gives NaN",
        "keep = inputs.std(0) > 0\ninputs = inputs[:, keep]",
        "ours",
        needs=("constant_large", "feature_not_finite"),
        resembles=("unscaled_features", "nan_operation"),
    ),
    Cause(
        "unscaled_features",
        "the inputs are not scaled",
        {"unscaled": 6.0, "constant_large": -2.0, **_against(-4.0, "sample_outlier")},
        "scale_inputs",
        "standardise the inputs",
        "mean, std = inputs.mean(0), inputs.std(0)  # of the training set\n"
        "inputs = (inputs - mean) / (std + 1e-8)",
        "LeCun and others 1998: Efficient BackProp, 4.3",
        needs=("unscaled",),
        resembles=("constant_feature", "bad_sample", "lr_too_large"),
    ),
    Cause(
        "nan_operation",
        "an operation gives NaN or infinity",
        {
            "nan_op": 7.0,
            "gradient_not_finite": 5.0,
            "half_overflow": -5.0,
            **_against(-4.0, "sample_outlier", "batch_outlier", "feature_not_finite"),
            "rate_negative": -6.0,
        },
        "floors",
        "keep the argument of log, sqrt and division away from zero",
        "y = x.clamp_min(1e-6).log()  # also sqrt and division; better: log_softmax",
        "PyTorch: numerical accuracy, autograd",
        needs=("nan_op", "gradient_not_finite"),
        resembles=("smoothness_grows", "lr_too_large", "overflow"),
    ),
    Cause(
        "overflow",
        "float16 overflows",
        {"half_overflow": 8.0},
        "single_precision",
        "compute that part in float32 or bfloat16, or scale the loss",
        "with torch.autocast(inputs.device.type, torch.bfloat16):\n    outputs = model(inputs)",
        "Micikevicius and others 2018: mixed precision training",
        needs=("half_overflow",),
        resembles=("nan_operation", "lr_too_large"),
    ),
    Cause(
        "frozen_parameters",
        "parameters are frozen that should be trained",
        {"frozen": 5.5, "all_frozen": 3.0, "stalled": 1.0},
        "unfreeze",
        "set requires_grad and hand the parameters to the optimizer",
        "for p in model.parameters():\n    p.requires_grad_(True)  # before the optimizer is made",
        "PyTorch: autograd mechanics",
        needs=("frozen",),
        resembles=("optimizer_other_parameters", "detached_graph"),
    ),
    Cause(
        "unregistered_parameters",
        "layers or tensors are not registered and stay at their start",
        {"unregistered": 7.0},
        "rebuild",
        "use nn.ModuleList, nn.ModuleDict or nn.Parameter",
        "self.layers = torch.nn.ModuleList(self.layers)  # in your module's __init__",
        "PyTorch: nn.Module, nn.ModuleList",
        needs=("unregistered",),
        proof=False,
        resembles=("optimizer_other_parameters", "detached_graph"),
    ),
    Cause(
        "detached_graph",
        "the graph is cut: part of the model gets no gradient",
        {"cut": 6.0, "no_graph": 7.0, "unregistered": -2.0, "all_frozen": -4.0},
        "reattach",
        "remove detach(), .data, .numpy(), argmax or no_grad between the model and the loss",
        "# no .detach(), .data, .numpy(), argmax or no_grad() before the loss",
        "PyTorch: autograd mechanics",
        needs=("cut", "no_graph"),
        proof=False,
        resembles=("unregistered_parameters", "frozen_parameters"),
    ),
    Cause(
        "optimizer_other_parameters",
        "the optimizer does not move the model's parameters",
        {
            "left_out": 5.5,
            "stuck": 5.5,
            "foreign": 2.0,
            "never_steps": 8.0,
            "no_graph": -5.0,
            "tight": -4.0,
            "stalled": 1.0,
        },
        "rebuild",
        "build the optimizer from model.parameters() after the model is complete, and call step()",
        "optimizer = type(optimizer)(model.parameters(), lr={lr:g})",
        "PyTorch: torch.optim",
        needs=("left_out", "never_steps", "stuck"),
        resembles=("clipping_too_tight", "frozen_parameters", "unregistered_parameters"),
    ),
    Cause(
        "zero_grad_forgotten",
        "gradients of earlier steps are never cleared",
        {"zero_kept": 8.0},
        "own_step",
        "call optimizer.zero_grad() before every backward pass",
        "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
        "PyTorch: Optimizer.zero_grad",
        needs=("zero_kept",),
        proof=False,
        resembles=("accumulation_undivided", "lr_too_large"),
    ),
    Cause(
        "accumulation_undivided",
        "gradients of several batches are added and not averaged",
        {"added": 8.0, "zero_kept": -4.0},
        "own_step",
        "divide the loss by the number of accumulated batches",
        "(loss / {added}).backward()",
        "PyTorch: gradient accumulation",
        needs=("added",),
        resembles=("zero_grad_forgotten", "lr_too_large"),
    ),
    Cause(
        "softmax_twice",
        "softmax (or sigmoid) is applied twice",
        {"probabilities_as_scores": 8.0},
        "scores",
        "hand scores to the loss: leave out the last softmax or sigmoid",
        "loss = torch.nn.functional.cross_entropy(scores, targets)  # no softmax",
        "PyTorch: CrossEntropyLoss, BCEWithLogitsLoss",
        needs=("probabilities_as_scores",),
        proof=False,
        resembles=("wrong_axis", "lr_too_small"),
    ),
    Cause(
        "wrong_axis",
        "an axis is wrong: samples of a batch are mixed",
        {"softmax_over_batch": 8.0, "broadcasts": 8.0, "samples_mix": 6.0},
        "right_axis",
        "compare the shapes of output and target, and the axis of softmax, reshape and recurrence",
        "assert outputs.shape == targets.shape  # before the loss; or softmax(dim=-1)",
        "PyTorch: broadcasting semantics",
        needs=("softmax_over_batch", "broadcasts", "samples_mix"),
        proof=False,
        resembles=("wrong_labels", "labels_shifted", "underfitting"),
    ),
    Cause(
        "sum_not_mean",
        "the loss is a sum over the batch, not a mean",
        {"loss_is_sum": 7.0},
        "divide_loss",
        "average the loss over the samples",
        "loss = torch.nn.functional.cross_entropy(outputs, targets, reduction='mean')",
        "PyTorch: reduction",
        needs=("loss_is_sum",),
        resembles=("lr_too_large", "accumulation_undivided"),
    ),
    Cause(
        "eval_mode_in_training",
        "the model trains in evaluation mode",
        {"evaluates": 8.0},
        "own_step",
        "call model.train() before every training step",
        "model.train()",
        "PyTorch: Module.train, Module.eval",
        needs=("evaluates",),
        resembles=("unscaled_features", "missing_normalisation"),
    ),
    Cause(
        "dropout_in_evaluation",
        "dropout stays active in evaluation",
        {"dropout_active": 7.0, "loss_trains": 1.0},
        "",
        "pass training=self.training to F.dropout, and call model.eval() to validate",
        "x = torch.nn.functional.dropout(x, training=self.training)  # in forward()",
        "PyTorch: Module.eval, functional.dropout",
        needs=("dropout_active",),
        proof=False,
        resembles=("eval_mode_in_training", "underfitting"),
    ),
    Cause(
        "weight_decay_too_large",
        "weight decay is too large",
        {"large_decay": 5.5, "shrinks": 1.5},
        "no_decay",
        "lower weight_decay",
        "for group in optimizer.param_groups:\n    group['weight_decay'] = 0.01",
        "Loshchilov and Hutter 2019",
        needs=("large_decay",),
        resembles=("lr_too_small", "underfitting"),
    ),
    Cause(
        "momentum_extreme",
        "momentum or β₂ is extreme",
        {"extreme_momentum": 6.0},
        "ordinary_momentum",
        "use momentum 0.9, or betas=(0.9, 0.999)",
        "for group in optimizer.param_groups:\n    group['{momentum}'] = {ordinary}",
        "Kingma and Ba 2015; Reddi, Kale, Kumar 2018",
        needs=("extreme_momentum",),
        resembles=("lr_too_large", "smoothness_grows"),
    ),
    Cause(
        "leakage",
        "validation samples are also training samples",
        {"shared_samples": 7.0},
        "",
        "remove the shared samples from one of the two parts",
        "# rows of the validation set to remove: answer.facts['shared']",
        "Kapoor and Narayanan 2023",
        needs=("shared_samples",),
        proof=False,
        resembles=("repeated_batches", "overfitting"),
    ),
    Cause(
        "overfitting",
        "the model overfits",
        {
            "overfits": 6.0,
            **_against(-4.0, "labels_disagree", "shared_samples", "shift_found"),
            **_against(-3.0, "batches_repeat"),
            "labels_carry_nothing": -5.0,
            "sorted": -3.0,
            **_against(-4.0, *PLAIN),
        },
        "",
        "stop at the smallest validation loss, or use more data, dropout or weight decay",
        "# keep the weights of step {best}: loss {low:.3g}, at the end {high:.3g}",
        "Prechelt 1998: early stopping",
        needs=("overfits",),
        proof=False,
        resembles=("wrong_labels", "underfitting", "repeated_batches"),
    ),
    Cause(
        "underfitting",
        "the model is too small for the data",
        {
            "control_better": 3.0,
            "settled": 2.0,
            "few_units": 3.0,
            **_against(-5.0, *PLAIN, *_DATA),
            **_against(-4.0, "slower_helps", "faster_helps", "frozen", "left_out", "dead"),
            **_against(-4.0, "saturated", "vanishes", "vanishes_time", "explodes_time"),
            **_against(-4.0, "large_weights", "small_weights", "large_decay", "tight", "sorted"),
            **_against(-4.0, "extreme_momentum", "broke", "blew_up", "warmup_helps", "overfits"),
            "dropout_active": -3.0,
            "explodes_depth": -3.0,
            "signal_grows": -3.0,
        },
        "",
        "use more units or a hidden layer",
        "from torch import nn\nmodel = nn.Sequential(  # from inputs to outputs\n"
        "    nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, {outputs})\n)",
        "Goodfellow, Bengio, Courville: Deep Learning, 5.2",
        needs=("few_units",),
        proof=False,
        resembles=("wrong_axis", "vanishing_gradients", "wrong_labels"),
    ),
    Cause(
        "batch_norm_of_one",
        "batch norm sees one sample per batch",
        {"batch_of_one": 7.0},
        "group_norm",
        "use larger batches, or GroupNorm in place of batch norm",
        "norm = torch.nn.GroupNorm(4, channels)  # in place of BatchNorm2d(channels)",
        "Wu and He 2018: group normalization",
        needs=("batch_of_one",),
        resembles=("lr_too_large", "not_shuffled"),
    ),
    Cause(
        "not_shuffled",
        "the data are not shuffled",
        {"sorted": 6.0},
        "shuffle",
        "shuffle the samples",
        "loader = torch.utils.data.DataLoader(data, batch_size, shuffle=True)",
        "PyTorch: DataLoader",
        needs=("sorted",),
        resembles=("labels_shifted", "wrong_labels"),
    ),
    Cause(
        "repeated_batches",
        "batches repeat: samples are drawn again, or every worker draws the same random numbers",
        {"batches_repeat": 6.0},
        "",
        "seed each worker of the loader on its own, and draw every sample once per epoch",
        "import numpy\ndef seeded(worker):\n    numpy.random.seed(torch.initial_seed() % 2**32)\n"
        "loader = torch.utils.data.DataLoader(data, worker_init_fn=seeded)",
        "PyTorch: randomness in multi-process data loading",
        needs=("batches_repeat",),
        proof=False,
        resembles=("overfitting", "leakage"),
    ),
    Cause(
        "clipping_too_tight",
        "gradient clipping is so tight that nothing moves",
        {"tight": 6.5, "zero_kept": -6.0},
        "unclipped",
        "raise the threshold to the median gradient norm",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), {norm:.2g})",
        "acclip, Lemma 2",
        needs=("tight",),
        resembles=("lr_too_small", "optimizer_other_parameters"),
    ),
    Cause(
        "scheduler_at_zero",
        "the scheduler has taken the learning rate to zero",
        {"rate_gone": 7.0},
        "constant_rate",
        "decay over the whole run (is it stepped per batch and meant per epoch?)",
        "total_steps = 10_000  # put the steps of your whole run here\n"
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(\n"
        "    optimizer, T_max=total_steps\n)",
        "PyTorch: torch.optim.lr_scheduler",
        needs=("rate_gone",),
        resembles=("lr_too_small", "clipping_too_tight"),
    ),
    Cause(
        "scheduler_negative",
        "the scheduler makes the learning rate negative",
        {"rate_negative": 9.0},
        "constant_rate",
        "end the schedule at zero",
        "total_steps = 10_000  # put the steps of your whole run here\n"
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        "    optimizer, lambda k: max(0.0, 1 - k / total_steps)\n)",
        "PyTorch: torch.optim.lr_scheduler",
        needs=("rate_negative",),
        proof=False,
        resembles=("lr_too_large", "scheduler_at_zero"),
    ),
    Cause(
        "heavy_tailed_noise",
        "the noise has heavy tails",
        {"heavy_targets": 6.0, **_against(-5.0, "sample_outlier", "batch_outlier")},
        "inner",
        "clip the gradient, or use a loss that bounds outliers (Huber)",
        _CLIPPED,
        "acclip, Thm. 1 to 3",
        needs=("heavy_targets",),
        resembles=("wrong_labels", "bad_sample"),
    ),
    Cause(
        "smoothness_grows",
        "the smoothness grows with the gradient",
        {
            "steep": 3.0,
            "clipping_helps": 4.0,
            **_against(-4.0, *PLAIN, *_DATA),
            **_against(
                -3.0, "explodes_time", "large_weights", "explodes_depth", "extreme_momentum"
            ),
        },
        "clip",
        "clip the gradient",
        _CLIPPED,
        "thesis, Thm. 3.4.1, 3.4.2",
        needs=("clipping_helps",),
        resembles=("lr_too_large", "exploding_gradients", "no_warmup"),
    ),
)

CAUSES: dict[str, Cause] = {row.key: row for row in _ROWS}


def rank_causes(findings: Mapping[FindingName, Finding]) -> list[tuple[Cause, float]]:
    """The causes that the findings leave possible with their log-odds, likeliest first."""
    scored = [(cause, cause.score(findings)) for cause in CAUSES.values()]
    possible = [(cause, score) for cause, score in scored if score > float("-inf")]
    return sorted(possible, key=lambda row: row[1], reverse=True)
