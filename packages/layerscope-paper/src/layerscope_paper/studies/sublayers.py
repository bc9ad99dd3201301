"""Which step of a block compresses: attention, the MLP, or the residual sums?

Measures prompt entropy and the effective rank of a prompt's tokens at every state inside every
block, with the sink token and without it, and takes the differences between neighboring states as
the block's residual structure connects them.

Table: `state` rows (values at every site), `step` rows (the change made by every step of every
block) and `mean step` rows (its mean over blocks). Figure: both metrics against depth, a line per
kind of state. Verdict: where the residual stream falls most, which step does it, and what is left
of the fall without the sink token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import Anatomy, Batch, Site, expand_sites
from layerscope.core.columns import VALUE, names
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError
from layerscope.forward import read_states
from layerscope.metrics import Options
from layerscope.metrics.ranks import effective_rank
from layerscope.metrics.tokens import largest_token, prepare_tokens, token_norms
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.spectra import eigvalsh
from layerscope_paper.drawing import COLORS
from layerscope_paper.studies.base import Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_band,
    grid,
    label_axes,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    Spec,
    canonical,
    kept_arrays,
    most_tokens,
    profile_of,
    read_specs,
    runs_elsewhere,
)
from layerscope_paper.studies.shared.numbers import (
    MOVES,
    SINKS,
    defined_mean,
    in_short,
    join_words,
    mean_of,
    mean_table,
    means_of,
    place_of,
)
from layerscope_paper.studies.shared.profiles import by_layer

SITES = ("embed", "block.*", "block.*.*")
STREAM = "stream"  # the block's input
OUTPUT = "output"  # its output
COLUMNS = [
    "model",
    "kind",
    "step",
    "block",
    "site",
    "part",
    "layer",
    "depth",
    "metric",
    "sink",
    *names(VALUE),
]
Values = dict[tuple[str, str], np.ndarray]  # by (metric, sink): (prompts, sites)

_LOOKS = {
    "output": ("block output (stream)", "#000000", "-"),
    "mid": ("stream between the sums (mid)", "#777777", "-"),
    "norm1": ("normed for attention", COLORS[4], (0, (4, 2))),
    "attn": ("attention, as added", COLORS[0], "-"),
    "norm2": ("normed for MLP", COLORS[5], (0, (4, 2))),
    "mlp": ("MLP, as added", COLORS[1], "-"),
}
_METRICS = {
    "prompt_entropy": "prompt entropy (nats)",
    "prompt_effective_rank": "effective rank of a prompt's tokens",
}
_SINKS = {"keep": "all tokens", "drop": "without the sink token"}


class Sublayers(Study):
    """Prompt entropy and effective rank at every state inside every block."""

    name = "sublayers"
    title = "Which step of a block compresses"
    paper = "Fig. 15"
    models = (1, 1)

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile all sub-sites, then take the steps between them apart."""
        request = canonical(request)
        given = read_specs(request.models)[0]
        model = given.open(request)
        parts = {part for taps in model.anatomy.taps for part in taps}
        if not parts:
            raise LayerscopeError(
                f"{given.label} is read as the {model.anatomy.family} family, which names no "
                "states inside its blocks. Studies of whole layers (extreme, compare, scale) work; "
                "so does another family= that fits the model."
            )
        spec = given if runs_elsewhere(request) else Spec(model, given.label)
        run = profile_of(request, spec, ["prompt_entropy"], bar, SITES)
        sites = expand_sites(SITES, model.anatomy)
        values = {("prompt_entropy", sink): by_layer(run, "prompt_entropy", sink) for sink in SINKS}
        # of prompts that have tokens, by prompt number
        ids = [
            row
            for row in model.tokenize(list(request.texts or ()), most_tokens(request, model)).ids
            if len(row)
        ]
        ranks = kept_arrays(
            request.work / "prompt-ranks.safetensors",
            lambda: prompt_ranks(model, sites, ids, request.final_norm, bar),
        )
        values |= {("prompt_effective_rank", sink): ranks[sink] for sink in SINKS}
        steps = block_steps(parts, model.anatomy.residual)
        inside = Inside(given.label, sites, steps, model.n_blocks, values)
        table = tabulate(inside, request.seed)
        sentences = verdict(inside, request.seed) + [
            f"This model: {line}" for line in what_is_missing(model.anatomy)
        ]
        conventions = {
            "models": {given.label: model.identity},
            "residual": model.anatomy.residual,
            "rows": "centered-unit",
            "prompt_effective_rank": (
                "exp of the entropy of σ / Σσ of a prompt's token states, rows as for prompt "
                "entropy"
            ),
            "final_norm_where": (
                "on states of the residual stream; branches and norms inside blocks are always raw"
            ),
            "sink": (
                "the token with the largest norm, found per prompt and site on states without the "
                "final norm"
            ),
        }
        return Result(table, sentences, conventions, run.manifest["warnings"])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """A line per kind of state against depth: entropy and effective rank, with and without the
        sink."""
        states = table[table["kind"] == "state"]
        single = manifest["conventions"].get("residual") == "single"
        figure, axes = grid(2, 2, 9.6, 6.2, sharex=True, sharey="row")
        handles: dict[str, Any] = {}
        for axis, (metric, sink) in zip(axes.ravel(), product(_METRICS, _SINKS), strict=True):
            chosen = states[(states["metric"] == metric) & (states["sink"] == sink)]
            for part, (name, color, dash) in _LOOKS.items():
                rows = (
                    chosen[chosen["part"].isin([part, "embed"])]
                    if part == "output"
                    else chosen[chosen["part"] == part]
                )
                if (rows["part"] == part).any():
                    draw_band(
                        axis,
                        rows,
                        color,
                        alpha=0.10,
                        linestyle=dash,
                        linewidth=2.0 if part == "output" else 1.3,
                    )
                    handles[name.replace("attention", "mixer") if single else name] = axis.lines[-1]
        label_axes(axes, _SINKS.values(), _METRICS.values(), "depth (block / blocks)")
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=8,
        )
        return with_heading(figure, manifest, table["model"].iloc[0])


