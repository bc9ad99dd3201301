"""How much of what a model's layers and readouts offer is found with few labels.

    python benchmarks/few_labels.py --data-dir DIR                        # DIR/<Task>/test.jsonl.gz in MTEB's columns
    python benchmarks/few_labels.py --tasks TrecQuestions,SmsSpam         # tasks from the package index only

For every task, all layers and readouts are scored on examples that are held out: classes by the
accuracy of a logistic regression trained on 8 examples of each, mean of 10 draws, MTEB's way; pairs
by average precision; scores by Spearman's ρ. N labels are drawn, a layer and readout are selected
with them alone, and looked up among those scores. The share of the headroom that is recovered is
(selected − reference) / (best of the grid − reference), where the reference is the last layer under
the default readout. No selection can always reach it.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from common import make_parser, read_rows

from layerscope.capture import Site, expand_sites
from layerscope.choose.label_choice import decide_by_labels, encode_texts, prepare
from layerscope.choose.label_scores import Contributions, LabelMeasure, assemble, stands_for
from layerscope.choose.labels import Labeled, build
from layerscope.core.readout import Readout, all_readouts
from layerscope.models import load
from layerscope.progress import progress_bar
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import read_readout

# The rule was designed looking at the first three alone; the others say how it does elsewhere.
DESIGN = ("STSBenchmark", "TrecQuestions", "EmotionClassification")
CHECK = (
    *("TwitterSemEval2015", "Banking77Classification", "MassiveScenarioClassification"),
    *("SmsSpam", "SentimentSnippets"),
)
LENGTH = 64
EXAMPLES = 1000
CLASSES = 15  # of Banking77's 77: all of them would leave too few examples of each
SHOTS, EXPERIMENTS = 8, 10
FEW_SEEDS = 3  # above 128 labels draws overlap more, and take longer


def load_task(name: str, data_dir: Path | None) -> Labeled:
    """Return at most so many examples of a task, drawn at random."""
    rows = read_rows(data_dir, name, "test")
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    if "sentence1" in rows[0]:
        scored = "score" in rows[0]
        target = "score" if scored else "labels"
        pairs = [((row["sentence1"], row["sentence2"]), row[target]) for row in rows]
        return build("scores" if scored else "pairs", pairs[:EXAMPLES], source=name)
    classes = sorted({str(row["label"]) for row in rows})[:CLASSES]
    texts = [((row["text"],), str(row["label"])) for row in rows if str(row["label"]) in classes]
    return build("classification", texts[:EXAMPLES], source=name)


def logistic(train: np.ndarray, test: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the classes that MTEB's logistic regression predicts.

    It is fitted in an orthonormal basis of the training vectors: the fit and its every step are the
    same, at less cost.
    """
    from sklearn.linear_model import LogisticRegression

    basis = np.linalg.qr(train.T.astype(np.float64))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stops after 100 steps: so does MTEB's
        return LogisticRegression(max_iter=100).fit(train @ basis, labels).predict(test @ basis)


