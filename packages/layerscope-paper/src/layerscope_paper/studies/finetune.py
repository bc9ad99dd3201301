"""Study `finetune`: the changes that a short training makes, over several seeds.

Trains copies of a small model on one half of the texts, once per seed, and profiles them on the
other half at chosen steps. `objective=contrastive` makes a fine-tuned embedding model (two
augmented views of a text become alike, others not), as LLM2Vec is of its base (Fig. 13).
`objective=language` predicts the next token, and with `fresh=true` starts from random weights,
which shows when curves take their shape (Fig. 4, 11). A seed decides the order of the texts, the
views, and fresh weights.

Table: `value` rows (each profile, by seed and step) and `change` rows: at every layer, a metric
after the last step minus before training, the mean over seeds with Student's interval over seeds.
Figure: the metrics before and after, a line per seed. Verdict: the changes, judged over seeds; with
fewer than three seeds none is called clear.

    layerscope-paper study finetune controlled-ar --limit 120 --max-length 96 --out
    runs/finetune
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerscope.capture import make_batch
from layerscope.core.columns import PLACE, names
from layerscope.data import Corpus
from layerscope.data.views import make_views
from layerscope.errors import LayerscopeError
from layerscope.metrics import metrics
from layerscope.models import LoadedModel, wrap
from layerscope.profiling import Profile
from layerscope.progress import Progress
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_panels,
    measured_panels,
    panel_grid,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    PAPER_METRICS,
    Request,
    Spec,
    canonical,
    finished_profile,
    profile_of,
    read_specs,
)
from layerscope_paper.studies.shared.numbers import in_short, join_words, student_interval
from layerscope_paper.studies.shared.profiles import INVARIANCE, profile_rows

OBJECTIVES = ("contrastive", "language")
FEWEST_SEEDS = 3  # below this an interval over seeds has no meaning
_LEAST_TEXTS = 16
_TEMPERATURE = 0.05
_MEANS = {
    "contrastive": "the other view of a text is chosen among those of the batch",
    "language": "the next token is predicted",
}


class Finetune(Study):
    """A short training with several seeds, and the change of every layer."""

    name = "finetune"
    title = "What a short training changes, over seeds"
    models = (1, 1)
    options = (
        Option(
            "objective",
            "contrastive",
            "contrastive (a fine-tuned embedding model) or language (next token)",
            OBJECTIVES,
        ),
        Option("fresh", False, "start from random weights, a different draw for each seed"),
        Option(
            "steps",
            [0, 40],
            "training steps to profile the model at, 0 and the last among them",
            least=0,
            filled=True,
        ),
        Option("seeds", [0, 1, 2], "seeds, one training each", filled=True),
        Option("batch", 16, "texts per training step", least=4),
        Option("rate", 3e-4, "learning rate (AdamW)", least=0),
        Option("train_tokens", 64, "tokens per text in training", least=8),
        Option("metrics", PAPER_METRICS, "metrics of every layer", filled=True),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Train and profile, one seed after the other; finished profiles are read from disk."""
        request = canonical(request)
        options = request.options
        steps = sorted({0, *(int(step) for step in options["steps"])})
        if steps[-1] == 0:
            raise LayerscopeError(
                "steps names no step but 0: give the last step of the training, such as steps=0,40."
            )
        spec = read_specs(request.models)[0]
        train, test = split(request.texts)
        measured = replace(request, texts=test, model_options={}, engine=None)
        runs: dict[tuple[int, int], Profile] = {}
        base = spec.open(request)
        for seed in map(int, options["seeds"]):
            by_step = _train_seed(measured, base, spec.label, seed, steps, list(train.texts), bar)
            runs |= {(seed, step): run for step, run in by_step.items()}
        tables = [
            profile_rows(run, spec.label, kind="value", seed=seed, step=step)
            for (seed, step), run in runs.items()
        ]
        values = pd.concat(tables, ignore_index=True)
        table = pd.concat([values, changes(values, steps[-1])], ignore_index=True)
        conventions = {
            "models": {spec.label: base.identity},
            "metrics": next(iter(runs.values())).manifest["conventions"]["metrics"],
            "objective": f"{options['objective']}: {_MEANS[options['objective']]}",
            "texts": f"{len(train)} for training, {len(test)} others for the profiles",
            "change": (
                "after the last step minus before training, mean over seeds, Student's 95 % "
                "interval over seeds"
            ),
        }
        return Result(table, verdict(table, options, steps, spec.label), conventions, [])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw a panel per metric: a line per seed, light before training, dark after."""
        rows = table[table["kind"] == "value"]
        panels = measured_panels(rows)
        figure, axes = panel_grid(panels, 0, 0.4)
        steps = sorted(rows["step"].unique())
        greys = {
            step: str(round(0.75 - 0.75 * i / max(1, len(steps) - 1), 2))
            for i, step in enumerate(steps)
        }
        lines = rows["seed"].astype(str) + " " + rows["step"].astype(str)
        colors = dict(zip(lines, rows["step"].map(greys), strict=True))
        draw_panels(axes, rows.assign(line=lines), panels, "line", colors)
        return with_heading(
            figure, manifest, size=8, suffix="; a line per seed, light before training, dark after"
        )


def split(texts: Corpus | None) -> tuple[Corpus, Corpus]:
    """Return two halves of a corpus, every other text of its canonical order: one to train on, one
    to measure."""
    assert texts is not None
    if len(texts) < 2 * _LEAST_TEXTS:
        raise LayerscopeError(
            f"{len(texts)} texts are too few to train on one half and measure the other: "
            f"{2 * _LEAST_TEXTS} are needed."
        )
    train, test = (
        Corpus.of(texts.texts[i::2], f"{texts.name}, half {i + 1}", texts.source) for i in (0, 1)
    )
    return train, test


def _train_seed(
    request: Request,
    base: LoadedModel,
    label: str,
    seed: int,
    steps: list[int],
    texts: list[str],
    bar: Progress,
) -> dict[int, Profile]:
    """Train a copy of the model with one seed; return its profiles by step."""
    options = request.options
    names = {step: f"{label} seed {seed} step {step}" for step in steps}
    if not options["fresh"]:
        names[0] = f"{label} before training"  # the same for every seed
    finished = {step: finished_profile(request, name) for step, name in names.items()}
    runs = {step: run for step, run in finished.items() if run is not None}
    if len(runs) == len(steps):
        return runs
    torch.manual_seed(seed)
    module = fresh_copy(base, options["fresh"])
    model = wrap(module, base.tokenizer, label)
    trainer = Trainer(model, options, texts, seed)
    for step in steps:
        bar.begin(f"training {label}, seed {seed}|steps", max(1, step - trainer.step), 0)
        while trainer.step < step:
            trainer.advance()
            bar.advance(1)
        module.eval()
        current = wrap(module, base.tokenizer, names[step])
        runs[step] = profile_of(request, Spec(current, names[step]), options["metrics"], bar)
    return runs


def fresh_copy(base: LoadedModel, fresh: bool) -> nn.Module:
    """Return a copy of a model's module that can be trained, in float32; `fresh`: of the same shape
    with random weights."""
    module = type(base.module)(base.module.config) if fresh else copy.deepcopy(base.module)
    return module.float().to(base.device).requires_grad_(True)


class Trainer:
    """A plain training loop: batches of texts in a seeded order, AdamW, one objective."""

    def __init__(
        self, model: LoadedModel, options: dict[str, Any], texts: list[str], seed: int
    ) -> None:
        objective = options["objective"]
        if objective == "language" and model.identity["bidirectional"]:
            raise LayerscopeError(
                f"{model.name} sees both sides of a token: objective=language is for decoders."
            )
        self.model = model
        self.objective = objective
        self.batch = min(options["batch"], len(texts))
        self.tokens = options["train_tokens"]
        self.texts = texts
        self.seed = seed
        self.step = 0
        self.rng = np.random.default_rng([seed, 77])
        self.optimizer = torch.optim.AdamW(
            [p for p in model.module.parameters() if p.requires_grad],
            lr=options["rate"],
            weight_decay=0.01,
        )
        self.loss = math.nan

    def advance(self) -> None:
        """Train for one step."""
        self.model.module.train()
        rows = self.rng.choice(len(self.texts), self.batch, replace=False)
        texts = [self.texts[i] for i in rows]
        contrastive = self.objective == "contrastive"
        loss = self._contrastive(texts) if contrastive else self._language(texts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            raise LayerscopeError(
                f"the loss is {self.loss} after {self.step} steps: give a smaller rate."
            )

    def _states(self, texts: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return token ids, mask and final states of texts."""
        ids = [row or [self.model.pad_id] for row in self.model.tokenize(texts, self.tokens).ids]
        batch = make_batch(ids, self.model.pad_id, self.model.device)
        mask = batch.mask
        if mask is None:
            mask = torch.ones_like(batch.input_ids, dtype=torch.bool)
        inputs = {"attention_mask": mask.long(), "use_cache": False}
        accepted = {name: inputs[name] for name in inputs if name in self.model._accepts}
        output = self.model.module(input_ids=batch.input_ids, **accepted)
        return batch.input_ids, mask, output.last_hidden_state

    def _contrastive(self, texts: list[str]) -> Tensor:
        drawn = make_views(texts, 2, self.seed * 100_003 + self.step)
        pooled = []
        for k in range(2):
            _, mask, states = self._states([pair[k] for pair in drawn])
            weight = mask.unsqueeze(-1).to(states.dtype)
            pooled.append(F.normalize((states * weight).sum(1) / weight.sum(1), dim=-1))
        logits = pooled[0] @ pooled[1].T / _TEMPERATURE
        target = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def _language(self, texts: list[str]) -> Tensor:
        ids, mask, states = self._states(texts)
        weights: Tensor = self.model.module.get_input_embeddings().weight  # type: ignore[operator]
        logits = states[:, :-1] @ weights.T
        goal = torch.where(mask[:, 1:], ids[:, 1:], -100)
        return F.cross_entropy(logits.flatten(0, 1), goal.flatten(), ignore_index=-100)


