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
TASK, PER_CLASS, TIMED, ROUNDS = "Banking77Classification", 8, 40, 3
Encode = Callable[[list[str]], np.ndarray]
Way = tuple[Encode, float, Any]
"""What encodes texts, how many megabytes it takes, and what names classes itself, if it does."""


def as_transformers(name: str, folder: Path) -> Path:
    """A catalogued model as a folder that transformers loads."""
    loaded = layerscope.load(name)
    loaded.module.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def megabytes(folder: Path) -> float:
    """The weights of a folder; other formats of the same do not count."""
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6


def static(folder: Path, out: Path) -> Way:
    """model2vec's distillation with its defaults: a vector per token of the vocabulary."""
    from model2vec import StaticModel
    from model2vec.distill import distill

    if not out.exists():
        distill(str(folder)).save_pretrained(str(out))
    made = StaticModel.from_pretrained(str(out))
    return lambda texts: np.asarray(made.encode(texts)), megabytes(out), None


def read(folder: Path) -> Way:
    """A sentence-transformers folder as it says itself."""
    body = load_folder(folder)
    return lambda texts: np.asarray(body.encode(texts, show_progress_bar=False)), megabytes(folder), None


def setfit(folder: Path, labeled: list[tuple[str, str]], out: Path, steps: int) -> Way:
    """SetFit with its defaults but for the number of steps."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(str(folder))
    data = Dataset.from_dict({"text": [text for text, _ in labeled], "label": [label for _, label in labeled]})
    settings = TrainingArguments(batch_size=16, max_steps=steps, num_epochs=1, report_to="none", output_dir=str(out), seed=0)
    Trainer(model=model, args=settings, train_dataset=data).train()
    body = model.model_body
    body.save(str(out / "body"))
    return lambda texts: np.asarray(body.encode(texts, show_progress_bar=False)), megabytes(out / "body"), model.predict


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
    parser.add_argument("--steps", type=int, default=200, help="of SetFit; 0: without it")
    parser.add_argument("--work", type=Path, default=Path("rivals"), help="where models are kept for another run")
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
    place = given.work
    minilm = Path(resolve("minilm-l6").pipeline or resolve("minilm-l6").path)
    smollm = place / "smollm2"
    if not smollm.exists():
        as_transformers("smollm2-135m", smollm)

    def improved(name: str, **options: Any) -> Way:
        if not (place / name).exists():
            layerscope.improve("smollm2-135m", seen, out=place / name, sample=given.texts, progress=False, **options)
        return read(place / name)

    def today() -> Way:
        layerscope.export("smollm2-135m", -1, out=place / "today", overwrite=True)
        return read(place / "today")

    makers: dict[str, Callable[[], Way]] = {
        "MiniLM, plain sentence-transformers": lambda: read(minilm),
        "MiniLM, model2vec": lambda: static(minilm, place / "m2v-minilm"),
        "SmolLM2, model2vec": lambda: static(smollm, place / "m2v-smollm2"),
        "SmolLM2 today (last layer, mean)": today,
        "SmolLM2, `improve`": lambda: improved("better"),
        "SmolLM2, `improve --budget 0.35`": lambda: improved("light", budget=0.35),
        "MiniLM, SetFit": lambda: setfit(minilm, labeled, place / "setfit", given.steps),
    }
    ways = {name: make() for name, make in makers.items() if given.steps or "SetFit" not in name}
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
        f"{PER_CLASS} labels for each of {len(names)} intents where labels are used; SetFit {given.steps} steps. One thread of a "
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

    vectors = encode(texts)
    if predict is None:
        known = unit(encode([text for text, _ in labeled]).astype(np.float64))
        fitted = LogisticRegression(max_iter=1000, C=10).fit(known, [label for _, label in labeled])
        told = fitted.predict(unit(vectors.astype(np.float64)))
    else:
        told = np.asarray(predict(texts))
    first, three = right(vectors, truth)
    uses = "no" if predict is None else f"{len(labeled)}"
    return f"| {name} | {uses} | {first:.1f} | {three:.1f} | {100 * (told == truth).mean():.1f} | {speed:,.0f} | {size:.0f} |"


if __name__ == "__main__":
    main()
