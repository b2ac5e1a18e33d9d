"""Keep records in ``results/`` and write what they say into ``docs/reproduction.md`` and the
README.

    python docs/tools/results.py keep RUNS ...
        pack the finished studies below RUNS, judged again by today's rules
    python docs/tools/results.py write            write the documents from results/ alone

Nothing is run. ``tests/docs/test_results.py`` checks that the documents are those of ``results/``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import catalogue, find
from mindgap.lab.studies.null import null_rates
from mindgap.lab.studies.run import finished_runs, judge_folder
from mindgap.lab.studies.spec import SCALES, Study
from mindgap.lab.studies.times import reference_times
from mindgap.lab.studies.verdict import LEAST_SEEDS
from mindgap.lab.theory.erratum import ERRATA, about, counts
from mindgap.record.claims import GROUPS, claim_order
from mindgap.record.folders import study_folders
from mindgap.record.forms import StudyDescription, read_form, write_form
from mindgap.record.packed import SUFFIX, pack
from mindgap.record.schema import RecordError, Verdict
from mindgap.record.store import (
    REGISTERED_FILE,
    STUDY_FILE,
    TUNING_FILE,
    VERDICT_FILE,
    read_run,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
LIMIT = 20_000_000
#: Study -> minutes of its search and runs at scale gpu on one H200 that 12 to 15 processes share.
#: Estimated from rates measured on 2026-11-16, all processes together: per second 700 steps of
#: ResNet20, 670 oracle calls of B3, or 700 gradients of BERT; and 180 steps of BERT of 6 layers on
#: 32 windows of 128 word pieces (measured the day before).
GPU_MINUTES = {
    "b3-hyper-cleaning": 6,
    "b4-hyper-cleaning": 4,
    "b5-running-time": 1,
    "b6-epochs": 2,
    "b7-one-step": 3,
    "b6-epochs-pairs": 1,
    "b6-epochs-reviews": 1,
    "b14-as-released": 4,
    "b1-hyper-representation": 5,
    "b2-hyper-representation": 7,
    "b5-running-time-pairs": 1,
    "b5-running-time-reviews": 1,
    "b14-released-representation": 2,
    "b7-one-step-representation": 2,
    "h2-noise-drifts": 6,
    "h4-masked-language-model": 14,
    "h5-question-answering": 5,
    "h11-coordinates-or-norms": 4,
    "h12-images-acclip": 6,
    "h14-order-of-the-moment": 4,
    "h15-steps-and-thresholds": 4,
    "h16-noise-of-the-appendix": 3,
    "s2-smoothness-image-model": 3,
    "s3-clipping-speeds-up": 5,
    "s7-clipping-generalises": 12,
    "t4-variance-reduction": 3,
    "t5-momentum-in-practice": 4,
    "e0-training-statistics": 2,
    "e1-image-network": 2,
    "e2-language-model": 2,
    "e3-over-fitted": 3,
    "e4-estimates-settle": 2,
    "e6-raw-losses": 2,
    "e11-balance-and-edge": 2,
}
#: Study -> a further setting at scale gpu, and its minutes.
FURTHER = {"h4-masked-language-model": ("depths=12", 26)}
MARKS = ("<!-- verdicts: written by docs/tools/results.py -->", "<!-- end of verdicts -->")


def keep(folder: Path, out: Path = RESULTS) -> str:
    """Pack one ``<study>/<scale>`` folder with today's description and verdict; what was done,
    in words.
    """
    name, scale = read_form(StudyDescription, folder / STUDY_FILE).name, folder.name
    study = find(name)
    _, _, verdict = judge_folder(folder)
    partial = ("missing or failed", "never run", "not judged without")
    if verdict.verdict == "error" or any(words in verdict.measured for words in partial):
        return f"left out: {name} {scale}: {verdict.measured}"
    files = read_form(Verdict, folder / VERDICT_FILE).files
    runs = finished_runs(folder / file for file in files)
    rates = {} if scale in study.designs else null_rates(study, runs)
    with tempfile.TemporaryDirectory() as place:
        chosen = Path(place) / scale
        chosen.mkdir()
        beside = [name for name in (TUNING_FILE, REGISTERED_FILE) if (folder / name).exists()]
        for file in (*files, *beside):
            shutil.copy(folder / file, chosen / file)
        write_form(chosen / STUDY_FILE, replace(study.describe(scale), files=files))
        seeds = len({run.header.seed for run in runs})
        write_form(chosen / VERDICT_FILE, replace(verdict, files=files, seeds=seeds, null=rates))
        archive = out / name / f"{scale}{SUFFIX}"
        pack(chosen, archive)
    return f"kept: {name} {scale}: {verdict.verdict}, {archive.stat().st_size / 1000:.0f} kB"


def best(results: Path = RESULTS) -> dict[str, Path]:
    """Study -> the folder whose verdict is shown: one whose rule was registered before the runs if
    there is one, else one whose network is trained, else the largest scale that is kept.
    """

    def worth(folder: Path) -> tuple[bool, bool, bool, int]:
        verdict, scale = read_form(Verdict, folder / VERDICT_FILE), folder.name
        registered = verdict.registered.startswith("registered")
        large = scale in ("gpu", "paper")
        return registered, large, verdict.verdict != "not trained", SCALES.index(scale)

    folders = sorted(study_folders(results), key=worth)
    return {folder.parent.name: folder for folder in folders}


def claims() -> dict[str, tuple[str, str]]:
    """Claim -> what is stated and where it stands, from ``docs/claims.md``."""
    found: dict[str, tuple[str, str]] = {}
    for line in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines():
        if re.match(r"\| [A-Z]\d", line):
            cell, stated, where = (part.strip() for part in line.strip("| ").split(" | ", 2))
            names = re.findall(r"[A-Z]\d+", cell)
            for letter, first, last in re.findall(r"([A-Z])(\d+) to \1(\d+)", cell):
                names += [f"{letter}{n}" for n in range(int(first), int(last) + 1)]
            found.update(dict.fromkeys(names, (stated, where)))
    return found


def settle(study: Study, scale: str, verdict: Verdict | None) -> str:
    """What would settle the claim: the paper's model if ours is another, more seeds if the rule
    could not decide.
    """
    larger = (
        [s for s in SCALES[SCALES.index(scale) + 1 :] if s in study.scales and s != "paper"]
        if scale
        else []
    )
    parts = []
    if not scale:
        minutes = reference_times().get(study.name, 0) / 60
        span = f" (about {max(1, round(minutes))} min on one core)" if minutes else ""
        parts.append(f"not run: `mindgap run {study.name}`{span}")
    elif larger:
        here = f"{study.name} --scale {larger[-1]}"
        searched = (
            study.at(larger[-1]).grid and study.tuned_by in ("", study.name) and larger[-1] == "gpu"
        )
        commands = (
            f"`mindgap tune {here} --grid`, then " if searched else ""
        ) + f"`mindgap run {here}`"
        minutes = GPU_MINUTES.get(study.name) if larger[-1] == "gpu" else None
        parts.append(
            f"not run at scale {larger[-1]}: {commands}"
            + (f", about {minutes} min" if minutes else "")
        )
    if study.name in FURTHER:
        more, minutes = FURTHER[study.name]
        parts.append(
            f"not run: scale gpu with `{more}` and a folder of its own (`--out`), about {minutes} "
            "min"
        )
    here = study.models.get(scale, "")
    if study.paper_model and not here.startswith(study.paper_model):
        parts.append(f"the paper's own model, {study.paper_model}")
    elif study.paper_model and (remark := here.removeprefix(study.paper_model)):
        parts.append(f"the paper's sizes where ours differ{remark}")
    if verdict is not None and verdict.verdict == "not trained":
        parts.append("a longer run or a larger network: the gate failed")
    if verdict is not None and verdict.verdict == "inconclusive":
        parts.append("more seeds or a longer run: the rule could not decide")
    return "; ".join(parts) or "nothing further: the statement was checked as it stands"


def rates(verdict: Verdict) -> tuple[str, str]:
    """How often the rule errs and what it finds, from a simulation: a name and the words."""
    if verdict.power:
        return "Power of the rule", verdict.power["words"]
    if not verdict.null:
        return "Power of the rule", "not simulated: the rule does not compare methods"
    words = ", ".join(
        f"*{word}* {100 * share:.0f} %" for word, share in verdict.null.items() if word != "draws"
    )
    return "Where all methods are equal", f"the rule says {words}"


def printed_and_corrected(verdict: Verdict) -> tuple[str, str]:
    """The verdicts on the statement as printed and as corrected; the same if there is one
    reading only.
    """
    return verdict.as_printed or verdict.verdict, verdict.as_corrected or verdict.verdict


def cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def model_of(study: Study, scale: str) -> str:
    """Our model in words."""
    return study.model(scale) or "the statement is about no model"


def block(study: Study, folder: Path | None) -> list[str]:
    """One study's part of the document."""
    verdict = read_form(Verdict, folder / VERDICT_FILE) if folder else None
    scale = folder.name if folder else ""
    rows = [(study.heading, f"{study.statement} ({'about ' * study.ours}{study.source})")]
    if not study.ours:
        model = study.paper_model or "none: the statement is about no model"
        none = (
            "none printed: a figure"
            if study.paper_model
            else "none: a formula, checked as it stands"
        )
        rows.append(("The paper's model", model))
        rows.append(("The paper's number", study.paper_number or none))
    rows.append(("Our model", f"{model_of(study, scale)} (scale {scale})" if folder else "not run"))
    if folder is not None and verdict is not None:
        header = read_run(folder / verdict.files[0]).header
        versions = ", ".join(f"{k} {v}" for k, v in header.versions.items())
        machine = ", ".join(f"{k} {v}" for k, v in header.machine.items())
        command = header.command
        if " --method " in command:  # a study that ran in parts: the command of all of them
            command = re.sub(r" --(method|seeds) .*?(?= --|$)", "", command)
        rows += [
            ("We measured", verdict.measured),
            *_verdicts(study, verdict),
            (
                "Length",
                study.lengths.get(scale) or ("not stated" if study.model(scale) else "no network"),
            ),
            ("Gate", verdict.gate or ("none" if study.model(scale) else "no network")),
            rates(verdict),
            *([("Registered", verdict.registered)] if verdict.registered else []),
            (
                "Run",
                f"{len(verdict.files)} runs, {verdict.seeds} seeds, {header.started[:10]}, "
                f"{versions}; "
                f"{machine}; `{command}`",
            ),
        ]
    else:
        rows.append(("Verdict", "not run"))
    rows.append(("What would settle it", settle(study, scale, verdict)))
    head = f"### {study.claim} · `{study.name}`"
    return [
        head,
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {cell(text)} |" for name, text in rows),
        "",
    ]


