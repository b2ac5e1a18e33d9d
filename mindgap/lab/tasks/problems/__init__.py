"""Problems with known answers or known data. A problem chooses no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.problems.augmented import augmented_network as augmented_network
    from mindgap.lab.tasks.problems.cleaning import HyperCleaning as HyperCleaning
    from mindgap.lab.tasks.problems.cleaning import area_under_curve as area_under_curve
    from mindgap.lab.tasks.problems.cleaning import corrupt as corrupt
    from mindgap.lab.tasks.problems.cleaning import hyper_cleaning as hyper_cleaning
    from mindgap.lab.tasks.problems.language import language_model as language_model
    from mindgap.lab.tasks.problems.language import masked_language_model as masked_language_model
    from mindgap.lab.tasks.problems.quadratic import Quadratic as Quadratic
    from mindgap.lab.tasks.problems.quadratic import quadratic_loss as quadratic_loss
    from mindgap.lab.tasks.problems.quadratic import quadratic_problem as quadratic_problem
    from mindgap.lab.tasks.problems.questions import best_spans as best_spans
    from mindgap.lab.tasks.problems.questions import exact_and_f1 as exact_and_f1
    from mindgap.lab.tasks.problems.questions import question_answering as question_answering
    from mindgap.lab.tasks.problems.regularisation import RegularisationSelection as RegularisationSelection
    from mindgap.lab.tasks.problems.regularisation import covtype_selection as covtype_selection
    from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection as ijcnn1_selection
    from mindgap.lab.tasks.problems.regularisation import multiclass_selection as multiclass_selection
    from mindgap.lab.tasks.problems.representation import HyperRepresentation as HyperRepresentation
    from mindgap.lab.tasks.problems.representation import Tasks as Tasks
    from mindgap.lab.tasks.problems.representation import hyper_representation as hyper_representation
    from mindgap.lab.tasks.problems.representation import split_table as split_table
    from mindgap.lab.tasks.problems.training import TrainingProblem as TrainingProblem
    from mindgap.lab.tasks.problems.training import cifar_network as cifar_network
    from mindgap.lab.tasks.problems.training import digits_network as digits_network
    from mindgap.lab.tasks.problems.training import prose_lstm as prose_lstm
    from mindgap.lab.tasks.problems.training import prose_transformer as prose_transformer
    from mindgap.lab.tasks.problems.unbounded import UnboundedSmoothness as UnboundedSmoothness
    from mindgap.lab.tasks.problems.unbounded import unbounded_problem as unbounded_problem

_WHERE = {
    "augmented_network": "augmented",
    **dict.fromkeys(("HyperCleaning", "area_under_curve", "corrupt", "hyper_cleaning"), "cleaning"),
    **dict.fromkeys(("language_model", "masked_language_model"), "language"),
    **dict.fromkeys(("Quadratic", "quadratic_loss", "quadratic_problem"), "quadratic"),
    **dict.fromkeys(("best_spans", "exact_and_f1", "question_answering"), "questions"),
    **dict.fromkeys(
        ("RegularisationSelection", "covtype_selection", "ijcnn1_selection", "multiclass_selection"), "regularisation"
    ),
    **dict.fromkeys(("HyperRepresentation", "Tasks", "hyper_representation", "split_table"), "representation"),
    **dict.fromkeys(("TrainingProblem", "cifar_network", "digits_network"), "training"),
    **dict.fromkeys(("prose_lstm", "prose_transformer"), "training"),
    **dict.fromkeys(("UnboundedSmoothness", "unbounded_problem"), "unbounded"),
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
