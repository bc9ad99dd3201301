"""Study `sublayers`: the change that attention, MLP and residual sums make inside every block.

Measures prompt entropy and the effective rank of a prompt's tokens at every state inside every
block, with the sink token and without it, and takes the differences between neighboring states as
the block's residual structure connects them.

Table: `state` rows (values at every site), `step` rows (the change made by every step of every
block) and `mean step` rows (its mean over blocks). Figure: both metrics against depth, a line per
kind of state. Verdict: the largest fall along the residual stream, the steps that cause it, and the
fall without the sink token.
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
    legend,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    Spec,
    cached_arrays,
    canonical,
    max_tokens,
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
        """Profile all sub-sites, then take the differences between neighboring states."""
        request = canonical(request)
        spec = read_specs(request.models)[0]
        model = spec.open(request)
        names = sub_sites(model.anatomy)
        if not names:
            raise LayerscopeError(
                f"{spec.label} is read as the {model.anatomy.family} family, which names no states "
                "inside its blocks. Studies of whole layers (extreme, compare, scale) work; so "
                "does another family= that fits the model."
            )
        profiled = spec if runs_elsewhere(request) else Spec(model, spec.label)
        run = profile_of(request, profiled, ["prompt_entropy"], bar, SITES)
        sites = expand_sites(SITES, model.anatomy)
        values = {("prompt_entropy", sink): by_layer(run, "prompt_entropy", sink) for sink in SINKS}
        # of prompts that have tokens, by prompt number
        tokens = model.tokenize(list(request.texts or ()), max_tokens(request, model))
        ids = [row for row in tokens.ids if len(row)]
        ranks = cached_arrays(
            request.work / "prompt-ranks.safetensors",
            lambda: prompt_ranks(model, sites, ids, request.final_norm, bar),
        )
        values |= {("prompt_effective_rank", sink): ranks[sink] for sink in SINKS}
        steps = block_steps(names, model.anatomy.residual)
        states = BlockStates(spec.label, sites, steps, model.n_blocks, values)
        table = tabulate(states, request.seed)
        sentences = verdict(states, request.seed) + [
            f"This model: {line}" for line in missing_sub_sites(model.anatomy)
        ]
        conventions = {
            "models": {spec.label: model.identity},
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
        """Draw a line per kind of state against depth: entropy and effective rank, with and without
        the sink."""
        states = table[table["kind"] == "state"]
        single = manifest["conventions"].get("residual") == "single"
        figure, axes = grid(2, 2, 9.6, 6.2, sharex=True, sharey="row")
        colors: dict[str, str] = {}
        dashes: dict[str, Any] = {}
        for axis, (metric, sink) in zip(axes.ravel(), product(_METRICS, _SINKS), strict=True):
            values = states[(states["metric"] == metric) & (states["sink"] == sink)]
            for state, (name, color, dash) in _LOOKS.items():
                if not (values["part"] == state).any():
                    continue
                drawn = [state, "embed"] if state == OUTPUT else [state]
                rows = values[values["part"].isin(drawn)]
                width = 2.0 if state == OUTPUT else 1.3
                draw_band(axis, rows, color, alpha=0.10, linestyle=dash, linewidth=width)
                shown = name.replace("attention", "mixer") if single else name
                colors[shown] = color
                dashes[shown] = dash
        label_axes(axes, _SINKS.values(), _METRICS.values(), "depth (block / blocks)")
        legend(figure, colors, dashes, loc="outside lower center", ncols=3, fontsize=8)
        return with_heading(figure, manifest, table["model"].iloc[0])


@dataclass(frozen=True)
class BlockStep:
    """One step between two states of a block; its `kind` is branch, norm, sum or back.

    `sum` goes along the residual stream; `back` compares the same sum with the branch that is added
    to it.
    """

    name: str
    start: str
    end: str
    kind: str


def sub_sites(anatomy: Anatomy) -> set[str]:
    """Return the names of the sub-sites that the blocks have."""
    return {name for taps in anatomy.taps for name in taps}


def block_steps(names: set[str], residual: str) -> list[BlockStep]:
    """Return the steps among the sub-sites that a block has.

    >>> [step.name for step in block_steps({"norm1", "attn"}, "single")]
    ['norm', 'mixer', 'residual sum', 'mixer → sum']
    """
    single = residual == "single"
    two_sums = "mid" in names
    attention = "mixer" if single else "attention"
    total = "sum and norm" if residual == "post-norm" else "residual sum"
    mlp_input = "mid" if two_sums else STREAM
    steps = [
        BlockStep("norm" if single else "norm before attention", STREAM, "norm1", "norm"),
        BlockStep(attention, "norm1" if "norm1" in names else STREAM, "attn", "branch"),
        BlockStep(f"{total} after attention", STREAM, "mid", "sum"),
        BlockStep("attention → sum", "attn", "mid", "back"),
        BlockStep("norm before MLP", mlp_input, "norm2", "norm"),
        BlockStep("MLP", "norm2" if "norm2" in names else mlp_input, "mlp", "branch"),
        BlockStep(f"{total} after MLP" if two_sums else total, mlp_input, OUTPUT, "sum"),
        BlockStep(f"{attention} → sum", "attn", OUTPUT, "back"),
        BlockStep("MLP → sum", "mlp", OUTPUT, "back"),
    ]
    if two_sums:  # attention is added at `mid`
        del steps[7]
    return [step for step in steps if {step.start, step.end} <= {*names, STREAM, OUTPUT}]


def site_of_state(state: str, block: int) -> str:
    """Return the name of a site from a state of a block."""
    if state == STREAM:
        return site_of(block)
    return site_of(block + 1) if state == OUTPUT else f"block.{block}.{state}"


def missing_sub_sites(anatomy: Anatomy) -> list[str]:
    """Describe the sub-sites that this model does not have, with the reason."""
    names = sub_sites(anatomy)
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
    missing = [name for name in ("attn", "mid", "mlp", "norm1", "norm2") if name not in names]
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
    """Return exp of the entropy of σ / Σσ of each prompt's rows, prepared as for prompt entropy:
    (prompts, sites) by sink setting."""
    bar.begin("effective rank of prompts|texts", len(ids))
    ranks = {sink: np.full((len(ids), len(sites)), np.nan) for sink in SINKS}
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
            ranks[sink][items, index] = effective_rank(eigvalsh(matrices)).cpu().numpy()
        bar.advance(len(items) if index == last else 0)

    read_states(model, ids, sites, final_norm, measure)  # type: ignore[arg-type]
    return ranks


@dataclass
class BlockStates:
    """Per-prompt values at the sites inside a model, and the steps between the sites."""

    label: str
    sites: list[Site]
    steps: list[BlockStep]
    n_blocks: int
    values: Values

    def at(self, metric: str, sink: str, site: str) -> np.ndarray:
        """Return values (prompts,) at a site."""
        names = [s.name for s in self.sites]
        return self.values[metric, sink][:, names.index(site)]

    def change(self, metric: str, sink: str, step: BlockStep, block: int) -> np.ndarray:
        """Return the change that a step makes in a block, prompt by prompt."""
        return self.at(metric, sink, site_of_state(step.end, block)) - self.at(
            metric, sink, site_of_state(step.start, block)
        )

    def mean_change(
        self, metric: str, sink: str, steps: Sequence[BlockStep], blocks: Sequence[int]
    ) -> np.ndarray:
        """Return the mean over blocks and steps, prompt by prompt; undefined ones are left out."""
        changes = [self.change(metric, sink, step, k) for step in steps for k in blocks]
        return defined_mean(np.stack(changes), axis=0)


def tabulate(states: BlockStates, seed: int) -> pd.DataFrame:
    """Return values at every site (`state`), changes by every step (`step`), and their means over
    blocks (`mean step`)."""
    settings: list[tuple[dict[str, Any], np.ndarray]] = []
    blocks = range(states.n_blocks)
    for metric, sink in states.values:
        common = {"model": states.label, "metric": metric, "sink": sink}
        for site in states.sites:
            state = site.part or ("embed" if site.block is None else OUTPUT)
            place = {"kind": "state", "block": site.block, "part": state, **place_of(site)}
            settings.append(({**common, **place}, states.at(metric, sink, site.name)))
        for step in states.steps:
            common_step = {**common, "step": step.name, "part": step.kind}
            for k in blocks:
                place = {
                    "kind": "step",
                    "block": k,
                    "site": site_of_state(step.end, k),
                    "layer": k + 1,
                    "depth": (k + 0.5) / states.n_blocks,
                }
                settings.append(({**common_step, **place}, states.change(metric, sink, step, k)))
            mean = states.mean_change(metric, sink, [step], blocks)
            settings.append(({**common_step, "kind": "mean step"}, mean))
    return mean_table(settings, seed, COLUMNS).astype(
        {"block": "Int64", "layer": "Int64", "depth": float}
    )


def verdict(states: BlockStates, seed: int) -> list[str]:
    """Describe the fall of the stream and the steps that cause it, with the sink token and without
    it; then the mean over all blocks."""
    sums = [step for step in states.steps if step.kind == "sum"]
    short, out = _fall(states, sums, seed)
    for metric, name, unit in (
        ("prompt_entropy", "prompt entropy", " nats"),
        ("prompt_effective_rank", "effective rank", ""),
    ):
        with_sink, without_sink = means_of(
            (states.mean_change(metric, s, sums, range(states.n_blocks)) for s in SINKS), seed
        )
        out.append(
            f"On average over all blocks, the {name} of a prompt's tokens {MOVES[with_sink.sign]} "
            f"in a residual sum: {with_sink}{unit}; without the sink token {without_sink}."
        )
    for sink, words in (
        ("keep", "Mean over blocks: prompt entropy is"),
        ("drop", "Without the sink token it is"),
    ):
        out.append(f"{words} {_describe_steps(states, 'prompt_entropy', sink, seed)}.")
    return [in_short(short), *out]


def _fall(states: BlockStates, sums: list[BlockStep], seed: int) -> tuple[str, list[str]]:
    """Return the answer in short; then the stream's largest fall, the sums that cause it, and the
    fall without the sink token."""
    stream = [site_of(layer) for layer in range(states.n_blocks + 1)]
    curve = np.array([np.nanmean(states.at("prompt_entropy", "keep", site)) for site in stream])
    low = int(np.argmin(curve - np.maximum.accumulate(curve)))
    top = int(np.argmax(curve[: low + 1]))
    if low == top:
        return "prompt entropy never falls along the residual stream", []
    falls = {}
    by_sum = {}
    for sink in SINKS:
        ends = [states.at("prompt_entropy", sink, stream[layer]) for layer in (top, low)]
        falls[sink] = mean_of(ends[1] - ends[0], seed)
        phrases = []
        for step in sums:
            steps = [states.change("prompt_entropy", sink, step, k) for k in range(top, low)]
            phrases.append(f"{mean_of(np.sum(steps, axis=0), seed)} in the {step.name}")
        by_sum[sink] = join_words(phrases)
    span = f"from layer {top} to layer {low}"
    out = [
        f"Prompt entropy along the residual stream falls most {span}, {falls['keep']} nats: "
        f"{by_sum['keep']}.",
        f"Without the sink token: {falls['drop']}, {by_sum['drop']}.",
    ]
    step, k = min(
        product(sums, range(states.n_blocks)),
        key=lambda key: float(np.nanmean(states.change("prompt_entropy", "keep", *key))),
    )
    with_sink, without_sink = (
        mean_of(states.change("prompt_entropy", sink, step, k), seed) for sink in SINKS
    )
    out.append(
        f"The single step that lowers it most is the {step.name} in block.{k}, {with_sink}; "
        f"without the sink token {without_sink}."
    )
    fall = falls["keep"]
    fall_without = falls["drop"]
    if not fall.sign:
        return (
            f"no clear compression: the largest fall of prompt entropy, {span}, is uncertain",
            out,
        )
    # no more certain than the intervals
    remainder = "it is not clear whether anything is left without the sink token"
    if fall_without.high < 0:
        share = 100 * min(1.0, fall_without.value / fall.value)
        remainder = f"{share:.0f} % of it is left without the sink token"
    elif fall_without.low > fall.high:
        remainder = "it is gone without the sink token"
    answer = (
        f"prompt entropy falls most {span}, and {remainder}; the largest single step is the "
        f"{step.name} in block.{k}"
    )
    return answer, out


def _describe_steps(states: BlockStates, metric: str, sink: str, seed: int) -> str:
    """Name the steps that lower a metric and those that raise it, each with its mean over blocks,
    and those that do neither."""
    blocks = range(states.n_blocks)
    means = {
        step.name: mean_of(states.mean_change(metric, sink, [step], blocks), seed)
        for step in states.steps
        if step.kind != "back"
    }
    by_size = sorted(means.items(), key=lambda pair: -abs(pair[1].value))
    phrases = []
    for sign, verb in ((-1, "lowered by"), (1, "raised by")):
        steps = [f"{name} {mean}" for name, mean in by_size if mean.sign == sign]
        if steps:
            phrases.append(f"{verb} {', '.join(steps)}")
    unclear = [name for name, mean in means.items() if mean.sign == 0]
    if unclear:
        phrases.append(f"not clearly moved by {join_words(unclear)}")
    return "; ".join(phrases)


STUDY = Sublayers()
