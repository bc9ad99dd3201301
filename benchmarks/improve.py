"""What `layerscope improve` is worth: the chosen readout against today's, the best of the grid, and
the judge, on many tasks.

Every layer of a model under every readout is judged on unlabeled texts of each task, by the
product's judges, and scored with the labels that were hidden. What was measured goes into one file
per task; `improve_table.py` then applies the product's rule of choice to it and prints the tables,
so that the rule can be looked at again without a model.

    python benchmarks/improve.py MODEL --judge minilm-l6 --data ../shared/data/mteb --out
    measured/MODEL
    python benchmarks/improve_table.py measured/*

MODEL and --judge are anything that `layerscope.load` takes. Needs torch, transformers and numpy;
minutes on a GPU (a minute or more per task without one: take --tasks, --texts and --templates
down).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from improve_changes import BLEND, CHANGES, Changed, extra_vectors, unembedding_directions
from improve_tasks import Task, load_tasks
from rivals import AlphaReQ, DatasetEntropy, FixedDepth, Loes, LowestTwoNN

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template, names_of
from layerscope.errors import LayerscopeError
from layerscope.evaluation.encode import TextEncoder
from layerscope.improving.grid import by_template, make_grid
from layerscope.models import LoadedModel, load
from layerscope.profiling import profile
from layerscope.selection import choose
from layerscope.selection.judges import ScoredCandidates
from layerscope.selection.judges.agreement import Agreement
from layerscope.selection.judges.base import TEXTS
from layerscope.selection.judges.consistency import (
    SelfConsistency,
    added_ranks,
    consistency_items,
    make_views,
)
from layerscope.selection.judges.few_labels import FewLabels
from layerscope.selection.judges.rank import RankMe
from layerscope.selection.labels.read import Labeled, build

RIVALS = (RankMe, AlphaReQ, LowestTwoNN, DatasetEntropy, Loes, FixedDepth)
PAPER = {
    "prompt_entropy": -1, "dataset_entropy": -1, "effective_rank": -1, "curvature": -1, "infonce": -1, "lidar": 1, "dime": -1,
}  # fmt: skip
"""The paper's metrics: its Table 2 takes the layer with the lowest value; LiDAR's authors take the
highest."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DRAWS = 60
"""Resamples that are kept of each judgment."""


@dataclass
class InMemory:
    """Candidates whose vectors are all on the device; `views` are places among the texts."""

    stored: dict[tuple[str, str], Tensor]
    readouts: Sequence[Readout]
    layers: Sequence[int]
    views: dict[str, Tensor]
    prompts: Sequence[str]
    whole: Tensor
    as_numpy: bool = False
    _last: dict[tuple[Readout, str], Tensor] = field(default_factory=dict)

    def only(
        self,
        readouts: Sequence[Readout] | None = None,
        views: dict[str, Tensor] | None = None,
        as_numpy: bool = False,
    ):
        """Fewer readouts, or other texts. Centering stays over the texts that it was over."""
        readouts = self.readouts if readouts is None else readouts
        views = self.views if views is None else views
        return InMemory(
            self.stored, readouts, self.layers, views, self.prompts, self.whole, as_numpy
        )

    def vectors(self, readout: Readout, view: str = TEXTS):
        """As `layerscope.improving.grid.StoredCandidates` gives them, as tensors unless asked
        otherwise."""
        out = self._vectors(readout, view)
        return out.cpu().numpy() if self.as_numpy else out

    def _vectors(self, readout: Readout, view: str) -> Tensor:
        if readout.template == BLEND:
            parts = [self._vectors(replace(readout, template=name), view) for name in self.prompts]
            return torch.stack(
                [torch.nn.functional.normalize(part, dim=-1) for part in parts]
            ).mean(0)
        rows = self.stored[readout.template, readout.kinds[0]]
        texts = rows[:, self.whole]
        mean = texts.mean(1, keepdim=True)
        same = (texts - mean).abs().amax((1, 2)) <= 1e-6 * texts.abs().amax((1, 2)).clamp_min(1e-30)
        out = rows[:, self.views[view]]
        out = out - mean if readout.centering == "corpus" else out.clone()
        out[same] = torch.nan
        return out


