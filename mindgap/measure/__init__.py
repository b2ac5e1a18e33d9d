"""Instruments: what a loss surface and its gradient noise are really like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.measure.gradients import NonFiniteError, gradient_passes
    from mindgap.measure.hessian import HessianProduct
    from mindgap.measure.min_norm import min_norm_weights
    from mindgap.measure.monitor import Monitor
    from mindgap.measure.overview import Survey, survey
    from mindgap.measure.per_sample import PerSampleNorms, per_sample_norms
    from mindgap.measure.probe import Probe, Reading
    from mindgap.measure.probes.curvature import Sharpness, sharpness
    from mindgap.measure.probes.ergodic import (
        drift,
        one_step_change,
        oscillation,
        running_average,
        window_average,
    )
    from mindgap.measure.probes.noise import (
        NoiseSample,
        noise_sample,
        squared_gradient_norm_by_halves,
    )
    from mindgap.measure.probes.shape import ShapeDistance, shape_distance
    from mindgap.measure.probes.smoothness import (
        LocalSmoothness,
        local_smoothness,
        smoothness_along_ray,
    )
    from mindgap.measure.probes.stationarity import GoldsteinDistance, goldstein_distance
    from mindgap.measure.probes.statistics import (
        TrainingStatistics,
        equilibrium,
        training_statistics,
    )
    from mindgap.measure.probes.tails import (
        InfiniteVariance,
        TailIndex,
        infinite_variance,
        tail_index,
        tail_table,
    )
    from mindgap.measure.probes.variance import VarianceGrowth, variance_growth
    from mindgap.measure.relaxed_smoothness import RelaxedSmoothness, fit_relaxed_smoothness
    from mindgap.measure.restoring import undisturbed
    from mindgap.measure.stability import stability_threshold
    from mindgap.measure.table import PROBES

__getattr__, __dir__ = lazy_names(__name__)
__all__ = __dir__()
