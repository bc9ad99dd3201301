"""Record what each source says of every candidate of `improve`, and the scores by all labels.

    python benchmarks/record_choices.py smollm2-135m --out benchmarks/results/choices/smollm2-135m.npz

Candidates are all layers under the readouts that `improve` tries. For every task the file keeps,
per candidate: the score by all labels (`full`, in points), the sources without labels with their
standard errors, and the scores by 16, 64 and 256 labels in several draws. Labels are drawn from
examples that `full` does not score. `held_out.py` decides from this file in seconds.

Scores are quick stand-ins for MTEB's own, as in `improve.py`: they rank readouts as MTEB does, but
are not MTEB's numbers. Twenty tasks take five minutes on one H200; use `--tasks` on a CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import make_parser, read_rows
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, v_measure_score
from torch import Tensor

import layerscope
from layerscope.capture import expand_sites
from layerscope.choose import Candidate, layers_of
from layerscope.choose.consistency import (
    added_ranks,
    best_candidates,
    consensus,
    consistency_items,
    halves,
    make_views,
)
from layerscope.choose.judges import Neighborhoods, scores_of_items, similarities
from layerscope.choose.label_scores import WIDTH, LabelMeasure, assemble, smooth_layers, stands_for
from layerscope.choose.labels import Labeled, build
from layerscope.core.readout import Readout, kinds_of
from layerscope.core.templates import get_template
from layerscope.improving.candidates import make_grid
from layerscope.models import LoadedModel, load
from layerscope.vectors.encoder import EncodeRequest, TextEncoder

SAMPLE = 500
PAIRS = 700
TEXTS = 1000
LENGTH = 96
LABELS = {16: 10, 64: 10, 256: 4}
"""Draws for each number of labels."""
POOL = 600
CLASSES = 30
SHOTS = 16
PROBES = 4
TEMPLATES = ("plain", "one-word", "step-by-step", "topic")
IN_LANGUAGE = {
    "10kGNAD-de": (
        'Dieser Satz: "{text}" bedeutet in einem Wort: "',
        'Dieser Text: "{text}" handelt von einem Thema, in einem Wort: "',
    ),
    "MasakhaNEWS-fra": (
        'Cette phrase : "{text}" signifie en un mot : "',
        'Ce texte : "{text}" porte sur un thème, en un mot : "',
    ),
    "STS17-es": (
        'Esta frase: "{text}" significa en una palabra: "',
        'Este texto: "{text}" trata de un tema, en una palabra: "',
    ),
    "KorSTS": ('이 문장: "{text}" 한 단어로 뜻은: "', '이 글: "{text}" 주제는 한 단어로: "'),
    "MasakhaNEWS-hau": (
        'Wannan jimla: "{text}" tana nufin a kalma ɗaya: "',
        'Wannan rubutu: "{text}" yana magana a kan batu ɗaya, a kalma ɗaya: "',
    ),
}
"""The one-word and the topic prompt in the language of a task's texts."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Task:
    """A task's distinct texts, how vectors of them are scored, and examples to draw labels from.

    `facts` are the places of texts that the score of a kind of tasks needs, and their labels.
    """

    name: str
    kind: str
    texts: list[str]
    examples: Sequence[tuple[tuple[str, ...], Any]]
    label_kind: str
    facts: dict[str, Any] = field(default_factory=dict)


def load_task(place: Path) -> Task:
    """Return a task of a folder in MTEB's columns."""
    rng = np.random.default_rng(0)
    rows = read_rows(place.parent, place.name, "test")
    if "query" in rows[0]:
        return _ranking(place.name, _shuffled(rows, rng))
    if "sentence1" in rows[0]:
        return _pairs(place.name, rows, rng)
    if "sentences" in rows[0]:
        return _clustering(place.name, rows[0], rng)
    train = read_rows(place.parent, place.name, "train")
    return _classification(place.name, _shuffled(rows, rng), _shuffled(train, rng), rng)