def _verdicts(study: Study, verdict: Verdict) -> list[tuple[str, str]]:
    """The verdict on our question; on a paper's statement as printed and as corrected, and why
    they differ.
    """
    if study.ours:
        return [("Verdict", verdict.verdict)]
    rows = list(zip(("Verdict as printed", "Verdict as corrected"), printed_and_corrected(verdict)))
    errata = ", ".join(f"{row.place} ({row.kind})" for row in about(study.name))
    return [*rows, ("Errata", f"{errata}: [errata.md](errata.md)")] if errata else rows


def document() -> str:
    """``docs/reproduction.md``."""
    kept = best()
    studies = sorted(catalogue().values(), key=lambda s: claim_order(s.claim, s.name))
    lines = [
        "# What was reproduced",
        "",
        "Written by `python docs/tools/results.py write` from the records in `results/`; do not "
        "edit it by hand.",
        "`mindgap check results` gives the same verdicts from the records, `mindgap report "
        "results` draws the figures,",
        "both without running anything. Where a model is involved, a verdict at scale `quick` or "
        "`cpu` is about a toy;",
        "the model is named beside each verdict. " + slips(),
        "",
        "| claim | study | scale | our model | as printed | as corrected |",
        "|---|---|---|---|---|---|",
    ]
    for claim in sorted(claims(), key=claim_order):
        mine = [s for s in studies if s.claim == claim]
        for study in mine:
            folder = kept.get(study.name)
            verdict = read_form(Verdict, folder / VERDICT_FILE) if folder else None
            model = (
                cell(
                    model_of(study, folder.name)
                    + (f" ({verdict.length})" if verdict and verdict.length else "")
                )
                if folder
                else "–"
            )
            words = verdict or Verdict("", "", as_printed="not run", as_corrected="not run")
            link = f"[`{study.name}`](#{claim.lower()}--{study.name})"
            verdicts = printed_and_corrected(words)
            parts = (
                claim,
                link,
                folder.name if folder else "not run",
                model,
                *(("our question", words.as_corrected) if study.ours else verdicts),
            )
            lines.append(f"| {' | '.join(parts)} |")
        if not mine:
            stated, where = claims()[claim]
            where = deviation() if claim == "B16" else where
            lines.append(
                f"| {claim} | {cell(stated)} | – | no study of its own | {cell(where)} | – |"
            )
    lines.append("")
    for letter, title in GROUPS.items():
        lines += [f"## {title.capitalize()}", ""]
        for study in (s for s in studies if s.claim[0] == letter):
            lines += block(study, kept.get(study.name))
    return "\n".join(lines).rstrip() + "\n"