def experiments(task: Labeled) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and test examples: so many of every class (at most half), and the rest."""
    rng = np.random.default_rng(1)
    for _ in range(EXPERIMENTS):
        members = [
            rng.permutation(np.flatnonzero(task.targets == k)) for k in range(len(task.classes))
        ]
        train = np.concatenate([m[: min(SHOTS, len(m) // 2)] for m in members])
        yield train, np.setdiff1d(np.arange(len(task)), train)


@dataclass
class Draw:
    """Some examples of a task, as a user would have labeled them."""

    count: int
    seed: int
    rows: np.ndarray
    labeled: Labeled
    measure: LabelMeasure
    items: dict[Readout, Contributions] = field(default_factory=dict)


def draws_of(task: Labeled, counts: Sequence[int], seeds: int) -> Iterator[Draw]:
    """Yield random examples, as long as a quarter of the task is left to judge by."""
    classed = task.kind != "scores"
    for count in counts:
        if count > 0.75 * len(task):
            continue
        for seed in range(seeds if count <= 128 else min(seeds, FEW_SEEDS)):
            rng = np.random.default_rng([7, count, seed])
            rows = np.sort(rng.choice(len(task), count, replace=False))
            sides = tuple(tuple(side[i] for i in rows) for side in task.sides)
            targets, names = task.targets[rows], tuple[str, ...]()
            if classed:
                numbers, targets = np.unique(targets, return_inverse=True)
                names = tuple(task.classes[int(k)] for k in numbers)
            labeled = Labeled(task.kind, sides, targets, names)
            yield Draw(count, seed, rows, labeled, LabelMeasure(labeled, seed=seed))


class Study:
    """One task: every readout is read once, for the held-out scores and for all draws."""

    def __init__(
        self,
        task: Labeled,
        spaces: dict[str, VectorSpace],
        readouts: list[Readout],
        sites: list[Site],
    ) -> None:
        self.task, self.spaces, self.readouts, self.sites = task, spaces, readouts, sites
        self.whole = LabelMeasure(task)
        self.held_out: dict[Readout, np.ndarray] = {}

    def read(self, draws: Sequence[Draw]) -> None:
        """Keep the contributions to the held-out scores, and to every draw's selection."""
        place = {text: i for i, text in enumerate(self.task.texts)}
        keys = [text_key(text) for text in self.task.texts]
        rows = [place[text] for text in self.task.sides[0]]
        for readout in dict.fromkeys(self._measured(readout) for readout in self.readouts):
            space, centered = self.spaces[readout.template], readout.centering == "corpus"
            states = [read_readout(space, keys, readout, site.name) for site in self.sites]
            vectors = np.stack(states)
            for draw in draws:
                texts = vectors[:, [place[text] for text in draw.labeled.texts]]
                draw.items[readout] = draw.measure.items(prepare(texts, centered, False))
            prepared = prepare(vectors, centered, False)
            self.held_out[readout] = (
                self._classes(prepared, rows)
                if self.task.kind == "classification"
                else self.whole.items(prepared).judged
            )

    def _measured(self, readout: Readout) -> Readout:
        """Return the readout that gives the same vectors and is read in its place."""
        return stands_for(readout, self.task, False)

    def _classes(self, vectors: np.ndarray, rows: list[int]) -> np.ndarray:
        """Return whether each example was put right in each experiment (layers, experiments, n)."""
        tests = list(experiments(self.task))
        out = np.full((len(vectors), len(tests), len(rows)), np.nan, dtype=np.float32)
        for layer in np.flatnonzero(np.isfinite(vectors).all((1, 2))):
            layer_rows = vectors[layer, rows].astype(np.float64)
            for i, (train, test) in enumerate(tests):
                targets = self.task.targets
                predicted = logistic(layer_rows[train], layer_rows[test], targets[train])
                out[layer, i, test] = predicted == targets[test]
        return out

    def scores(self, draw: Draw) -> np.ndarray:
        """Return scores (readouts, layers) on the examples that were not drawn."""
        held = np.stack([self.held_out[self._measured(readout)] for readout in self.readouts])
        rest = np.ones(len(self.task))
        rest[draw.rows] = 0
        if self.task.kind == "classification":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.nanmean(held[..., rest > 0], axis=(-1, -2))
        flat = held.reshape(-1, held.shape[-1])
        return self.whole.score(flat, rest[None])[:, 0].reshape(held.shape[:2])

    def result(self, draw: Draw) -> dict[str, float]:
        """Return what the selection of a draw is worth on the other examples, in points; shares
        are of the headroom."""
        items = {readout: draw.items[self._measured(readout)] for readout in self.readouts}
        evidence = assemble(draw.labeled, draw.measure, items, [site.layer for site in self.sites])
        scores = evidence.scores(seed=draw.seed)
        decision = decide_by_labels(evidence, scores).decision
        truth = 100 * self.scores(draw).ravel()
        reference = truth[evidence.baseline]
        headroom = np.nanmax(truth) - reference
        plain = scores.values if evidence.accuracy is None else evidence.accuracy
        argmax = int(np.nanargmax(plain))
        gain = truth[decision.chosen] - reference
        return {
            "labels": draw.count,
            "seed": draw.seed,
            "reference": reference,
            "headroom": headroom,
            "gain": gain,
            "recovered": gain / headroom,
            "unguarded": (truth[decision.picked] - reference) / headroom,
            "argmax": (truth[argmax] - reference) / headroom,
            "abstained": float(bool(decision.weak)),
            "lost": float(gain < 0),
        }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--tasks", default=",".join((*DESIGN, *CHECK)))
    parser.add_argument("--labels", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write a row per task, count and seed as csv")
    args = parser.parse_args()
    model, readouts = load(args.model), list(all_readouts())
    sites = expand_sites(None, model.anatomy)
    tables = []
    with tempfile.TemporaryDirectory() as folder, progress_bar() as bar:
        store = VectorStore(Path(folder), None)
        for name in args.tasks.split(","):
            start = time.perf_counter()
            task = load_task(name, args.data_dir)
            spaces = encode_texts(model, task.texts, readouts, sites, store, LENGTH, bar)
            study = Study(task, spaces, readouts, sites)
            draws = list(draws_of(task, args.labels, args.seeds))
            study.read(draws)
            tables.append(pd.DataFrame([study.result(draw) for draw in draws]).assign(task=name))
            seconds = time.perf_counter() - start
            print(f"# {name}: {len(task)} examples, {task.kind}, {seconds:.0f} s", flush=True)
    table = pd.concat(tables)
    if args.out:
        table.to_csv(args.out, index=False)
    for count, group in table.groupby("labels"):
        print(f"\n{count} labels, {group['seed'].nunique()} draws a task; means over draws")
        by_task = group.drop(columns=["labels", "seed"]).groupby("task", sort=False)
        means = by_task.mean().assign(sd=by_task["recovered"].std())
        kinds = means.groupby(means.index.isin(DESIGN)).mean()
        kinds = kinds.rename(index={True: "designed on", False: "checked on"})
        print(pd.concat([means, kinds, means.mean().to_frame("all").T]).round(3).to_string())


if __name__ == "__main__":
    main()
