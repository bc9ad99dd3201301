"""Other ways to vectors on the same texts: plain sentence-transformers, model2vec and SetFit beside a model read by layerscope.

    pip install 'model2vec[distill]' setfit
    python benchmarks/rivals_texts.py --data-dir MTEB

Banking77: `improve` sees `--texts` training questions without labels, SetFit eight labeled ones per class. Of `--test` test
questions that nobody has seen: how often the nearest other question has the same intent, and one of the three nearest; and how
often a logistic regression on the vectors of the labeled questions (SetFit: its own head, which is one) names the intent. Texts
per second by turns, on one thread, and the megabytes of the files. LLM2Vec is not run: its weights cannot be had from a package
index. No setting was chosen on these texts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compare import rows_of

import layerscope
from layerscope.core.heads import unit
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.models.source import resolve

RESULT = Path(__file__).parent / "results" / "rivals-texts.md"
TASK, PER_CLASS, TIMED, ROUNDS = "Banking77Classification", 8, 100, 3
Encode = Callable[[list[str]], np.ndarray]


def as_transformers(name: str, folder: Path) -> Path:
    """A catalogued model as a folder that transformers loads."""
    loaded = layerscope.load(name)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def megabytes(folder: Path) -> float:
    """The weights of a folder; other formats of the same do not count."""
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6


def static(folder: Path, out: Path) -> tuple[Encode, float]:
    """model2vec's distillation with its defaults: a vector per token of the vocabulary."""
    from model2vec.distill import distill

    made = distill(str(folder))
    made.save_pretrained(str(out))
    return lambda texts: np.asarray(made.encode(texts)), megabytes(out)


def setfit(folder: Path, labeled: list[tuple[str, str]], out: Path) -> tuple[Encode, float, Any]:
    """SetFit with its defaults but for the number of steps."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(str(folder))
    data = Dataset.from_dict({"text": [text for text, _ in labeled], "label": [label for _, label in labeled]})
    settings = TrainingArguments(batch_size=16, max_steps=STEPS, num_epochs=1, report_to="none", output_dir=str(out), seed=0)
    Trainer(model=model, args=settings, train_dataset=data).train()
    body = model.model_body
    body.save(str(out / "body"))
    return lambda texts: np.asarray(body.encode(texts, show_progress_bar=False)), megabytes(out / "body"), model.predict


STEPS = 200


def right(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The share of texts whose nearest other has their label, and of those with one among the three nearest."""
    cosines = unit(vectors.astype(np.float64)) @ unit(vectors.astype(np.float64)).T
    np.fill_diagonal(cosines, -np.inf)
    near = labels[np.argsort(-cosines, axis=1)[:, :3]] == labels[:, None]
    return 100 * float(near[:, 0].mean()), 100 * float(near.any(1).mean())


def main() -> None:
    """Make every way, measure all, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("mteb"))
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rng = np.random.default_rng(given.seed)
    train, test = rows_of(TASK, "train", given.data_dir), rows_of(TASK, "test", given.data_dir)
    train, test = ([rows[i] for i in rng.permutation(len(rows))] for rows in (train, test))
    names = sorted({label for _, label in train})
    labeled = [row for name in names for row in [one for one in train if one[1] == name][:PER_CLASS]]
    texts, seen = [text for text, _ in test[: given.test]], [text for text, _ in train[: given.texts]]
    truth = np.array([label for _, label in test[: given.test]])
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        minilm = resolve("minilm-l6").pipeline or resolve("minilm-l6").path
        ways: dict[str, tuple[Encode, float, Any]] = {}

        def folder(name: str, path: Path) -> None:
            body = load_folder(path)
            ways[name] = (lambda texts: np.asarray(body.encode(texts, show_progress_bar=False)), megabytes(path), None)
            print(name, flush=True)

        folder("MiniLM, plain sentence-transformers", Path(minilm))
        ways["MiniLM, model2vec"] = (*static(Path(minilm), place / "m2v-minilm"), None)
        smollm = as_transformers("smollm2-135m", place / "smollm2")
        ways["SmolLM2, model2vec"] = (*static(smollm, place / "m2v-smollm2"), None)
        ways["MiniLM, SetFit"] = setfit(Path(minilm), labeled, place / "setfit")
        layerscope.export("smollm2-135m", -1, out=place / "today")
        folder("SmolLM2 today (last layer, mean)", place / "today")
        layerscope.improve("smollm2-135m", seen, out=place / "better", sample=given.texts)
        folder("SmolLM2, `improve`", place / "better")
        layerscope.improve("smollm2-135m", seen, out=place / "light", sample=given.texts, budget=0.35)
        folder("SmolLM2, `improve --budget 0.35`", place / "light")
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (encode, _, _) in ways.items():
                start = time.perf_counter()
                encode(texts[:TIMED])
                speeds[name].append(TIMED / (time.perf_counter() - start))
        rows = [row(name, *way, statistics.median(speeds[name]), texts, truth, labeled) for name, way in ways.items()]
    lines = [
        "# Other ways to vectors, on the same texts", "",
        f"`python benchmarks/rivals_texts.py --texts {given.texts} --test {given.test} --seed {given.seed}`: {TASK}; "
        f"{PER_CLASS} labels for each of {len(names)} intents where labels are used; SetFit {STEPS} steps. One thread of a "
        f"machine that did other work too (load {os.getloadavg()[0]:.0f}).", "",
        "| way | labels used | nearest right, % | one of three, % | intent by regression, % | texts per second | MB |",
        "|---|---|---|---|---|---|---|", *rows, "",
    ]  # fmt: skip
    RESULT.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def row(
    name: str, encode: Encode, size: float, predict: Any, speed: float, texts: list[str], truth: np.ndarray,
    labeled: list[tuple[str, str]],
) -> str:  # fmt: skip
    """A line of the table."""
    from sklearn.linear_model import LogisticRegression

    if predict is None:
        known = unit(encode([text for text, _ in labeled]).astype(np.float64))
        fitted = LogisticRegression(max_iter=1000, C=10).fit(known, [label for _, label in labeled])
        told = fitted.predict(unit(encode(texts).astype(np.float64)))
    else:
        told = np.asarray(predict(texts))
    first, three = right(encode(texts), truth)
    uses = "no" if predict is None else f"{len(labeled)}"
    return f"| {name} | {uses} | {first:.1f} | {three:.1f} | {100 * (told == truth).mean():.1f} | {speed:,.0f} | {size:.0f} |"


if __name__ == "__main__":
    main()