def deviation() -> str:
    """Answer A3 on SLIP: does every method's deviation between seeds grow from p = 0.2 to 0.4?

    From the last test accuracies of the records of B3 and B4 at the largest scale that both have. A
    method answers yes or no where an F-test of the two variances does, at 5 % for all methods
    together.
    """
    from scipy.stats import f as fisher

    kept = {(folder.parent.name, folder.name): folder for folder in study_folders(RESULTS)}
    names = ("b3-hyper-cleaning", "b4-hyper-cleaning")
    scale = next(s for s in reversed(SCALES) if all((name, s) in kept for name in names))
    low, high = (_last_accuracies(kept[name, scale]) for name in names)
    methods = [m for m in low if m in high and min(len(low[m]), len(high[m])) >= LEAST_SEEDS]
    grows, clearly = [], {"grow": 0, "shrink": 0}
    for method in methods:
        ratio = float(np.var(high[method], ddof=1) / np.var(low[method], ddof=1))
        degrees = len(high[method]) - 1, len(low[method]) - 1
        grows += [method] if ratio > 1 else []
        clearly["grow"] += fisher.sf(ratio, *degrees) < 0.05 / len(methods)
        clearly["shrink"] += fisher.cdf(ratio, *degrees) < 0.05 / len(methods)
    word = (
        "does not hold"
        if clearly["shrink"]
        else "holds"
        if clearly["grow"] == len(methods)
        else "inconclusive"
    )
    return (
        f"{word}, from the records of the studies of B3 and B4 at scale {scale}: the deviation of "
        f"the last test accuracy is larger at p = 0.4 for {len(grows)} of {len(methods)} methods "
        f"({', '.join(grows)}), clearly larger for {clearly['grow']} and clearly smaller for "
        f"{clearly['shrink']} (8 seeds, F-tests at 5 % together)"
    )