def encode(
    model: LoadedModel,
    texts: Sequence[str],
    wanted: dict[str, list[str]],
    max_length: int,
    sites=None,
):
    """Vectors by template and kind (layers, texts, D) on the device, and the mean tokens per text
    by template."""
    sites, stored, tokens = expand_sites(sites, model.anatomy), {}, {}
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    back = torch.tensor(np.argsort(order), device=DEVICE)
    for name, kinds in wanted.items():
        most = min(max_length + _frame(model, name), model.max_length or 10**6)
        encoder = TextEncoder(model, get_template(name), sites, kinds, most)
        encoded = encoder.read([texts[i] for i in order])
        tokens[name] = float(np.mean([len(e.ids) for e in encoded]))
        vectors, _ = encoder.run(encoded, lambda n: None)
        for kind in kinds:
            stored[name, kind] = torch.from_numpy(vectors[kind]).to(DEVICE)[:, back]
    return stored, tokens


def _frame(model: LoadedModel, name: str) -> int:
    """Tokens of the template itself, which are not counted against the text."""
    pattern = get_template(name).pattern.replace("{text}", "")
    return len(model.tokenize([pattern]).ids[0]) + 2 if pattern else 0


def score_layers(task: Task, vectors: Tensor) -> np.ndarray:
    """The score of every layer, with the hidden labels; NaN where it is undefined."""
    known = (
        torch.isfinite(vectors).all((1, 2))
        if vectors.ndim == 3
        else torch.isfinite(vectors).flatten(1).all(1)
    )
    out = np.full(len(vectors), np.nan)
    if known.any():
        out[known.cpu().numpy()] = (
            task.score(torch.nn.functional.normalize(vectors[known], dim=-1)).cpu().numpy()
        )
    return out


def few_labels(task: Task, count: int, seed: int) -> Labeled | None:
    """`count` labeled examples at random, as the product reads them; None where they are too few to
    judge by."""
    picked = np.random.default_rng([seed, count]).permutation(len(task.examples))[:count]
    try:
        return build(task.kind, [task.examples[i] for i in picked])  # type: ignore[arg-type]
    except LayerscopeError as error:
        print(f"{task.name}: {error}", flush=True)
        return None


def paper_rules(
    model: LoadedModel, sample: Sequence[str], max_length: int
) -> dict[str, np.ndarray]:
    """Scores (layers,) by which the paper's metrics and the rule for profiles would choose a
    layer."""
    options = {"final_norm": "raw", "max_length": max_length, "views": 4, "progress": False}
    run = profile(model, list(sample), metrics=list(PAPER), text_filter=False, **options)  # type: ignore[arg-type]
    table = run.table[run.table["sink"] == "keep"] if "sink" in run.table else run.table
    out = {}
    for metric, sign in PAPER.items():
        rows = table[table["metric"] == metric].drop_duplicates("layer").sort_values("layer")
        out[f"paper: {metric}"] = sign * rows["value"].to_numpy(dtype=float)
    chosen = choose(run)
    shipped = np.zeros(model.n_blocks + 1)
    shipped[chosen.layer] = 1
    out["rule for profiles"] = shipped
    return out


