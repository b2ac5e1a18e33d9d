"""S1: does smoothness grow with the gradient along the training of a language model?"""

from __future__ import annotations

from functools import partial

from mindgap.lab.studies.smoothness_runs import (
    FIGURES,
    GPU_RULE,
    PROSE,
    RULE,
    STRONG,
    CorrelationDesign,
    judge,
    loop,
)
from mindgap.lab.studies.spec import Figure, Scale, Source, Study, scales
from mindgap.lab.studies.text_runs import AWD_LSTM

#: Steps of one pass over Penn Treebank.
EPOCH = 166

#: A step of 2 is a fifteenth of the other: after six passes its runs knew word frequencies alone.
_SLOW = {"steps": 100 * EPOCH, "every": 200}

S1_SMOOTHNESS_LANGUAGE_MODEL = Study(
    name="s1-smoothness-language-model",
    claim="S1",
    title="Does smoothness grow with the gradient? A language model",
    statement="Along the training of an LSTM, local smoothness and gradient norm are strongly "
    "correlated with clipping and step 30, and much less without clipping or at step 2.",
    source=Source("thesis", "Fig. 3-1, 3-2"),
    scales={
        **scales(PROSE, {"steps": 2000, "every": 20, "m": 512, "part": 64}, seeds=(3, 3)),
        "gpu": Scale(
            {
                **AWD_LSTM,
                "steps": 20 * EPOCH,
                "every": 40,
                "m": 80,
                "part": 40,
                "tau": 0.25,
                "momentum": 0.0,
                "clip": False,
                "lr": 2.0,
            },
            3,
            {"not clipped, step 2": _SLOW, "clipped, step 2": _SLOW},
            rule=GPU_RULE.format(STRONG)
            + " Every method must end below a bigram model, on average over its seeds: otherwise "
            "not trained.",
        ),
    },
    methods={
        "clipped, step 30": {"clip": True, "lr": 30.0},
        "not clipped, step 2": {"clip": False, "lr": 2.0},
        "clipped, step 2": {"clip": True, "lr": 2.0},
    },
    null_draws=4,
    loop=loop,
    judge=partial(judge, clipped=("clipped, step 30",), least=STRONG),
    lengths={"gpu": "20 epochs with step 30, 100 with step 2 (the paper does not say)"},
    length_of=lambda s: f"{s.get('steps', 0) / EPOCH:.3g} epochs (the paper does not say)",
    rule=RULE.format(STRONG),
    designs={
        "gpu": CorrelationDesign(
            "correlated",
            false=0.0,
            paper=0.9,
            deviation=0.25,
            unit="in the log-log slope",
            source="the paper prints no number: slope 1, scatter and deviations of the record of "
            "six epochs with step 30, others of slope 0.1; gradient norms over a factor 2 are "
            "assumed (1.5 to 2.4 there)",
            parts=2,
            least=STRONG,
            readings=83,
            span=2.0,
            norm_memory=0.0,
            slope=0.1,
            false_slope=0.45,
            scatter=0.22,
        )
    },
    paper_number="none: Fig. 3-1 and 3-2 are drawn without numbers. Merity et al. report "
    "perplexity 60.0 on validation text, trained to the end",
    models={
        **dict.fromkeys(("quick", "cpu"), "one-layer LSTM on prose"),
        "gpu": "AWD-LSTM on Penn Treebank",
    },
    paper_model="AWD-LSTM on Penn Treebank",
    figures=(
        *FIGURES,
        Figure(
            "The same by the released code's estimator",
            "naive_smoothness",
            "naive smoothness",
            x="naive_norm",
            kind="points",
            x_label="‖∇f‖ on other samples",
            log_x=True,
            log_y=True,
            facet="method",
            scales=("gpu",),
            caption="The gradients at both ends of half a step are taken on different samples.",
        ),
        Figure("Loss on validation text", "validation_loss", "loss", scales=("gpu",)),
    ),
)
