"""One file a claim or a family of claims; :func:`catalogue` finds them all, in the order of the papers.

Every module below defines ``STUDIES``, a tuple of :class:`~mindgap.lab.studies.spec.Study`, and imports without torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mindgap.base.check import one_of
from mindgap.lab.studies.spec import Study

MODULES = (
    "bilevel.b0_unbounded_smoothness",
    "bilevel.b1_hyper_representation",
    "bilevel.b3_hyper_cleaning",
    "bilevel.b5_running_time",
    "bilevel.b6_epochs",
    "bilevel.b7_one_step",
    "bilevel.b9_tuning_cost",
    "bilevel.b10_tracking",
    "textbook.t_textbook",
    "textbook.t4_variance_reduction",
    "smoothness.s1_smoothness_along_training",
    "smoothness.s3_clipping_speeds_up",
    "smoothness.s4_relaxed_smoothness",
    "smoothness.s5_clipping_is_normalising",
    "smoothness.s6_smoothness_of_models",
    "heavy_tails.h1_gradient_noise",
    "heavy_tails.h2_noise_drifts",
    "heavy_tails.h3_language_model",
    "heavy_tails.h4_masked_language_model",
    "heavy_tails.h5_question_answering",
    "heavy_tails.h6_attention_noise",
    "heavy_tails.h7_infinite_variance",
    "heavy_tails.h8_exponents",
    "heavy_tails.h8_clipping_bounds",
    "heavy_tails.h8_nonconvex_bounds",
    "heavy_tails.h9_lower_bounds",
    "heavy_tails.h10_rmsprop_is_clipping",
    "heavy_tails.h12_images_acclip",
    "heavy_tails.h13_clipped_moments",
    "kinks.n_nonsmooth",
    "kinks.n3_image_network",
    "kinks.n5_certificate",
    "never_at_rest.e0_training_statistics",
    "never_at_rest.e1_never_at_rest",
    "never_at_rest.e3_over_fitted",
    "never_at_rest.e4_settling",
    "never_at_rest.e5_cycle",
    "never_at_rest.e6_raw_losses",
    "never_at_rest.e_averages",
    "never_at_rest.e8_windows",
    "never_at_rest.e11_balance",
)


@cache
def catalogue() -> dict[str, Study]:
    """Name -> study, for every study there is."""
    studies = [study for name in MODULES for study in import_module(f"{__name__}.{name}").STUDIES]
    return {study.name: study for study in studies}


def find(name: str) -> Study:
    """The study of that name; an unknown name is answered with the nearest known one."""
    return catalogue()[one_of("study", name, list(catalogue()))]