def _last_accuracies(folder: Path) -> dict[str, list[float]]:
    """Method -> the last test accuracy of each seed."""
    found: dict[str, list[float]] = {}
    for file in read_form(Verdict, folder / VERDICT_FILE).files:
        run = read_run(folder / file)
        if run.rows and "test_accuracy" in run.rows[-1]:
            found.setdefault(run.header.method, []).append(run.rows[-1]["test_accuracy"])
    return found


def corrected_only() -> list[str]:
    """Kept studies of a formula that hold only as corrected: those that judge a printed sentence
    which a certificate refutes (``mindgap/lab/theory/errata``).
    """
    return [
        name
        for name, folder in best().items()
        if not find(name).model(folder.name) and any(row.certificate for row in about(name))
    ]


def slips() -> str:
    """How many printed sentences are wrong, by the records of the errata; on every page alike."""
    kinds = ", ".join(f"{number} *{kind}*" for kind, number in counts().items())
    refuted = len(corrected_only())
    return (
        f"The papers' own text: {len(ERRATA)} errata, {kinds}; {refuted} studies judge a printed "
        "sentence that a certificate refutes, and hold as corrected."
    )


def verdict_list() -> str:
    """The README's list: how all studies came out, and the decided verdicts on models, each
    with its model.
    """
    judged = [
        (find(name), folder, read_form(Verdict, folder / VERDICT_FILE))
        for name, folder in best().items()
    ]
    judged.sort(key=lambda entry: claim_order(entry[0].claim, entry[0].name))
    own = [entry for entry in judged if entry[0].ours]
    judged = [entry for entry in judged if not entry[0].ours]
    on_models = [
        (study, folder, verdict) for study, folder, verdict in judged if study.model(folder.name)
    ]
    formulas = [verdict for study, folder, verdict in judged if not study.model(folder.name)]
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts().items())
    toys = [entry for entry in on_models if entry[0].model(entry[1].name).startswith("toy")]
    large = [entry for entry in on_models if entry not in toys]
    decided = [entry for entry in toys if entry[2].verdict != "inconclusive"]
    claims = {study.claim for study, *_ in decided}
    undecided = dict.fromkeys(
        f"{study.claim} ({cell(study.title)})" if study.claim in claims else study.claim
        for study, _, verdict in toys
        if verdict.verdict == "inconclusive"
    )
    return "\n".join(
        [
            f"- {len(formulas)} studies are about formulas and made-up problems: "
            f"{_counts(formulas)}. {len(corrected_only())} of those that hold do so only after a "
            "slip in the printed text is corrected.",
            f"- {len(ERRATA)} places of the papers' text are listed as [errata](docs/errata.md): "
            f"{kinds}. *Refuted* has a certificate that a test runs.",
            f"- {len(large)} studies ran on the papers' networks or on named proxies: "
            f"{_counts([verdict for *_, verdict in large])}.",
            f"- {len(toys)} studies ran on toys, networks much smaller than the papers': "
            f"{_counts([verdict for *_, verdict in toys])}. They say nothing certain about the "
            "papers' own models.",
            f"- {len(own)} studies ask questions of ours, which no paper states "
            f"({', '.join(entry[0].name for entry in own)}): "
            f"{_counts([verdict for *_, verdict in own])}.",
            "",
            "On the papers' networks or proxies:",
            "",
            *_listed(large, network=True),
            "",
            "*Length* is that of the paper's training, *trained* says whether a control shows that "
            "the network has learned (where it fails, nothing is decided), and *power* how often "
            "the rule would say holds if the claim were true at the paper's size.",
            "",
            "Decided on toys:",
            "",
            *_listed(decided),
            "",
            f"Undecided on toys: {', '.join(undecided)}. All claims, models and numbers: "
            "[docs/reproduction.md](docs/reproduction.md).",
        ]
    )


