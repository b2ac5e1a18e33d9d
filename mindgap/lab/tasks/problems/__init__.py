"""Problems with known answers or known data. A problem chooses no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.tasks.problems.augmented import augmented_network as augmented_network
    from mindgap.lab.tasks.problems.cleaning import (
        HyperCleaning as HyperCleaning,
        area_under_curve as area_under_curve,
        corrupt as corrupt,
        hyper_cleaning as hyper_cleaning,
    )
    from mindgap.lab.tasks.problems.language import (
        language_model as language_model,
        masked_language_model as masked_language_model,
    )
    from mindgap.lab.tasks.problems.quadratic import (
        Quadratic as Quadratic,
        quadratic_loss as quadratic_loss,
        quadratic_problem as quadratic_problem,
    )
    from mindgap.lab.tasks.problems.questions import (
        best_spans as best_spans,
        exact_and_f1 as exact_and_f1,
        question_answering as question_answering,
    )
    from mindgap.lab.tasks.problems.regularisation import (
        RegularisationSelection as RegularisationSelection,
        covtype_selection as covtype_selection,
        ijcnn1_selection as ijcnn1_selection,
        multiclass_selection as multiclass_selection,
    )
    from mindgap.lab.tasks.problems.representation import (
        HyperRepresentation as HyperRepresentation,
        Tasks as Tasks,
        hyper_representation as hyper_representation,
        split_table as split_table,
    )
    from mindgap.lab.tasks.problems.running_text import (
        RunningText as RunningText,
        going_on as going_on,
        running_loss as running_loss,
    )
    from mindgap.lab.tasks.problems.training import (
        TrainingProblem as TrainingProblem,
        cifar_network as cifar_network,
        digits_network as digits_network,
        prose_lstm as prose_lstm,
        prose_transformer as prose_transformer,
    )
    from mindgap.lab.tasks.problems.unbounded import (
        UnboundedSmoothness as UnboundedSmoothness,
        unbounded_problem as unbounded_problem,
    )
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