@dataclass(frozen=True)
class BlockStep:
    """One step: its name, the state it starts from and the one it ends with; `kind` is branch,
    norm, sum or back.

    `sum` goes along the residual stream; `back` compares the same sum with the branch that is added
    to it.
    """

    name: str
    start: str
    end: str
    kind: str


def block_steps(parts: set[str], residual: str) -> list[BlockStep]:
    """The steps among the sub-sites that a block has.

    >>> [step.name for step in block_steps({"norm1", "attn"}, "single")]
    ['norm', 'mixer', 'residual sum', 'mixer → sum']
    """
    single = residual == "single"
    both = "mid" in parts
    attention = "mixer" if single else "attention"
    summed = "sum and norm" if residual == "post-norm" else "residual sum"
    before = "mid" if both else STREAM
    steps = [
        BlockStep("norm" if single else "norm before attention", STREAM, "norm1", "norm"),
        BlockStep(attention, "norm1" if "norm1" in parts else STREAM, "attn", "branch"),
        BlockStep(f"{summed} after attention", STREAM, "mid", "sum"),
        BlockStep("attention → sum", "attn", "mid", "back"),
        BlockStep("norm before MLP", before, "norm2", "norm"),
        BlockStep("MLP", "norm2" if "norm2" in parts else before, "mlp", "branch"),
        BlockStep(f"{summed} after MLP" if both else summed, before, OUTPUT, "sum"),
        *([] if both else [BlockStep(f"{attention} → sum", "attn", OUTPUT, "back")]),
        BlockStep("MLP → sum", "mlp", OUTPUT, "back"),
    ]
    return [step for step in steps if {step.start, step.end} <= {*parts, STREAM, OUTPUT}]


def site_of_state(state: str, block: int) -> str:
    """The name of a site from a state of a block."""
    if state == STREAM:
        return site_of(block)
    return site_of(block + 1) if state == OUTPUT else f"block.{block}.{state}"


def what_is_missing(anatomy: Anatomy) -> list[str]:
    """In words, the sub-sites that this model does not have, and why."""
    have = {part for taps in anatomy.taps for part in taps}
    sentences = []
    if anatomy.residual == "parallel":
        sentences.append(
            "attention and MLP read the same input and are added at once: there is no state "
            "between them (`mid`)."
        )
    elif anatomy.residual == "single":
        sentences.append(
            "blocks have a single branch (a mixer, read as `attn`): there is no MLP and no state "
            "between two sums."
        )
    elif anatomy.residual == "post-norm":
        sentences.append(
            "the norm comes after each sum: `mid` and the block's output are normed, and branches "
            "read them so."
        )
    missing = [part for part in ("attn", "mid", "mlp", "norm1", "norm2") if part not in have]
    if missing and not sentences:
        sentences.append(f"not measured, as this model has none: {', '.join(missing)}.")
    return sentences