def _shuffled(rows: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    return [rows[i] for i in rng.permutation(len(rows))]


def _index(texts: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    distinct = list(dict.fromkeys(texts))
    return distinct, {text: i for i, text in enumerate(distinct)}


def _ranking(name: str, rows: Rows) -> Task:
    rows = [row for row in rows if row["positive"] and row["negative"]]
    cut = len(rows) // 3
    examples: list[tuple[tuple[str, ...], Any]] = []
    for row in rows[:cut]:
        count = max(2, 2 * len(row["positive"]))
        examples += [((row["query"], text), 1) for text in row["positive"]]
        examples += [((row["query"], text), 0) for text in row["negative"][:count]]
    rest = rows[cut:]
    texts, at = _index(
        [text for row in rest for text in (row["query"], *row["positive"], *row["negative"])]
    )
    groups = [
        (
            at[row["query"]],
            [at[text] for text in row["positive"]],
            [at[text] for text in row["negative"]],
        )
        for row in rest
    ]
    return Task(name, "ranking", texts, examples, "pairs", {"groups": groups})


def _pairs(name: str, rows: Rows, rng: np.random.Generator) -> Task:
    if isinstance(rows[0]["sentence1"], list):  # one row that holds all pairs
        columns = ("sentence1", "sentence2", "labels")
        cells = zip(*(rows[0][column] for column in columns), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in cells]
    kind = "scores" if "score" in rows[0] else "pairs"
    rows = _shuffled(rows, rng)
    cut = min(400, int(0.4 * len(rows)))
    targets = [
        float(row["score"]) if kind == "scores" else int(row.get("labels", row.get("label")))
        for row in rows
    ]
    examples = [
        ((row["sentence1"], row["sentence2"]), target)
        for row, target in zip(rows[:cut], targets, strict=False)
    ]
    rest = rows[cut : cut + PAIRS]
    texts, at = _index([row[side] for row in rest for side in ("sentence1", "sentence2")])
    facts = {
        "first": [at[row["sentence1"]] for row in rest],
        "second": [at[row["sentence2"]] for row in rest],
        "gold": targets[cut : cut + PAIRS],
    }
    return Task(name, kind, texts, examples, kind, facts)


def _clustering(name: str, row: Mapping[str, Any], rng: np.random.Generator) -> Task:
    pairs = list(dict(zip(row["sentences"], map(str, row["labels"]), strict=True)).items())
    pairs = _shuffled(pairs, rng)
    cut = min(POOL, len(pairs) // 3)
    examples = [((text,), label) for text, label in pairs[:cut]]
    rest = pairs[cut : cut + TEXTS]
    gold = {"gold": [label for _, label in rest]}
    return Task(name, "clusters", [text for text, _ in rest], examples, "classification", gold)


def _classification(name: str, test: Rows, train: Rows, rng: np.random.Generator) -> Task:
    classes = sorted({str(row["label"]) for row in train})[:CLASSES]
    test = [row for row in test[: TEXTS - 300] if str(row["label"]) in classes]
    train = [row for row in train if str(row["label"]) in classes]
    cut = POOL if len(train) - POOL >= SHOTS * len(classes) else len(train) // 2
    rest = train[cut:]
    members: dict[str, list[int]] = {name: [] for name in classes}
    for i, row in enumerate(rest):
        if len(members[str(row["label"])]) < SHOTS + 8:
            members[str(row["label"])].append(i)
    draws = [
        [int(i) for rows in members.values() for i in rng.permutation(rows)[:SHOTS]]
        for _ in range(PROBES)
    ]
    used = sorted({i for drawn in draws for i in drawn})
    texts, at = _index([row["text"] for row in test] + [rest[i]["text"] for i in used])
    number = {name: i for i, name in enumerate(classes)}
    facts = {
        "test": [at[row["text"]] for row in test],
        "gold": [number[str(row["label"])] for row in test],
        "train": [[at[rest[i]["text"]] for i in drawn] for drawn in draws],
        "labels": [[number[str(rest[i]["label"])] for i in drawn] for drawn in draws],
    }
    examples = [((row["text"],), str(row["label"])) for row in train[:cut]]
    return Task(name, "classes", texts, examples, "classification", facts)


def score(task: Task, vectors: Tensor) -> np.ndarray:
    """Return the scores (layers,) in points of vectors (layers, texts, D); NaN where undefined."""
    defined = torch.isfinite(vectors).all(-1).all(-1)
    out = np.full(len(vectors), np.nan)
    if defined.any():
        rows = torch.nn.functional.normalize(vectors[defined].float(), dim=-1)
        measures = {"ranking": _rank, "classes": _classify, "clusters": _cluster}
        measure = measures.get(task.kind, _compare)
        out[defined.cpu().numpy()] = 100 * measure(task, rows)
    return out


def _compare(task: Task, rows: Tensor) -> np.ndarray:
    """Return Spearman's ρ with scores, or the average precision of pairs."""
    facts = task.facts
    cosines = (rows[:, facts["first"]] * rows[:, facts["second"]]).sum(-1).cpu().numpy()
    if task.kind == "pairs":
        return np.array([average_precision_score(facts["gold"], row) for row in cosines])
    ranks = rankdata(np.vstack([facts["gold"], cosines]), axis=1)
    return np.corrcoef(ranks)[0, 1:]


def _rank(task: Task, rows: Tensor) -> np.ndarray:
    """Return the mean average precision of the queries."""
    total = np.zeros(len(rows))
    for query, positive, negative in task.facts["groups"]:
        cosines = torch.einsum("lnd,ld->ln", rows[:, positive + negative], rows[:, query])
        is_hit = torch.zeros_like(cosines)
        is_hit[:, : len(positive)] = 1
        is_hit = is_hit.gather(1, cosines.argsort(dim=1, descending=True))
        precision = is_hit.cumsum(1) / torch.arange(1, cosines.shape[1] + 1, device=rows.device)
        total += ((precision * is_hit).sum(1) / len(positive)).cpu().numpy()
    return total / len(task.facts["groups"])


def _classify(task: Task, rows: Tensor) -> np.ndarray:
    """Return the accuracy of ridge probes with a few examples a class."""
    facts = task.facts
    gold = torch.tensor(facts["gold"], device=rows.device)
    shares = []
    for places, labels in zip(facts["train"], facts["labels"], strict=True):
        train = rows[:, places]
        mean = train.mean(1, keepdim=True)
        train = (train - mean).double()
        test = (rows[:, facts["test"]] - mean).double()
        target = torch.nn.functional.one_hot(torch.tensor(labels, device=rows.device)).double()
        gram = train @ train.transpose(1, 2)
        size = 0.1 * gram.diagonal(dim1=1, dim2=2).mean(1) + 1e-9
        penalty = size[:, None, None] * torch.eye(len(labels), dtype=gram.dtype, device=rows.device)
        dual = torch.linalg.solve(gram + penalty, target - target.mean(0))
        predicted = (test @ train.transpose(1, 2) @ dual).argmax(-1)
        shares.append((predicted == gold).double().mean(1).cpu().numpy())
    return np.mean(shares, axis=0)


def _cluster(task: Task, rows: Tensor) -> np.ndarray:
    """Return the V-measure of k-means."""
    gold = task.facts["gold"]
    runs = [_k_means(rows, len(set(gold)), seed) for seed in range(2)]
    return np.mean(
        [[v_measure_score(gold, clusters) for clusters in layers] for layers in runs], axis=0
    )


def _k_means(rows: Tensor, count: int, seed: int, steps: int = 25) -> np.ndarray:
    """Return the clusters (layers, texts) of unit vectors, all layers at once."""
    rng = torch.Generator().manual_seed(seed)
    first = int(torch.randint(rows.shape[1], (1,), generator=rng))
    noise = torch.rand(count, rows.shape[1], generator=rng).clamp_min(1e-12).to(rows.device)
    layers = torch.arange(len(rows), device=rows.device)
    means = [rows[:, first]]
    nearest = torch.einsum("lnd,ld->ln", rows, means[0])
    for i in range(1, count):  # the first means are drawn as in k-means++
        weight = (1 - nearest).clamp_min(0) + 1e-9
        drawn = (weight.log() - (-noise[i].log()).log()).argmax(1)
        means.append(rows[layers, drawn])
        nearest = torch.maximum(nearest, torch.einsum("lnd,ld->ln", rows, means[-1]))
    centers = torch.stack(means, 1)
    clusters = torch.zeros(rows.shape[:2], dtype=torch.long)
    for _ in range(steps):
        distances = centers.square().sum(-1)[:, None] - 2 * rows @ centers.transpose(1, 2)
        clusters = distances.argmin(-1)
        member = torch.nn.functional.one_hot(clusters, count).to(rows.dtype)
        size = member.sum(1)[..., None]
        sums = member.transpose(1, 2) @ rows
        centers = torch.where(size > 0, sums / size.clamp_min(1), centers)
    return clusters.cpu().numpy()


class TaskVectors:
    """All vectors of a task's texts under every template, on the model's device."""

    def __init__(
        self,
        model: LoadedModel,
        readouts: Sequence[Readout],
        views: Mapping[str, list[str]],
        texts: Sequence[str],
    ) -> None:
        self.readouts: Sequence[Readout] = readouts
        self.layers: Sequence[int] = range(model.n_blocks + 1)
        costs = [1.0] * len(self.layers)
        self.candidates: Sequence[Candidate] = [
            item for readout in readouts for item in layers_of(readout, self.layers, costs)
        ]
        self.views = views
        sites = tuple(expand_sites(None, model.anatomy))
        distinct = {*texts, *(text for view in views.values() for text in view)}
        ordered = sorted(distinct, key=lambda text: (-len(text), text))
        self._places = {text: i for i, text in enumerate(ordered)}
        self._states: dict[tuple[str, str], Tensor] = {}
        for name in dict.fromkeys(readout.template for readout in readouts):
            readings = kinds_of(readout for readout in readouts if readout.template == name)
            request = EncodeRequest(get_template(name), sites, tuple(readings), LENGTH)
            encoder = TextEncoder(model, request)
            parts = [
                encoder.run(encoder.tokenize(ordered[start : start + 2048])).vectors
                for start in range(0, len(ordered), 2048)
            ]
            for reading in readings:
                rows = [torch.as_tensor(part[reading]).to(model.device) for part in parts]
                self._states[name, reading] = torch.cat(rows, 1)

    def vectors(self, candidate: Candidate, view: str = "texts") -> Tensor:
        """Return the vectors (texts, D) of a view."""
        assert candidate.readout is not None
        layer = candidate.layer
        return self.of(candidate.readout, self.views[view], slice(layer, layer + 1))[0]

    def of(self, readout: Readout, texts: Sequence[str], layers: slice = slice(None)) -> Tensor:
        """Return vectors (layers, texts, D); NaN at a layer where all texts have the same one.

        The mean over the sample is subtracted where the readout centers.
        """
        states = self._states[readout.template, readout.kinds[0]][layers]
        sample = states[:, [self._places[text] for text in self.views["texts"]]]
        mean = sample.double().mean(1, keepdim=True).float()
        size = sample.abs().amax((1, 2)).clamp_min(1e-30)
        rows = states[:, [self._places[text] for text in texts]]
        rows = rows - mean if readout.centering == "corpus" else rows.clone()
        rows[(sample - mean).abs().amax((1, 2)) <= 1e-6 * size] = torch.nan
        return rows


def record(model: LoadedModel, judge: LoadedModel, task: Task) -> dict[str, np.ndarray]:
    """Return what each source says of every candidate on a task."""
    has_norm = model.anatomy.final_norm is not None
    readouts = make_grid(TEMPLATES, has_cls=model.has_class_token, has_norm=has_norm)
    for pattern in IN_LANGUAGE.get(task.name, ()):
        own = [replace(readout, template=pattern) for readout in readouts]
        readouts += [
            new for new, old in zip(own, readouts, strict=True) if old.template == "one-word"
        ]
    order = np.random.default_rng([1, len(task.texts)]).permutation(len(task.texts))
    sample = [task.texts[i] for i in order[:SAMPLE]]
    views = {"texts": sample, **make_views(sample, 0)}
    labeled = [text for texts, _ in task.examples for text in texts]
    candidates = TaskVectors(model, readouts, views, [*task.texts, *labeled])
    out = {
        "readouts": np.array([readout.name for readout in readouts]),
        "layers": np.array(candidates.layers, dtype=np.int16),
        "full": np.concatenate(
            [score(task, candidates.of(readout, task.texts)) for readout in readouts]
        ).astype(np.float32),
    }
    encoded = torch.as_tensor(layerscope.encode(judge, task.texts, max_length=LENGTH))
    out["encoder_full"] = score(task, encoded[None].to(model.device)).astype(np.float32)
    out |= record_sources(candidates, judge) | describe_fitness(judge, sample[:200])
    for count, draws in LABELS.items():
        drawn = [draw_labels(task, count, draw) for draw in range(draws)]
        pairs = [score_by_labels(candidates, examples) for examples in drawn]
        for i, name in enumerate(("", "_se", "_lead_se")):
            out[f"labels{count}{name}"] = np.array([draw[i] for draw in pairs], dtype=np.float16)
        out[f"labels{count}_n"] = np.array([len(examples) for examples in drawn])
    return out


def record_sources(candidates: TaskVectors, judge: LoadedModel) -> dict[str, np.ndarray]:
    """Return the scores by sources without labels, and their standard errors."""
    ranks = added_ranks(consistency_items(candidates), 0)
    encoded = torch.as_tensor(
        layerscope.encode(judge, candidates.views["texts"], max_length=LENGTH)
    )
    references = {
        "encoder": similarities(encoded),
        "consensus": consensus(candidates, best_candidates(ranks.values)),
    }
    neighborhoods = {name: Neighborhoods.of(rows) for name, rows in references.items()}
    items: dict[str, list[np.ndarray]] = {name: [] for name in references}
    for candidate in candidates.candidates:
        rows = candidates.vectors(candidate)
        is_defined = bool(torch.isfinite(rows).all())
        cosines = similarities(rows) if is_defined else None
        for name, neighborhood in neighborhoods.items():
            undefined = np.full(len(rows), np.nan, dtype=np.float32)
            agreement = undefined if cosines is None else neighborhood.agreement(cosines)
            items[name].append(np.asarray(torch.as_tensor(agreement).cpu()))
    scores = {name: scores_of_items(name, np.array(rows), 0) for name, rows in items.items()}
    out = {}
    for name, source in {**scores, "consistency": ranks}.items():
        assert source.draws is not None
        out[name] = source.values.astype(np.float32)
        out[f"{name}_se"] = source.draws.std(axis=1).astype(np.float16)
        out[f"{name}_lead_se"] = lead_errors(source.draws, len(candidates.layers))
    return out


def lead_errors(draws: np.ndarray, layers: int) -> np.ndarray:
    """Return the standard error of each candidate's lead over the baseline, from joint resamples.

    The baseline is the last layer under the first readout.
    """
    return (draws - draws[layers - 1]).std(axis=1).astype(np.float16)


def describe_fitness(judge: LoadedModel, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return how well a judge knows texts.

    That is the share of its tokens that stand for something unknown, its characters per token, and
    the share of texts whose first half finds the second.
    """
    ids = judge.tokenize(list(texts)).ids
    count = sum(map(len, ids))
    unknown = judge.tokenizer.unk_token_id
    first, second = (
        torch.nn.functional.normalize(torch.as_tensor(layerscope.encode(judge, side)), dim=-1)
        for side in zip(*map(halves, texts), strict=True)
    )
    nearest = (first @ second.T).argmax(1)
    facts = {
        "unknown": sum(row.count(unknown) for row in ids) / count,
        "characters": sum(map(len, texts)) / count,
        "halves": float((nearest == torch.arange(len(texts))).float().mean()),
    }
    return {f"judge_{name}": np.float32(value) for name, value in facts.items()}


def draw_labels(task: Task, count: int, seed: int) -> Labeled:
    """Return some examples of a task, of classes that have two or more of them."""
    examples = _shuffled(task.examples, np.random.default_rng([7, count, seed]))
    if task.label_kind == "classification":
        names = Counter(label for _, label in examples[:count]).most_common(max(2, count // 4))
        common = {name for name, _ in names}
        first = [example for example in examples if example[1] in common][:count]
        counts = Counter(label for _, label in first)
        examples = [example for example in examples if counts[example[1]] >= 2]
    elif task.label_kind == "pairs" and len({label for _, label in examples[:count]}) == 1:
        other = next(example for example in examples if example[1] != examples[0][1])
        examples.insert(0, other)
    return build(task.label_kind, examples[:count], source=task.name)  # type: ignore[arg-type]


def score_by_labels(candidates: TaskVectors, labeled: Labeled) -> tuple[np.ndarray, ...]:
    """Return the score of every candidate by some labels, and its standard error.

    Third is the standard error of its lead, where scores are averaged over neighboring layers.
    """
    measure = LabelMeasure(labeled)
    measure.tested = measure.tested[:0]  # no rounds: nothing is claimed here
    texts = labeled.texts
    same = {readout: stands_for(readout, labeled, False) for readout in candidates.readouts}
    distinct = list(dict.fromkeys(same.values()))
    with ThreadPoolExecutor() as threads:
        parts = threads.map(
            lambda readout: measure.items(candidates.of(readout, texts).cpu().numpy()), distinct
        )
    known = {
        readout: replace(part, rounds=None) for readout, part in zip(distinct, parts, strict=True)
    }
    contributions = {readout: known[same[readout]] for readout in candidates.readouts}
    scores = assemble(labeled, measure, contributions, candidates.layers).scores(draws=60)
    assert scores.draws is not None
    layers = len(candidates.layers)
    rows = scores.draws.reshape(-1, layers, scores.draws.shape[1])
    smoothed = smooth_layers(rows, WIDTH * (layers - 1) / 30).reshape(scores.draws.shape)
    return scores.values, scores.draws.std(axis=1), lead_errors(smoothed, layers)


def main() -> None:
    """Record all tasks of some folders."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--judge", default="minilm-l6")
    folders = [Path("../shared/data/mteb"), Path("../shared/data/multi")]
    parser.add_argument("--data", type=Path, nargs="+", default=folders)
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(args.model, device=device)
    judge = load(args.judge, device=device)
    places = [place for folder in args.data for place in sorted(folder.iterdir()) if place.is_dir()]
    out: dict[str, np.ndarray] = {}
    for place in places:
        if args.tasks and place.name not in args.tasks:
            continue
        recorded = record(model, judge, load_task(place))
        out |= {f"{place.name}/{name}": rows for name, rows in recorded.items()}
        full = recorded["full"]
        default = full[len(recorded["layers"]) - 1]
        print(f"{place.name:32}{default:8.1f} → {np.nanmax(full):.1f}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, allow_pickle=False, **out)


if __name__ == "__main__":
    main()
