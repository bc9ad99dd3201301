"""What `layerscope improve` is worth: the chosen readout against today's, the best of the grid, and the judge, on fifteen tasks.

Every layer of a model under every readout is judged on unlabeled texts of each task, by the product's judges and its rule of
choice, and scored with the labels that were hidden. Headroom is the best candidate of a task minus today's readout; "recovered"
is the share of it that the choice gets, pooled over tasks.

    python benchmarks/improve.py MODEL... --judge minilm-l6 --data ../shared/data/mteb --out improve.json

MODEL and --judge are anything that `layerscope.load` takes. Needs torch, transformers and numpy; quick on a GPU (a minute per
model and task without one, or more: take --tasks, --texts and --templates down).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from improve_tasks import TUNED, Task, load_tasks

from layerscope.capture import expand_sites
from layerscope.core.readout import PROMPTS, Readout, get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.improving.choose import decide, relative_costs
from layerscope.improving.grid import BLEND, QUICK, by_template, make_grid, prompts_among, unit
from layerscope.models import LoadedModel, load
from layerscope.selection.judges.agreement import Agreement
from layerscope.selection.judges.base import TEXTS, Judgment, combined
from layerscope.selection.judges.consistency import SelfConsistency, added_ranks, consistency_items, make_views
from layerscope.selection.judges.few_labels import FewLabels
from layerscope.selection.judges.rivals import AlphaReQ, DatasetEntropy, FixedDepth, Loes, LowestTwoNN, RankMe
from layerscope.selection.labels.read import build

RIVALS = (RankMe, AlphaReQ, LowestTwoNN, DatasetEntropy, Loes, FixedDepth)


class InMemory:
    """Candidates whose vectors are all in memory; `views` are texts by name, in the order of the vectors."""

    def __init__(self, held: dict[tuple[str, str], np.ndarray], at: dict[str, int], readouts, layers, views, prompts) -> None:
        self.held, self.at, self.readouts, self.layers, self.prompts = held, at, list(readouts), list(layers), prompts
        self.views = {name: [at[text] for text in texts] for name, texts in views.items()}

    def only(self, readouts, views=None) -> InMemory:
        """Fewer readouts, or other texts."""
        out = InMemory(self.held, self.at, readouts, self.layers, {}, self.prompts)
        out.views = self.views if views is None else {n: [self.at[t] for t in texts] for n, texts in views.items()}
        return out

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """As `layerscope.improving.grid.StoredCandidates` gives them."""
        if readout.template == BLEND:
            parts = [unit(self.vectors(replace(readout, template=name), view)) for name in self.prompts]
            return np.mean(parts, axis=0, dtype=np.float32)
        whole = self.held[readout.template, readout.kinds[0]]
        texts = whole[:, self.views[TEXTS]]
        mean = texts.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
        same = np.abs(texts - mean).max((1, 2)) <= 1e-6 * np.maximum(1e-30, np.abs(texts).max((1, 2)))
        out = whole[:, self.views[view]]
        out = out - mean if readout.centering == "corpus" else out.copy()
        out[same] = np.nan
        return out


def encode(model: LoadedModel, texts: Sequence[str], wanted: dict[str, list[str]], max_length: int):
    """Vectors by template and kind (layers, texts, D), and the mean tokens per text by template."""
    sites, held, tokens = expand_sites(None, model.anatomy), {}, {}
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    for name, kinds in wanted.items():
        most = min(max_length + _frame(model, name), model.max_length or 10**6)
        encoder = TextEncoder(model, get_template(name), sites, kinds, most)
        encoded = encoder.read([texts[i] for i in order])
        tokens[name] = float(np.mean([len(e.ids) for e in encoded]))
        vectors, _ = encoder.run(encoded, lambda n: None)
        back = np.argsort(order)
        for kind in kinds:
            held[name, kind] = vectors[kind][:, back]
    return held, tokens


def _frame(model: LoadedModel, name: str) -> int:
    """Tokens of the template itself, which are not counted against the text."""
    pattern = get_template(name).pattern.replace("{text}", "")
    return len(model.tokenize([pattern]).ids[0]) + 2 if pattern else 0


def score_all(task: Task, candidates: InMemory) -> np.ndarray:
    """The score of every candidate (readouts, layers), with the hidden labels; NaN where a candidate is undefined."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = np.full((len(candidates.readouts), len(candidates.layers)), np.nan)
    for r, readout in enumerate(candidates.readouts):
        vectors = candidates.vectors(readout)
        known = np.isfinite(vectors).all((1, 2))
        if known.any():
            rows = torch.nn.functional.normalize(torch.from_numpy(vectors[known]).to(device), dim=-1)
            out[r, known] = task.score(rows).cpu().numpy()
    return out


def few_labels(task: Task, count: int, seed: int):
    """`count` labeled texts at random, as the product reads them; None for tasks without classes."""
    if task.labels is None:
        return None
    known = np.flatnonzero(task.labels >= 0)
    picked = np.random.default_rng([seed, count]).permutation(known)[:count]
    _, counts = np.unique(task.labels[picked], return_counts=True)
    if (counts > 1).sum() < 2:
        return None
    return build("classification", [((task.texts[i],), str(task.labels[i])) for i in picked])