def run_task(
    task: Task, model: LoadedModel, judges: dict[str, Tensor], args: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Everything about one model and task, as arrays."""
    clock = [time.perf_counter()]
    templates = list(dict.fromkeys(["plain", *args.templates, *(["echo"] if args.echo else [])]))
    has_norm, prompts = (
        model.anatomy.final_norm is not None,
        [n for n in templates if get_template(n).with_labels],
    )
    grid = make_grid(templates, has_cls=False, has_norm=has_norm, exportable=False)
    singles = list(grid)
    if args.blend:
        grid += [
            Readout(BLEND, "last", norm, "keep", "corpus")
            for norm in ("applied", "raw")[: 1 + has_norm]
        ]
        singles += [
            replace(readout, template=name)
            for readout in grid
            if readout.template == BLEND
            for name in prompts
        ]
    grid = [readout for readout in grid if readout.pooling != "max"]
    rng = np.random.default_rng([args.seed, len(task.texts)])
    picked = rng.permutation(len(task.texts))[: args.texts]
    sample = [task.texts[i] for i in picked]
    views = {TEXTS: sample, **make_views(sample, args.seed)}
    every = list(dict.fromkeys([*task.texts, *(text for some in views.values() for text in some)]))
    at = {text: i for i, text in enumerate(every)}

    def places(texts: Sequence[str]) -> Tensor:
        return torch.tensor([at[text] for text in texts], device=DEVICE)

    stored, tokens = encode(model, every, by_template(singles), args.max_length)
    layers = list(range(model.n_blocks + 1))
    whole = InMemory(stored, grid, layers, {TEXTS: places(task.texts)}, prompts, places(task.texts))
    clock.append(time.perf_counter())
    scores = np.stack([score_layers(task, whole.vectors(readout)) for readout in grid])
    clock.append(time.perf_counter())
    # a judge sees a sample, and centers on it
    sampled = InMemory(
        stored, grid, layers, {n: places(t) for n, t in views.items()}, prompts, places(sample)
    )
    judged: dict[str, ScoredCandidates] = {}
    who = {
        name: Agreement(vectors[torch.tensor(picked, device=DEVICE)], name)
        for name, vectors in judges.items()
    }
    for name, judge in who.items():
        judged[name] = judge.judge(sampled, seed=args.seed)
    judged["self-consistency alone"] = added_ranks(consistency_items(sampled), args.seed)
    for rounds in (1, 2):
        judged[f"self-consistency, consensus {rounds}"] = SelfConsistency(rounds).judge(
            sampled, seed=args.seed
        )
    clock.append(time.perf_counter())
    for draw in range(args.label_draws):
        labeled = few_labels(task, args.labels, args.seed + draw)
        if labeled is not None:
            with_labels = sampled.only(views={TEXTS: places(labeled.texts)}, as_numpy=True)
            judged[f"{args.labels} labels, draw {draw}"] = FewLabels(labeled).judge(
                with_labels, seed=args.seed
            )
    clock.append(time.perf_counter())
    tokens[BLEND] = sum(tokens[name] for name in prompts)
    rivals = {
        rival.name: rival().judge(sampled.only([Readout()]), seed=args.seed).score[0]
        for rival in RIVALS
    }
    if args.paper:
        rivals |= paper_rules(model, sample, args.max_length)
    clock.append(time.perf_counter())
    out = {
        "scores": scores, "layers": np.array(layers), "readouts": np.array([readout.name for readout in grid]),
        "tokens": np.array([tokens[readout.template] for readout in grid]),
        "judges": np.array(list(judged)), **_pack("judge", list(judged.values())),
        "rivals": np.array(list(rivals)), "rival_scores": np.array(list(rivals.values())),
    }  # fmt: skip
    if args.changes:
        extra = dict(extra_scores(task, model, whole, sampled, who["judge"], args))
        out["extra"] = np.array(list(extra))
        for key in ("scores", "agreement", "spread"):
            width = max(len(values[key]) for values in extra.values())
            out[f"extra_{key}"] = np.array(
                [
                    np.pad(v[key], (0, width - len(v[key])), constant_values=np.nan)
                    for v in extra.values()
                ]
            )
    clock.append(time.perf_counter())
    names = ("encode", "score", "judge", "labels", "rivals", "changes")
    seconds = {name: round(b - a, 1) for name, a, b in zip(names, clock, clock[1:], strict=False)}
    print(f"{model.name} {task.name}: {len(task.texts)} texts, {seconds}", flush=True)
    return out


def _pack(name: str, judgments: Sequence[ScoredCandidates]) -> dict[str, np.ndarray]:
    """Scores (judges, readouts, layers) and how the resamples deviate from them, in half
    precision."""
    score = np.stack([judgment.score for judgment in judgments])
    draws = np.stack(
        [judgment.draws[..., :DRAWS] for judgment in judgments if judgment.draws is not None]
    )
    return {
        f"{name}_scores": score.astype(np.float32),
        f"{name}_draws": (draws - score[..., None]).astype(np.float16),
    }


def extra_scores(
    task: Task,
    model: LoadedModel,
    whole: InMemory,
    sampled: InMemory,
    judge: Agreement,
    args: argparse.Namespace,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Readouts that are not offered yet: their scores, what the judge says of them, and its
    standard error over texts."""
    directions = unembedding_directions(model)
    for base in CHANGES:
        if base.template == BLEND and not args.blend:
            continue
        for changed in Changed.all_of(base, directions):
            fitted = changed.fit(sampled.vectors(base))
            yield (
                changed.name,
                _both(task, judge, fitted(whole.vectors(base)), fitted(sampled.vectors(base))),
            )
    # the task's texts come first among all that were read, so that a place among all is a place
    # among them
    rows = sampled.views[TEXTS]
    assert int(rows.max()) < len(task.texts)
    for name, vectors in extra_vectors(model, task.texts, args.max_length, encode):
        centered = vectors - vectors[:, rows].mean(1, keepdim=True)
        yield name, _both(task, judge, centered, centered[:, rows])


@dataclass
class Single:
    """One readout's vectors as candidates."""

    readouts: Sequence[Readout]
    layers: Sequence[int]
    rows: Tensor

    def vectors(self, readout: Readout, view: str = TEXTS) -> Tensor:
        """The only ones."""
        return self.rows


def _both(task: Task, judge: Agreement, vectors: Tensor, sample: Tensor) -> dict[str, np.ndarray]:
    judgment = judge.judge(Single((Readout(),), tuple(range(len(sample))), sample))
    assert judgment.draws is not None
    return {
        "scores": score_layers(task, vectors),
        "agreement": judgment.score[0],
        "spread": judgment.draws[0].std(-1),
    }


def main() -> None:
    """Measure, and keep what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--judge", default="minilm-l6")
    parser.add_argument(
        "--weak",
        type=int,
        nargs="*",
        default=[],
        help="layers of the judge that judge as well: weaker ones",
    )
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("../shared/data/mteb")])
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--labels", type=int, default=64)
    parser.add_argument("--label-draws", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--templates", nargs="*", default=names_of("with_labels"))
    parser.add_argument("--no-blend", dest="blend", action="store_false")
    parser.add_argument("--no-echo", dest="echo", action="store_false")
    parser.add_argument(
        "--no-paper", dest="paper", action="store_false", help="leave out the metrics of a profile"
    )
    parser.add_argument(
        "--no-changes",
        dest="changes",
        action="store_false",
        help="leave out whitening and the like",
    )
    parser.add_argument(
        "--tf32",
        action="store_true",
        help="products of matrices with 10 bits of mantissa: quicker on a GPU",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("measured"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    judge, model = load(args.judge), load(args.model)
    (args.out / "settings.json").write_text(
        json.dumps(vars(args) | {"name": model.name}, default=str, indent=1)
    )
    for task in load_tasks(args.data, args.tasks, args.seed):
        if (args.out / f"{task.name}.npz").exists():
            continue  # measured before
        torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
        stored, _ = encode(judge, task.texts, {"plain": ["mean/applied"]}, 256)
        layers = stored["plain", "mean/applied"]
        own = score_layers(task, layers)
        named = {"judge": layers[-1], **{f"judge at layer {k}": layers[k] for k in args.weak}}
        arrays = run_task(task, model, named, args)
        np.savez_compressed(
            args.out / f"{task.name}.npz", **arrays, judge_layers=own, texts=len(task.texts)
        )


if __name__ == "__main__":
    main()
