"""BERT at scale gpu: pre-training on masked word pieces and fine-tuning on questions, by the
loop of `device_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mindgap.base.rng import torch_stream
from mindgap.lab.studies.device_runs import device_of, device_run
from mindgap.lab.studies.spec import Row, Trial

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.models import MaskedBert

    #: Parameters -> optimizer.
    Build = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

#: Width, dropout and windows are those of BERT-base. The text is the largest at hand: 5.4 million
#: words.
BERT: dict[str, Any] = {
    "words": 8192,
    "width": 768,
    "length": 128,
    "dropout": 0.1,
    "reviews": True,
    "device": "cuda",
}
PRE_TRAINING: dict[str, Any] = {**BERT, "batch": 32, "held_out": 1024, "schedule": "linear"}

#: The model of scale gpu, and why it is not the paper's.
BERT_ON_TEXT = (
    "width 768, random start, 8,192 word pieces) on WikiText-2 and the reviews of FDU-MTL"
)


def masked_run(
    trial: Trial, layers: int, build: Build, stream: str
) -> tuple[MaskedBert, Iterator[Row]]:
    """BERT from a random start, and the rows of its pre-training on masked word pieces.

    Args:
        trial: with the settings of :data:`PRE_TRAINING`, ``steps`` and ``every``.
        layers: of the network; it has one head per 64 of width.
        build: parameters -> optimizer.
        stream: the network's start, order and masks of the text are drawn from streams of this
            name.

    Returns:
        The network, and its rows, which train it while they are read. Beside the columns of
        :func:`~mindgap.lab.studies.device_runs.device_run` a row has loss and accuracy at masked
        places of validation and test text, and ``by_frequency``, the loss on test text of a guess
        from the frequencies of word pieces alone.
    """
    from mindgap.lab.tasks.models import MaskedBert
    from mindgap.lab.tasks.problems.language import masked_loss
    from mindgap.lab.tasks.problems.word_pieces import masked_reading, masked_text

    device = device_of(trial)
    text = masked_text(
        device, **{name: trial[name] for name in ("words", "length", "held_out", "reviews")}
    )
    model = _seeded_bert(MaskedBert, trial, layers, f"{stream} network").to(device)
    loss_by_frequency = text.by_frequency()

    def epoch(number: int) -> Any:
        """The batches of pass ``number`` over the text, cut and masked anew."""
        return text.batches(
            trial["batch"], torch_stream(trial.seed, f"{stream} text", number, device=device)
        )

    def read() -> Row:
        """Loss and accuracy at the masked places of validation and test text, and as
        ``by_frequency`` the loss of a guess from word frequencies alone, the same in every row.
        """
        row: Row = {"by_frequency": loss_by_frequency}
        for part, batch in text.parts.items():
            row[f"{part}_loss"], row[f"{part}_accuracy"] = masked_reading(model, batch)
        return row

    return model, _train(trial, model, masked_loss, build(list(model.parameters())), epoch, read)


def pre_trained_encoder(
    trial: Trial, layers: int, build: Build, stream: str
) -> dict[str, torch.Tensor]:
    """The encoder's weights at the end of :func:`masked_run`, by name.

    It is trained once per machine and kept in the cache folder, under a name made from all that it
    depends on. Several processes that ask at the same time wait for the one that trains it.

    Args:
        trial, layers, build, stream: as :func:`masked_run` takes them.
    """
    import torch

    from mindgap.lab.tasks.data.prepared import prepared
    from mindgap.record.schema import content_hash

    def make() -> dict[str, Any]:
        """Train to the end and return the encoder's weights as arrays."""
        model, rows = masked_run(trial, layers, build, stream)
        for _ in rows:
            pass
        return {name: value.cpu().numpy() for name, value in model.encoder.state_dict().items()}

    name = content_hash([trial.method, trial.seed, dict(trial.settings), layers, stream])
    return {key: torch.as_tensor(array) for key, array in prepared(f"bert-{name}", make).items()}