def prompt_ranks(
    model: LoadedModel,
    sites: Sequence[Site],
    ids: Sequence[Sequence[int]],
    final_norm: str,
    bar: Progress,
) -> dict[str, np.ndarray]:
    """exp of the entropy of σ / Σσ of each prompt's rows, prepared as for prompt entropy: (prompts,
    sites) by sink setting."""
    bar.begin("effective rank of prompts|texts", len(ids))
    out = {sink: np.full((len(ids), len(sites)), np.nan) for sink in SINKS}
    last = len(sites) - 1

    def measure(items: list[int], batch: Batch, index: int, raw: Tensor, state: Tensor) -> None:
        if raw.device.type == "mps":  # float64 does not exist there
            raw = raw.cpu()
            state = state.cpu()
        mask = None if batch.mask is None else batch.mask.to(raw.device)
        position = largest_token(token_norms(raw), mask)
        prepared = prepare_tokens(
            state, mask, position, Options(), curvature=False, dtype=torch.float64
        )
        for sink, matrices in prepared.matrices.items():
            out[sink][items, index] = effective_rank(eigvalsh(matrices)).cpu().numpy()
        bar.advance(len(items) if index == last else 0)

    read_states(model, ids, sites, final_norm, measure)  # type: ignore[arg-type]
    return out


@dataclass
class Inside:
    """What was measured inside a model: per-prompt values at sites, and the steps between them."""

    label: str
    sites: list[Site]
    steps: list[BlockStep]
    n_blocks: int
    values: Values

    def at(self, metric: str, sink: str, site: str) -> np.ndarray:
        """Values (prompts,) at a site."""
        names = [s.name for s in self.sites]
        return self.values[metric, sink][:, names.index(site)]

    def change(self, metric: str, sink: str, step: BlockStep, block: int) -> np.ndarray:
        """What a step does in a block, prompt by prompt."""
        return self.at(metric, sink, site_of_state(step.end, block)) - self.at(
            metric, sink, site_of_state(step.start, block)
        )

    def mean_change(
        self, metric: str, sink: str, steps: Sequence[BlockStep], blocks: Sequence[int]
    ) -> np.ndarray:
        """The mean over blocks and steps, prompt by prompt; undefined ones are left out."""
        return defined_mean(
            np.stack([self.change(metric, sink, step, k) for step in steps for k in blocks]), axis=0
        )


def tabulate(inside: Inside, seed: int) -> pd.DataFrame:
    """Values at every site (`state`), changes by every step (`step`), and their means over blocks
    (`mean step`)."""
    settings: list[tuple[dict[str, Any], np.ndarray]] = []
    blocks = range(inside.n_blocks)
    for metric, sink in inside.values:
        common = {"model": inside.label, "metric": metric, "sink": sink}
        for site in inside.sites:
            part = site.part or ("embed" if site.block is None else "output")
            state = {**common, "kind": "state", "block": site.block, "part": part, **place_of(site)}
            settings.append((state, inside.at(metric, sink, site.name)))
        for step in inside.steps:
            own = {**common, "step": step.name, "part": step.kind}
            for k in blocks:
                place = {
                    "block": k,
                    "site": site_of_state(step.end, k),
                    "layer": k + 1,
                    "depth": (k + 0.5) / inside.n_blocks,
                }
                settings.append(
                    ({**own, "kind": "step", **place}, inside.change(metric, sink, step, k))
                )
            settings.append(
                ({**own, "kind": "mean step"}, inside.mean_change(metric, sink, [step], blocks))
            )
    return mean_table(settings, seed, COLUMNS).astype(
        {"block": "Int64", "layer": "Int64", "depth": float}
    )


