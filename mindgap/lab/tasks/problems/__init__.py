"""Problems with known answers or known data. A problem chooses no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from mindgap.lab.tasks.problems.regularisation import (
        RegularisationSelection as RegularisationSelection,
    )
    from mindgap.lab.tasks.problems.regularisation import covtype_selection as covtype_selection
    from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection as ijcnn1_selection
    from mindgap.lab.tasks.problems.regularisation import (
        multiclass_selection as multiclass_selection,
    )
    from mindgap.lab.tasks.problems.representation import HyperRepresentation as HyperRepresentation
    from mindgap.lab.tasks.problems.representation import Tasks as Tasks
    from mindgap.lab.tasks.problems.representation import (
        hyper_representation as hyper_representation,
    )
    from mindgap.lab.tasks.problems.representation import split_table as split_table
    from mindgap.lab.tasks.problems.running_text import RunningText as RunningText
    from mindgap.lab.tasks.problems.running_text import going_on as going_on
    from mindgap.lab.tasks.problems.running_text import running_loss as running_loss
    from mindgap.lab.tasks.problems.training import TrainingProblem as TrainingProblem
    from mindgap.lab.tasks.problems.training import cifar_network as cifar_network
    from mindgap.lab.tasks.problems.training import digits_network as digits_network
    from mindgap.lab.tasks.problems.training import prose_lstm as prose_lstm
    from mindgap.lab.tasks.problems.training import prose_transformer as prose_transformer
    from mindgap.lab.tasks.problems.unbounded import UnboundedSmoothness as UnboundedSmoothness
    from mindgap.lab.tasks.problems.unbounded import unbounded_problem as unbounded_problem
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "HyperCleaning": "cleaning",
        "HyperRepresentation": "representation",
        "Quadratic": "quadratic",
        "RegularisationSelection": "regularisation",
        "RunningText": "running_text",
        "Tasks": "representation",
        "TrainingProblem": "training",
        "UnboundedSmoothness": "unbounded",
        "area_under_curve": "cleaning",
        "augmented_network": "augmented",
        "best_spans": "questions",
        "cifar_network": "training",
        "corrupt": "cleaning",
        "covtype_selection": "regularisation",
        "digits_network": "training",
        "exact_and_f1": "questions",
        "going_on": "running_text",
        "hyper_cleaning": "cleaning",
        "hyper_representation": "representation",
        "ijcnn1_selection": "regularisation",
        "language_model": "language",
        "masked_language_model": "language",
        "multiclass_selection": "regularisation",
        "prose_lstm": "training",
        "prose_transformer": "training",
        "quadratic_loss": "quadratic",
        "quadratic_problem": "quadratic",
        "question_answering": "questions",
        "running_loss": "running_text",
        "split_table": "representation",
        "unbounded_problem": "unbounded",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