def run_task(task: Task, model: LoadedModel, judges: dict[str, np.ndarray], args: argparse.Namespace, judge_score: float) -> dict:
    """Everything about one model and task."""
    clock = time.perf_counter()
    templates = list(dict.fromkeys(["plain", *args.templates, *(["echo"] if args.echo else [])]))
    has_norm, prompts = model.anatomy.final_norm is not None, prompts_among(templates)
    grid = make_grid(templates, has_cls=False, has_norm=has_norm, max_cost=len(prompts) if args.blend else 1, exportable=False)
    rng = np.random.default_rng([args.seed, len(task.texts)])
    sample = [task.texts[i] for i in rng.permutation(len(task.texts))[: args.texts]]
    views = {TEXTS: sample, **make_views(sample, args.seed)}
    every = list(dict.fromkeys([*task.texts, *(text for some in views.values() for text in some)]))
    held, tokens = encode(model, every, by_template(grid, prompts), args.max_length)
    layers, at = list(range(model.n_blocks + 1)), {text: i for i, text in enumerate(every)}
    whole = InMemory(held, at, grid, layers, {TEXTS: task.texts}, prompts)
    scores = score_all(task, whole)
    encoded = time.perf_counter()
    sampled = whole.only(grid, views)
    found: dict[str, Judgment] = {}
    for name, vectors in judges.items():
        rows = vectors[[task.texts.index(text) for text in sample]]
        found[name] = Agreement(rows, name).judge(sampled, seed=args.seed)
    consistency = added_ranks(consistency_items(sampled), args.seed)
    found["self-consistency alone"] = consistency
    for rounds in (1, 2):
        found[f"self-consistency, consensus {rounds}"] = SelfConsistency(rounds).judge(sampled, seed=args.seed)
    labeled = few_labels(task, args.labels, args.seed) if args.labels else None
    if labeled is not None:
        with_labels = whole.only(grid, {TEXTS: labeled.texts})
        found[f"{args.labels} labels"] = FewLabels(labeled).judge(with_labels, seed=args.seed)
        found[f"{args.labels} labels + judge"] = combined([found[f"{args.labels} labels"], found["judge"]])
    tokens[BLEND] = sum(tokens[name] for name in prompts)
    costs = relative_costs([tokens[readout.template] for readout in grid], layers, layers[-1])
    one_pass = [i for i, r in enumerate(grid) if r.template not in (BLEND, "echo")]
    quick = [i for i, r in enumerate(grid) if r.template in QUICK]
    default = [i for i, r in enumerate(grid) if replace(r, centering="none") == Readout() and r.centering == "none"]
    sets = {"all": list(range(len(grid))), "one pass": one_pass, "quick": quick, "layers alone": default}
    out = {"task": task.name, "texts": len(task.texts), "judge": judge_score, "default": float(scores[grid.index(Readout()), -1])}
    out["by template"] = {name: _top(scores, name, grid, layers) for name in {readout.template for readout in grid}}
    for label, which in sets.items():
        rows = {"best": float(np.nanmax(scores[which]))}
        for name, judgment in found.items():
            part = Judgment(name, judgment.score[which], judgment.draws[which])
            rows[name] = _row(part, [grid[i] for i in which], layers, costs[which], scores[which])
        if label == "layers alone":
            for rival in RIVALS:
                judgment = rival().judge(sampled.only([Readout()]), seed=args.seed)
                rows[rival.name] = _row(judgment, [Readout()], layers, costs[which], scores[which])
        out[label] = rows
    out["grid"] = {r.name: [None if np.isnan(v) else round(float(v), 2) for v in scores[i]] for i, r in enumerate(grid)}
    out["seconds"] = {"encode and score": encoded - clock, "judge": time.perf_counter() - encoded}
    return out


def _top(scores: np.ndarray, template: str, grid: list[Readout], layers: list[int]) -> dict:
    which = [i for i, readout in enumerate(grid) if readout.template == template]
    part = scores[which]
    if not np.isfinite(part).any():
        return {}
    r, k = np.unravel_index(int(np.nanargmax(part)), part.shape)
    return {"score": float(part[r, k]), "readout": grid[which[r]].name, "layer": layers[k]}


def _row(judgment: Judgment, readouts: list[Readout], layers: list[int], costs: np.ndarray, scores: np.ndarray) -> dict:
    """The judge's favorite, and what the product's rule makes of it."""
    best = judgment.best()
    decision = decide(judgment, readouts, layers, costs)
    return {
        "favorite": float(scores[best]),
        "favorite at": f"{readouts[best[0]].name} {layers[best[1]]}",
        "chosen": float(scores[decision.chosen]),
        "chosen at": f"{readouts[decision.chosen[0]].name} {layers[decision.chosen[1]]}",
        "cost": float(costs[decision.chosen]),
        "abstained": bool(decision.weak),
        "agreement": float(judgment.score[decision.chosen]),
        "rank correlation": _rank_correlation(judgment.score, scores),
    }


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    known = np.isfinite(a) & np.isfinite(b)
    x, y = (v[known].argsort().argsort().astype(float) for v in (a, b))
    return float(np.corrcoef(x, y)[0, 1]) if known.sum() > 2 else float("nan")