def verdict(inside: Inside, seed: int) -> list[str]:
    """Where the stream falls and which step does it, with the sink token and without it; then the
    mean over all blocks."""
    sums = [step for step in inside.steps if step.kind == "sum"]
    short, out = _fall(inside, sums, seed)
    for metric, name, unit in (
        ("prompt_entropy", "prompt entropy", " nats"),
        ("prompt_effective_rank", "effective rank", ""),
    ):
        kept, dropped = means_of(
            (inside.mean_change(metric, s, sums, range(inside.n_blocks)) for s in SINKS), seed
        )
        text = (
            f"On average over all blocks, the {name} of a prompt's tokens {MOVES[kept.sign]} in a "
            f"residual sum: {kept}{unit}"
        )
        out.append(f"{text}; without the sink token {dropped}.")
    for sink, words in (
        ("keep", "Mean over blocks: prompt entropy is"),
        ("drop", "Without the sink token it is"),
    ):
        out.append(f"{words} {_each(inside, 'prompt_entropy', sink, seed)}.")
    return [in_short(short), *out]


def _fall(inside: Inside, sums: list[BlockStep], seed: int) -> tuple[str, list[str]]:
    """The answer in short; then the stream's largest fall, which sums cause it, and what is left
    without the sink token."""
    stream = [site_of(layer) for layer in range(inside.n_blocks + 1)]
    curve = np.array([np.nanmean(inside.at("prompt_entropy", "keep", site)) for site in stream])
    low = int(np.argmin(curve - np.maximum.accumulate(curve)))
    top = int(np.argmax(curve[: low + 1]))
    if low == top:
        return "prompt entropy never falls along the residual stream", []
    whole = {}
    parts = {}
    for sink in SINKS:
        change = inside.at("prompt_entropy", sink, stream[low]) - inside.at(
            "prompt_entropy", sink, stream[top]
        )
        whole[sink] = mean_of(change, seed)
        moved = {
            step.name: sum(inside.change("prompt_entropy", sink, step, k) for k in range(top, low))
            for step in sums
        }
        parts[sink] = join_words(
            f"{mean_of(np.asarray(change), seed)} in the {name}" for name, change in moved.items()
        )
    kept = whole["keep"]
    dropped = whole["drop"]
    where = f"from layer {top} to layer {low}"
    out = [
        (
            f"Prompt entropy along the residual stream falls most {where}, {kept} nats: "
            f"{parts['keep']}."
        ),
        f"Without the sink token: {dropped}, {parts['drop']}.",
    ]
    changes = [
        (inside.change("prompt_entropy", "keep", step, k), step, k)
        for step in sums
        for k in range(inside.n_blocks)
    ]
    values, step, k = min(changes, key=lambda change: float(np.nanmean(change[0])))
    without = mean_of(inside.change("prompt_entropy", "drop", step, k), seed)
    text = (
        f"The single step that lowers it most is the {step.name} in block.{k}, "
        f"{mean_of(values, seed)}"
    )
    out.append(f"{text}; without the sink token {without}.")
    if not kept.sign:
        return (
            f"no clear compression: the largest fall of prompt entropy, {where}, is uncertain",
            out,
        )
    # no surer than the intervals
    left = "it is not clear whether anything is left without the sink token"
    if dropped.high < 0:
        left = (
            f"{min(1.0, dropped.value / kept.value):.0%} of it is left without the sink token"
        ).replace("%", " %")
    elif dropped.low > kept.high:
        left = "it is gone without the sink token"
    return (
        (
            f"prompt entropy falls most {where}, and {left}; the largest single step is the "
            f"{step.name} in block.{k}"
        ),
        out,
    )


def _each(inside: Inside, metric: str, sink: str, seed: int) -> str:
    """The steps that lower it, those that raise it, each with its mean over blocks; those that do
    neither are named."""
    means = {
        step.name: mean_of(inside.mean_change(metric, sink, [step], range(inside.n_blocks)), seed)
        for step in inside.steps
        if step.kind != "back"
    }
    sentences = []
    for sign, word in ((-1, "lowered by"), (1, "raised by")):
        some = sorted(
            ((name, mean) for name, mean in means.items() if mean.sign == sign),
            key=lambda pair: -abs(pair[1].value),
        )
        if some:
            sentences.append(f"{word} {', '.join(f'{name} {mean}' for name, mean in some)}")
    unclear = [name for name, mean in means.items() if mean.sign == 0]
    if unclear:
        sentences.append(f"not clearly moved by {join_words(unclear)}")
    return "; ".join(sentences)


STUDY = Sublayers()
