"""One file a claim or a family of claims; :func:`catalogue` finds them all, in the order of the papers.

Every module below defines ``STUDIES``, a tuple of :class:`~mindgap.studies.spec.Study`, and imports without torch.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mindgap.base.check import one_of
from mindgap.studies.spec import Study

MODULES = (
    "b0_unbounded_smoothness",
    "b1_hyper_representation",
    "b3_hyper_cleaning",
    "b5_running_time",
    "b6_epochs",
    "b7_one_step",
    "b9_tuning_cost",
    "b10_tracking",
    "t_textbook",
    "t4_variance_reduction",
    "s1_smoothness_along_training",
    "s3_clipping_speeds_up",
    "s4_relaxed_smoothness",
    "s5_clipping_is_normalising",
    "s6_smoothness_of_models",
    "h1_gradient_noise",
    "h2_noise_drifts",
    "h3_language_model",
    "h4_masked_language_model",
    "h5_question_answering",
    "h6_attention_noise",
    "h7_infinite_variance",
    "h8_exponents",
    "h8_clipping_bounds",
    "h8_nonconvex_bounds",
    "h9_lower_bounds",
    "h10_rmsprop_is_clipping",
    "h12_images_acclip",
    "h13_clipped_moments",
    "n_nonsmooth",
    "n3_image_network",
    "n5_certificate",
    "e0_training_statistics",
    "e1_never_at_rest",
    "e3_over_fitted",
    "e4_settling",
    "e5_cycle",
    "e6_raw_losses",
    "e_averages",
    "e8_windows",
    "e11_balance",
)


@cache
def catalogue() -> dict[str, Study]:
    """Name -> study, for every study there is."""
    studies = [study for name in MODULES for study in import_module(f"{__name__}.{name}").STUDIES]
    return {study.name: study for study in studies}


def find(name: str) -> Study:
    """The study of that name; an unknown name is answered with the nearest known one."""
    return catalogue()[one_of("study", name, list(catalogue()))]