def changes(values: pd.DataFrame, last: int) -> pd.DataFrame:
    """Return, per layer, metric and sink setting, the value after the last step minus that before,
    over seeds."""
    keys = ["model", "normalization", *names(PLACE), "metric", "sink"]
    raw = values[values["normalization"] == "raw"].set_index([*keys, "seed", "step"])["value"]
    change = (raw.xs(last, level="step") - raw.xs(0, level="step")).unstack("seed").dropna()
    rows = [student_interval(seeds).columns for seeds in change.to_numpy(float)]
    table = pd.concat([change.index.to_frame(index=False), pd.DataFrame(rows)], axis=1)
    table = table.assign(kind="change").sort_values(["layer", "site"], kind="stable")
    return table.reindex(columns=values.columns)


def verdict(
    table: pd.DataFrame, options: dict[str, Any], steps: list[int], label: str
) -> list[str]:
    """Describe the mean over layers of each metric, with an interval over seeds."""
    values = table[
        (table["kind"] == "value") & (table["normalization"] == "raw") & (table["sink"] == "keep")
    ]
    means = values.groupby(["metric", "seed", "step"])["value"].mean()
    seeds = [int(seed) for seed in options["seeds"]]
    lines = []
    invariance_signs = []
    for metric in dict.fromkeys(values["metric"]):
        differences = np.array(
            [means[metric, seed, steps[-1]] - means[metric, seed, 0] for seed in seeds]
        )
        interval = student_interval(differences)
        sign = interval.sign if len(seeds) >= FEWEST_SEEDS else 0
        verb = {1: "rises", -1: "falls", 0: "does not clearly change"}[sign]
        agreeing = int((np.sign(differences) == np.sign(differences.mean())).sum())
        lines.append(
            f"  {metrics()[metric].info.title} {verb}: {interval} averaged over layers; "
            f"{agreeing} of {len(seeds)} seeds agree in sign."
        )
        if metric in INVARIANCE:
            invariance_signs.append(sign * INVARIANCE[metric])
    start = "from random weights" if options["fresh"] else f"of {label}"
    answer = (
        f"{steps[-1]} steps of {options['objective']} training {start}, {len(seeds)} "
        f"seed{'s' * (len(seeds) > 1)}"
    )
    if len(seeds) < FEWEST_SEEDS:
        answer += f" (fewer than {FEWEST_SEEDS}: nothing is called clear)"
    if invariance_signs:
        answer += (
            f": of {len(invariance_signs)} metrics of augmentation invariance "
            f"{invariance_signs.count(1)} clearly say more invariant and "
            f"{invariance_signs.count(-1)} less, over seeds"
        )
    if len(steps) > 2 and "prompt_entropy" in set(values["metric"]):
        entropies = means["prompt_entropy"].groupby("step").mean()
        by_step = join_words(f"{entropies[step]:.2f} at step {step}" for step in steps)
        lines.append(f"  Mean prompt entropy over layers and seeds: {by_step}.")
    return [in_short(answer), *lines]


STUDY = Finetune()