def _listed(judged: list[tuple[Study, Path, Verdict]], *, network: bool = False) -> list[str]:
    """A table of verdicts; of networks with their length, gate and power."""
    head = ["claim", "study", "verdict", "measured on"]
    rows = [
        [study.claim, cell(study.title), verdict.verdict, cell(study.model(folder.name))]
        for study, folder, verdict in judged
    ]
    if network:
        head += ["length", "trained", "power"]
        for row, (_, _, verdict) in zip(rows, judged):
            gate = "no gate" if not verdict.gate else "no" if "failed (" in verdict.gate else "yes"
            power = f"{100 * verdict.power['power']:.0f} %" if verdict.power else "–"
            row += [verdict.length or "–", gate, power]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _counts(verdicts: list[Verdict]) -> str:
    words = [verdict.verdict for verdict in verdicts]
    named = {
        "holds": "hold",
        "does not hold": "do not hold",
        "inconclusive": "undecided",
        "not trained": "not trained",
    }
    return ", ".join(f"{words.count(word)} {said}" for word, said in named.items() if word in words)


def readme(text: str) -> str:
    """The README with today's list between its two marks."""
    first, last = (re.escape(mark) for mark in MARKS)
    return re.sub(
        f"{first}.*?{last}", lambda _: f"{MARKS[0]}\n{verdict_list()}\n{MARKS[1]}", text, flags=re.S
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("keep", "write"))
    parser.add_argument("runs", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "keep":
        for runs in arguments.runs:
            for folder in study_folders(runs):
                try:
                    print(keep(folder), flush=True)
                except (RecordError, RuleError, OSError) as error:
                    print(f"left out: {folder.parent.name} {folder.name}: {error}", flush=True)
        size = sum(path.stat().st_size for path in RESULTS.rglob(f"*{SUFFIX}"))
        if size > LIMIT:
            sys.exit(
                f"results/ holds {size / 1e6:.1f} MB; at most {LIMIT / 1e6:.0f} MB may be kept"
            )
        return
    (ROOT / "docs" / "reproduction.md").write_text(document(), encoding="utf-8")
    page = ROOT / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
