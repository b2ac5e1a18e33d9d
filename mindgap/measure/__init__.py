"""Instruments: what a loss surface and its gradient noise are really like."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.base.restoring import undisturbed as undisturbed
    from mindgap.measure.gradients import (
        NonFiniteError as NonFiniteError,
        gradient_passes as gradient_passes,
    )
    from mindgap.measure.hessian import HessianProduct as HessianProduct
    from mindgap.measure.min_norm import min_norm_weights as min_norm_weights
    from mindgap.measure.monitor import Monitor as Monitor
    from mindgap.measure.overview import Survey as Survey, survey as survey
    from mindgap.measure.per_sample import (
        PerSampleNorms as PerSampleNorms,
        per_sample_norms as per_sample_norms,
    )
    from mindgap.measure.probe import Probe as Probe, Reading as Reading
    from mindgap.measure.probes.curvature import (
        Sharpness as Sharpness,
        sharpness as sharpness,
        stability_threshold as stability_threshold,
    )
    from mindgap.measure.probes.ergodic import (
        drift as drift,
        one_step_change as one_step_change,
        oscillation as oscillation,
        running_average as running_average,
        window_average as window_average,
    )
    from mindgap.measure.probes.noise import (
        NoiseSample as NoiseSample,
        noise_sample as noise_sample,
    )
    from mindgap.measure.probes.shape import (
        ShapeDistance as ShapeDistance,
        shape_distance as shape_distance,
    )
    from mindgap.measure.probes.smoothness import (
        LocalSmoothness as LocalSmoothness,
        local_smoothness as local_smoothness,
        smoothness_along_ray as smoothness_along_ray,
    )
    from mindgap.measure.probes.stationarity import (
        GoldsteinDistance as GoldsteinDistance,
        goldstein_distance as goldstein_distance,
    )
    from mindgap.measure.probes.statistics import (
        TrainingStatistics as TrainingStatistics,
        equilibrium as equilibrium,
        training_statistics as training_statistics,
    )
    from mindgap.measure.probes.tails import (
        InfiniteVariance as InfiniteVariance,
        TailIndex as TailIndex,
        infinite_variance as infinite_variance,
        tail_index as tail_index,
        tail_table as tail_table,
    )
    from mindgap.measure.probes.variance import (
        VarianceGrowth as VarianceGrowth,
        variance_growth as variance_growth,
    )
    from mindgap.measure.relaxed_smoothness import (
        RelaxedSmoothness as RelaxedSmoothness,
        fit_relaxed_smoothness as fit_relaxed_smoothness,
    )
    from mindgap.measure.table import PROBES as PROBES
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "GoldsteinDistance": "probes.stationarity",
        "HessianProduct": "hessian",
        "InfiniteVariance": "probes.tails",
        "LocalSmoothness": "probes.smoothness",
        "Monitor": "monitor",
        "NoiseSample": "probes.noise",
        "NonFiniteError": "gradients",
        "PROBES": "table",
        "PerSampleNorms": "per_sample",
        "Probe": "probe",
        "Reading": "probe",
        "RelaxedSmoothness": "relaxed_smoothness",
        "ShapeDistance": "probes.shape",
        "Sharpness": "probes.curvature",
        "Survey": "overview",
        "TailIndex": "probes.tails",
        "TrainingStatistics": "probes.statistics",
        "VarianceGrowth": "probes.variance",
        "drift": "probes.ergodic",
        "equilibrium": "probes.statistics",
        "fit_relaxed_smoothness": "relaxed_smoothness",
        "goldstein_distance": "probes.stationarity",
        "gradient_passes": "gradients",
        "infinite_variance": "probes.tails",
        "local_smoothness": "probes.smoothness",
        "min_norm_weights": "min_norm",
        "noise_sample": "probes.noise",
        "one_step_change": "probes.ergodic",
        "oscillation": "probes.ergodic",
        "per_sample_norms": "per_sample",
        "running_average": "probes.ergodic",
        "shape_distance": "probes.shape",
        "sharpness": "probes.curvature",
        "smoothness_along_ray": "probes.smoothness",
        "stability_threshold": "probes.curvature",
        "survey": "overview",
        "tail_index": "probes.tails",
        "tail_table": "probes.tails",
        "training_statistics": "probes.statistics",
        "undisturbed": "mindgap.base.restoring",
        "variance_growth": "probes.variance",
        "window_average": "probes.ergodic",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
