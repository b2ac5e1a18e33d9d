"""Problems with known answers or known data. A problem chooses no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.problems.augmented import *  # noqa: F403
    from mindgap.lab.tasks.problems.cleaning import *  # noqa: F403
    from mindgap.lab.tasks.problems.language import *  # noqa: F403
    from mindgap.lab.tasks.problems.quadratic import *  # noqa: F403
    from mindgap.lab.tasks.problems.questions import *  # noqa: F403
    from mindgap.lab.tasks.problems.regularisation import *  # noqa: F403
    from mindgap.lab.tasks.problems.representation import *  # noqa: F403
    from mindgap.lab.tasks.problems.running_text import *  # noqa: F403
    from mindgap.lab.tasks.problems.training import *  # noqa: F403
    from mindgap.lab.tasks.problems.unbounded import *  # noqa: F403

_WHERE = {
    "augmented_network": "augmented",
    **dict.fromkeys(("HyperCleaning", "area_under_curve", "corrupt", "hyper_cleaning"), "cleaning"),
    **dict.fromkeys(("language_model", "masked_language_model"), "language"),
    **dict.fromkeys(("Quadratic", "quadratic_loss", "quadratic_problem"), "quadratic"),
    **dict.fromkeys(("best_spans", "exact_and_f1", "question_answering"), "questions"),
    **dict.fromkeys(
        (
            "RegularisationSelection",
            "covtype_selection",
            "ijcnn1_selection",
            "multiclass_selection",
        ),
        "regularisation",
    ),
    **dict.fromkeys(
        ("HyperRepresentation", "Tasks", "hyper_representation", "split_table"), "representation"
    ),
    **dict.fromkeys(("RunningText", "going_on", "running_loss", "running_text"), "running_text"),
    **dict.fromkeys(("TrainingProblem", "cifar_network", "digits_network"), "training"),
    **dict.fromkeys(("prose_lstm", "prose_transformer"), "training"),
    **dict.fromkeys(("UnboundedSmoothness", "unbounded_problem"), "unbounded"),
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