def question_run(
    trial: Trial, layers: int, encoder: dict[str, torch.Tensor], build: Build, stream: str
) -> Iterator[Row]:
    """Fine-tune an encoder on SQuAD's questions; exact match and F1 on validation and test
    questions.

    Args:
        trial: with the settings of :data:`BERT`, ``question``, ``passage``, ``batch``,
            ``schedule``, ``steps`` and ``every``.
        layers: of the encoder.
        encoder: its state, which :func:`pre_trained_encoder` returns.
        build: parameters -> optimizer.
        stream: the start of the two scores and the order of questions are drawn from streams of
            this name.

    Yields:
        Beside the columns of :func:`~mindgap.lab.studies.device_runs.device_run`, for both parts,
        ``<part>_exact``, ``<part>_f1`` and ``<part>_miss`` (1 - F1), and ``by_place``, the share
        of test questions that the most frequent answer of the training questions (as a pair of
        places in the passage) answers.
    """
    import torch

    from mindgap.lab.tasks.models import QuestionBert
    from mindgap.lab.tasks.problems.questions import best_spans, exact_and_f1
    from mindgap.lab.tasks.problems.word_pieces import LONGEST, squad_questions

    device = device_of(trial)
    questions = squad_questions(
        device, **{name: trial[name] for name in ("words", "question", "passage", "reviews")}
    )
    model = _seeded_bert(QuestionBert, trial, layers, f"{stream} network")
    model.encoder.load_state_dict(encoder)
    model.to(device)
    # Shape (questions, answers of each, 2): first and last place of an answer.
    _, train_answers = questions.parts["train"]
    places, counts = train_answers[:, 0].unique(dim=0, return_counts=True)
    most_frequent = places[counts.argmax()]

    def epoch(number: int) -> Any:
        """The batches of pass ``number`` over the questions, in random order."""
        return questions.batches(
            trial["batch"], torch_stream(trial.seed, f"{stream} order", number, device=device)
        )

    @torch.no_grad()
    def read() -> Row:
        """The columns of a row, computed on 256 questions at a time to save memory; scores that are
        not finite count as numbers. ``by_place`` is the share of test questions whose answer lies
        where those of most training questions do.
        """
        row: Row = {}
        model.eval()
        for part in ("validation", "test"):
            inputs, answers = questions.parts[part]
            scores = torch.cat([questions.scores(model, chunk) for chunk in inputs.split(256)])
            finite_scores = scores.float().nan_to_num()
            spans = best_spans(finite_scores, after=questions.after, longest=LONGEST)
            exact, f1 = exact_and_f1(spans, answers)
            row |= {f"{part}_exact": exact, f"{part}_f1": f1, f"{part}_miss": 1 - f1}
        model.train()
        by_place, _ = exact_and_f1(most_frequent.expand(len(answers), 2), answers)
        return {**row, "by_place": by_place}

    yield from _train(trial, model, questions.loss, build(list(model.parameters())), epoch, read)


def _seeded_bert(model_class: Any, trial: Trial, layers: int, stream: str) -> Any:
    """A BERT in the sizes of a trial from a random start, on the CPU.

    Args:
        model_class: ``MaskedBert`` or ``QuestionBert``.
        trial: with ``words``, ``width``, ``length`` and ``dropout``. There is one head per 64 of
            width, and the inner width is 4 times the width, as in BERT-base.
        layers: of the encoder.
        stream: the network's start depends on the seed and this name alone.
    """
    from mindgap.lab.tasks.problems.training import seeded_network

    words, width = trial["words"], trial["width"]
    options = {
        "layers": layers,
        "heads": max(width // 64, 1),
        "inner": 4 * width,
        "length": trial["length"],
        "dropout": trial["dropout"],
    }
    return seeded_network(lambda: model_class(words, width, **options), trial.seed, stream)


def _train(
    trial: Trial,
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    epoch: Callable[[int], Any],
    read: Callable[[], Row],
) -> Iterator[Row]:
    """Train by :func:`~mindgap.lab.studies.device_runs.device_run`, whose arguments these are.

    On CUDA the network trains in bfloat16 and is read in TF32. ``steps``, ``every`` and
    ``schedule`` are the trial's.
    """
    from mindgap.measure.captured import tf32

    with tf32(True):
        yield from device_run(
            trial,
            model,
            loss,
            optimizer,
            epoch,
            read,
            steps=trial["steps"],
            every=trial["every"],
            schedule=trial["schedule"],
            bfloat16=True,
        )