def summary(rows: list[dict], what: str, key: str, names: set[str] | None = None) -> dict:
    """Over tasks: means, pooled headroom recovered, and the worst task against the default."""
    rows = [row for row in rows if key in row[what] and (names is None or row["task"] in names)]
    if not rows:
        return {}
    default, best = (np.array([row["default"] if i else row[what]["best"] for row in rows]) for i in (1, 0))
    out = {"tasks": len(rows), "default": default.mean(), "best": best.mean()}
    for rule in ("favorite", "chosen"):
        got = np.array([row[what][key][rule] for row in rows])
        gain, room = got - default, best - default
        share = np.mean(gain[room > 0.5] / room[room > 0.5]) if (room > 0.5).any() else np.nan
        out[rule] = {"mean": got.mean(), "pooled": gain.sum() / max(room.sum(), 1e-9), "mean share": share, "worst": gain.min()}
    return out


def show(name: str, rows: list[dict]) -> None:
    """Tables for people."""
    print(f"\n== {name}: {len(rows)} tasks")
    print(f"{'task':34}{'default':>8}{'chosen':>8}{'best':>8}{'judge':>8}  chosen at")
    first = next(key for key in rows[0]["one pass"] if key != "best")
    for row in rows:
        got = row["one pass"][first]
        numbers = (row["default"], got["chosen"], row["one pass"]["best"], row["judge"])
        print(f"{row['task']:34}" + "".join(f"{number:8.1f}" for number in numbers) + f"  {got['chosen at']}")
    rest = {row["task"] for row in rows} - set(TUNED)
    for what in ("all", "one pass", "quick", "layers alone"):
        print(f"-- {what}: mean, pooled share of the headroom, worst task: favorite | chosen by our rule | on tasks not tuned on")
        for key in dict.fromkeys(k for row in rows for k in row[what] if k != "best"):
            s, held_out = summary(rows, what, key), summary(rows, what, key, rest)
            parts = [s["favorite"], s["chosen"], *([held_out["chosen"]] if held_out else [])]
            told = [f"{part['mean']:6.1f} {100 * part['pooled']:5.0f} % {part['worst']:+6.1f}" for part in parts]
            print(f"   {key:34}{s['tasks']:3} tasks {s['default']:6.1f} → best {s['best']:5.1f} | " + " | ".join(told))
    print("-- best score by template, mean over tasks (the best layer and norm of each task)")
    for template in sorted({t for row in rows for t in row["by template"]}):
        got = [row["by template"][template]["score"] for row in rows if row["by template"].get(template)]
        print(f"   {template:34}{np.mean(got):6.1f}")
    print("-- one readout and layer for all tasks, mean over tasks: the best five")
    names = set.intersection(*(set(row["grid"]) for row in rows))
    means = [
        (np.mean([row["grid"][n][k] for row in rows]), n, k)
        for n in names
        for k in range(len(rows[0]["grid"][n]))
        if all(row["grid"][n][k] is not None for row in rows)
    ]
    for value, n, k in sorted(means, reverse=True)[:5]:
        print(f"   {value:6.1f}  {n}  layer {k}")


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--judge", default="minilm-l6")
    parser.add_argument("--weak", type=int, nargs="*", default=[], help="layers of the judge that judge as well: weaker ones")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--labels", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--templates", nargs="*", default=["one-word", *PROMPTS])
    parser.add_argument("--no-blend", dest="blend", action="store_false")
    parser.add_argument("--no-echo", dest="echo", action="store_false")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("improve.json"))
    args = parser.parse_args()
    tasks = load_tasks(args.data, args.tasks, args.seed)
    judge = load(args.judge)
    last = judge.n_blocks
    kept: dict[str, list[dict]] = {}
    opinions: dict[str, tuple[dict[str, np.ndarray], float]] = {}
    for task in tasks:
        held, _ = encode(judge, task.texts, {"plain": ["mean/applied"]}, 256)
        layers = held["plain", "mean/applied"]
        named = {"judge": layers[last], **{f"judge at layer {k}": layers[k] for k in args.weak}}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        own = task.score(torch.nn.functional.normalize(torch.from_numpy(layers).to(device), dim=-1)).cpu().numpy()
        opinions[task.name] = named, float(own[last])
        print(f"{task.name}: {len(task.texts)} texts; the judge's layers score {np.round(own, 1).tolist()}", flush=True)
    for path in args.models:
        model = load(path)
        rows = kept.setdefault(model.name, [])
        for task in tasks:
            rows.append(run_task(task, model, *opinions[task.name][:1], args, opinions[task.name][1]))
            print(f"{model.name} {task.name}: {rows[-1]['seconds']}", flush=True)
            args.out.write_text(json.dumps({"settings": vars(args), "results": kept}, default=str))
        show(model.name, rows)
        del model


if __name__ == "__main__":
    main()
