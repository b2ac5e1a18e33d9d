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
import runpy
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import catalogue, find, reference_times
from mindgap.lab.studies.null import null_rates
from mindgap.lab.studies.power import LEAST_POWER
from mindgap.lab.studies.run import finished_runs, judge_folder
from mindgap.lab.studies.spec import SCALES, Study
from mindgap.lab.studies.verdict import LEAST_SEEDS
from mindgap.lab.theory.erratum import ERRATA, about, counts
from mindgap.lab.theory.theorem import THEOREMS
from mindgap.record.forms import StudyDescription, read_form, write_form
from mindgap.record.outcomes import (
    GROUPS,
    KINDS,
    SAID,
    Outcome,
    Summary,
    claim_order,
    plain_model,
    study_folders,
    summary,
)
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
REGISTERED = ROOT / "registered"
LIMIT = 20_000_000
#: Study -> a further setting at scale gpu, and its minutes.
FURTHER = {"h4-masked-language-model": ("depths=12", 36)}
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
    """Study -> the folder whose verdict is shown (:func:`mindgap.record.outcomes.outcomes`)."""
    return {outcome.name: outcome.folder for outcome in summary(results).outcomes}


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
        [s for s in SCALES[SCALES.index(scale) + 1 :] if s in study.scales and s in ("cpu", "gpu")]
        if scale
        else []
    )
    parts, registered = [], not_run_as_registered().get(study.name, [])
    if not scale:
        minutes = reference_times().get(study.name, 0) / 60
        span = f" (about {max(1, round(minutes))} min on one core)" if minutes else ""
        parts.append(f"not run: `mindgap run {study.name}`{span}")
    elif larger and larger[-1] not in registered:
        here = f"{study.name} --scale {larger[-1]}"
        searched = (
            study.at(larger[-1]).grid and study.tuned_by in ("", study.name) and larger[-1] == "gpu"
        )
        commands = (
            f"`mindgap tune {here} --grid`, then " if searched else ""
        ) + f"`mindgap run {here}`"
        parts.append(f"not run at scale {larger[-1]}: {commands}")
    for registered_scale in registered:
        parts.append(
            f"registered and not run at scale {registered_scale}: "
            + how_to_run()[study.name, registered_scale]
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
    if not parts and study.paper_model:
        return "nothing further on this network at this length"
    return "; ".join(parts) or "nothing further: the statement was checked as it stands"


@cache
def how_to_run() -> dict[tuple[str, str], str]:
    """(study, scale) -> commands and minutes of what is registered and not run, from the table
    of ``docs/laboratory.md``.
    """
    text = (ROOT / "docs" / "laboratory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (.*`mindgap run .*) \| (\d.*) \|$", text, re.MULTILINE)
    return {
        place: f"{commands}; {minutes} min"
        for commands, minutes in rows
        for place in re.findall(r"`mindgap run (\S+) --scale (\w+)", commands)
    }


@cache
def kept_folders() -> dict[tuple[str, str], Path]:
    """(study, scale) -> its folder of kept records."""
    return {(folder.parent.name, folder.name): folder for folder in study_folders(RESULTS)}


@cache
def not_run_as_registered() -> dict[str, list[str]]:
    """Study -> scales whose rule is registered and whose kept records, if any, were made before."""
    found: dict[str, list[str]] = {}
    for path in sorted(REGISTERED.glob(f"*/*/{REGISTERED_FILE}")):
        name, scale = path.parts[-3:-1]
        folder = kept_folders().get((name, scale))
        words = read_form(Verdict, folder / VERDICT_FILE).registered if folder else ""
        if not words.startswith("registered before"):
            found.setdefault(name, []).append(scale)
    return found


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
    printed, corrected = verdict.as_printed, verdict.as_corrected
    return SAID[printed or verdict.verdict], SAID[corrected or verdict.verdict]


def cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def model_of(study: Study, scale: str) -> str:
    """Our model in words."""
    return plain_model(study.model(scale)) or "the statement is about no model"


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
                study.length(scale, header.settings)
                or ("not stated" if study.model(scale) else "no network"),
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
    rows += _with_trained_networks(study, folder)
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


def _with_trained_networks(study: Study, folder: Path | None) -> list[tuple[str, str]]:
    """What scale trained says beside the verdict that counts, whose records ``folder`` holds; no
    rows where that scale has no records.
    """
    beside = kept_folders().get((study.name, "trained"))
    if beside is None or beside == folder:
        return []
    verdict = read_form(Verdict, beside / VERDICT_FILE)
    header = read_run(beside / verdict.files[0]).header
    length = study.length(beside.name, header.settings)
    return [
        (f"Beside it, {length}", f"{SAID[verdict.verdict]}: {verdict.measured}"),
        ("Its gate", verdict.gate),
        ("Its rule", f"{verdict.registered}; {verdict.power['words']}"),
    ]


def _verdicts(study: Study, verdict: Verdict) -> list[tuple[str, str]]:
    """The verdict on our question; on a paper's statement as printed and as corrected, and why
    they differ.
    """
    if study.ours:
        return [("Verdict", SAID[verdict.verdict])]
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
        "both without running anything. The model is named beside each verdict. " + slips(),
        "",
        *verdict_tables(),
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
            link = f"[`{study.name}`](#{claim.lower()}--{study.name})"
            verdicts = printed_and_corrected(verdict) if verdict else ("not run", "not run")
            parts = (
                claim,
                link,
                folder.name if folder else "not run",
                model,
                *(("our question", verdicts[1]) if study.ours else verdicts),
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

    From the last test accuracies of the records of B3 and B4 at the scale with the most seeds. It
    holds if one-sided F-tests of the two variances say so at 5 % for every method (all must: no
    correction), and does not hold where one method's deviation shrinks at 5 % for all methods
    together. Its power is that for a deviation that doubles with every method; below
    ``LEAST_POWER`` it decides nothing.
    """
    from scipy.stats import f as fisher

    kept = {(folder.parent.name, folder.name): folder for folder in study_folders(RESULTS)}
    names = ("b3-hyper-cleaning", "b4-hyper-cleaning")
    left_out = set(find(names[0]).controls) | set(find(names[1]).controls)
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for scale in SCALES:
        if all((name, scale) in kept for name in names):
            low, high = (_last_accuracies(kept[name, scale]) for name in names)
            found[scale] = {
                m: (low[m], high[m])
                for m in low
                if m in high and m not in left_out and min(len(low[m]), len(high[m])) >= LEAST_SEEDS
            }
    seeds = {
        scale: min((len(a) for a, _ in pairs.values()), default=0) for scale, pairs in found.items()
    }
    scale = max(seeds, key=lambda name: (seeds[name], SCALES.index(name)))
    methods, grows, clearly, power = list(found[scale]), [], {"grow": 0, "shrink": 0}, 1.0
    for method, (low_, high_) in found[scale].items():
        ratio = float(np.var(high_, ddof=1) / np.var(low_, ddof=1))
        degrees = len(high_) - 1, len(low_) - 1
        grows += [method] if ratio > 1 else []
        clearly["grow"] += fisher.sf(ratio, *degrees) < 0.05
        clearly["shrink"] += fisher.cdf(ratio, *degrees) < 0.05 / len(methods)
        power *= float(fisher.sf(fisher.isf(0.05, *degrees) / 4, *degrees))
    word = (
        "undecided"
        if power < LEAST_POWER
        else "does not hold"
        if clearly["shrink"]
        else "holds"
        if clearly["grow"] == len(methods)
        else "undecided"
    )
    refused = f", below the {100 * LEAST_POWER:.0f} % that a rule needs here"
    named = f" ({', '.join(grows)})" if grows else ""
    return (
        f"{word}, from the records of the studies of B3 and B4 at scale {scale} ("
        f"{plain_model(find(names[0]).models[scale])}): the deviation of "
        f"the last test accuracy is larger at p = 0.4 for {len(grows)} of {len(methods)} methods"
        f"{named}, clearly larger for {clearly['grow']} and clearly smaller for "
        f"{clearly['shrink']} ({seeds[scale]} seeds, F-tests at 5 %; were every deviation to "
        f"double, the rule would say *holds* in {100 * power:.0f} % of studies"
        f"{refused if power < LEAST_POWER else ''})"
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


#: Key of a paper -> what it is, what of it runs here, and where to read more: the README's table.
PAPER_ROWS = {
    "thesis": (
        "J. Zhang, *Optimization Theory and Machine Learning Practice: Mind the Gap* (thesis, MIT)",
        "{theorems} theorems and lemmas as functions, its optimizers and hard instances",
        "[theorems](docs/theory.md)",
    ),
    "acclip": (
        "*Why Adam beats SGD for attention models* (first version)",
        "ACClip, instruments for heavy tails, its networks or smaller ones",
        "[claims](docs/claims.md)",
    ),
    "slip-rebuttal-a": (
        "Gong, Hao, Liu, authors' answer on SLIP, first version (ICML 2024)",
        "all sixteen methods of its Table 1, both of its experiments",
        "[bilevel](docs/bilevel.md)",
    ),
    "slip-rebuttal-b": (
        "the same, second version",
        "the same statements; where the two differ is an erratum",
        "[errata](docs/errata.md)",
    ),
}


def paper_table(found: Summary) -> list[str]:
    """How many statements of each paper hold, do not, are undecided or not trained."""
    words = ("holds", "does not hold", "inconclusive", "not trained")
    lines = [
        "| paper | what of it runs here | hold | do not | undecided | not trained | more |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, (paper, runs, more) in PAPER_ROWS.items():
        verdicts = [o.verdict.verdict for o in found.stated if o.paper == key]
        numbers = [str(verdicts.count(word)) for word in words] if verdicts else ["as above"] * 4
        runs = runs.format(theorems=sum(t.source.paper == key for t in THEOREMS))
        lines.append(f"| {' | '.join((paper, runs, *numbers, more))} |")
    return lines


def headline(found: Summary) -> str:
    """The counts in two sentences, the same on README, site and page."""
    return f"{found.sentence}. {'; '.join(found.lines)}."


def readme_block() -> str:
    """What the README says of the papers: the counts, a picture of them, one row per paper."""
    found = summary(RESULTS)
    return "\n".join(
        [
            f"{headline(found)} {len(corrected_only())} of the formulas hold only after a slip in "
            f"the printed text is corrected ([{len(ERRATA)} errata](docs/errata.md)). Each verdict "
            "names its network and the length of its training.",
            "",
            f"![{found.sentence}, by what they were measured on](docs/pictures/verdicts.svg)",
            "",
            *paper_table(found),
        ]
    )


#: Verdict -> its colour in the picture of the README, on white.
COLOURS = {
    "holds": "#2f8f4e",
    "does not hold": "#b3261e",
    "inconclusive": "#d9a400",
    "not trained": "#9aa3ad",
}


def verdict_picture() -> str:
    """All verdicts by what they rest on, as bars whose parts are counts (SVG)."""
    found = summary(RESULTS)
    rows = [(words, found.of(kind)) for kind, words in KINDS.items() if found.of(kind)]
    rows += [("questions of ours", found.ours)] if found.ours else []
    width, left, unit, height = 720, 220, 14.0, 30 * len(rows) + 44
    unit = min(unit, (width - left - 20) / max(len(group) for _, group in rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        f"<title>{found.sentence}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, (words, group) in enumerate(rows):
        top, x = 8 + 30 * row, float(left)
        parts.append(
            f'<text x="{left - 10}" y="{top + 16}" text-anchor="end" fill="#1f2328">{words}</text>'
        )
        for word, colour in COLOURS.items():
            if number := sum(o.verdict.verdict == word for o in group):
                wide = number * unit
                ink = "#1f2328" if word in ("inconclusive", "not trained") else "#ffffff"
                parts += [
                    f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="22" fill="{colour}" '
                    'stroke="#ffffff"/>',
                    f'<text x="{x + wide / 2:.1f}" y="{top + 16}" text-anchor="middle" '
                    f'fill="{ink}">{number}</text>',
                ]
                x += wide
    x = float(left)
    for word, colour in COLOURS.items():
        parts += [
            f'<rect x="{x:.0f}" y="{height - 24}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{x + 18:.0f}" y="{height - 13}" fill="#1f2328">{SAID[word]}</text>',
        ]
        x += 34 + 8 * len(SAID[word])
    return "\n".join([*parts, "</svg>", ""])


def verdict_tables() -> list[str]:
    """The verdicts on networks with their models, for ``docs/reproduction.md``."""
    found = summary(RESULTS)
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts().items())
    networks = [*found.of("network"), *found.of("stand-in")]
    networks = [o for o in found.stated if o in networks]
    small = found.of("small stand-in")
    decided = [o for o in small if o.verdict.verdict != "inconclusive"]
    undecided = [o.name for o in small if o.verdict.verdict == "inconclusive"]
    return [
        headline(found),
        "",
        f"- {len(corrected_only())} of the formulas hold only after a slip in the printed text is "
        f"corrected. {len(ERRATA)} places of the papers' text are listed as [errata](errata.md): "
        f"{kinds}. *Refuted* has a certificate that a test runs.",
        "- A *stand-in network* takes the place of the paper's own, which is named beside it; a "
        "*small stand-in* is much smaller, and says nothing certain about the paper's network.",
        f"- Questions of ours, which no paper states: {', '.join(o.name for o in found.ours)}.",
        "",
        "On the papers' networks or on stand-in networks:",
        "",
        *_listed(networks, network=True),
        "",
        "*Length* is that of the paper's training, *trained* says whether a control shows that "
        "the network has learned (where it fails, nothing is decided), and *power* how often "
        "the rule would say holds if the claim were true at the paper's size.",
        "",
        "Decided on small stand-in networks:",
        "",
        *_listed(decided),
        "",
        f"Undecided on small stand-in networks: {', '.join(undecided)}.",
    ]


def _listed(judged: list[Outcome], *, network: bool = False) -> list[str]:
    """A table of verdicts; of networks with their length, gate and power."""
    head = ["claim", "study", "verdict", "measured on"]
    rows = [[o.claim, cell(o.description.title), o.said, cell(o.model)] for o in judged]
    if network:
        head += ["length", "trained", "power"]
        for row, outcome in zip(rows, judged):
            verdict = outcome.verdict
            gate = "no gate" if not verdict.gate else "no" if "failed (" in verdict.gate else "yes"
            power = f"{100 * verdict.power['power']:.0f} %" if verdict.power else "–"
            row += [verdict.length or "–", gate, power]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def written(page: Path) -> str:
    """A page with today's counts between its two marks: the README's block, one paragraph on the
    site's first page.
    """
    text = page.read_text(encoding="utf-8")
    block = readme_block() if page.name == "README.md" else f"{headline(summary(RESULTS))}"
    first, last = (re.escape(mark) for mark in MARKS)
    return re.sub(
        f"{first}.*?{last}", lambda _: f"{MARKS[0]}\n{block}\n{MARKS[1]}", text, flags=re.S
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
    (ROOT / "docs" / "pictures" / "verdicts.svg").write_text(verdict_picture(), encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        page.write_text(written(page), encoding="utf-8")
    runpy.run_path(str(Path(__file__).with_name("links.py")))[
        "main"
    ]()  # the README is in a package


if __name__ == "__main__":
    main()
