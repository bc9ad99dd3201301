"""How does prompt entropy grow along the sequence, and does a model that was taught to reason keep
more of it?

Measures the entropy of every prefix of every prompt at every layer, of one model or several
(`prefix_entropies` has the mathematics). Finished prompts are on disk, one file each. With
`generate`, each model first writes on after every text, the likeliest token at each step, and
entropy is followed along the text and the trace; solutions written by people are measured without
it, as texts (`--data openai/gsm8k:main/test --column answer`).

Table: a row per model, layer, position and sink setting, with the spread between prompts (`sd`).
Figure: entropy against tokens read, a column per group of layers, a color per model. Verdict: every
other model against the first, prompt by prompt at equal numbers of tokens, and the ratio of their
spreads; then the growth in each model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import Site, expand_sites
from layerscope.core.columns import PLACE, VALUE, names
from layerscope.core.statistics import INTERVAL, Interval, bootstrap_rows
from layerscope.errors import LayerscopeError
from layerscope.metrics.base import RESAMPLES
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store import checked
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.prefix_entropies import entropies_of_prefixes
from layerscope_paper.studies.shared.figures import (
    DOTTED,
    Figure,
    draw_band,
    grid,
    label_axes,
    legend,
    model_colors,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    Spec,
    folder_name,
    kept_arrays,
    read_prompts,
    read_specs,
)
from layerscope_paper.studies.shared.numbers import (
    DIFFERS,
    SINKS,
    THAN,
    change_without_sink,
    defined_mean,
    in_short,
    join_words,
    mean_of,
    mean_table,
    percentile_interval,
    place_of,
)

_FEWEST_TOKENS = 3  # a shorter prompt has no prefix worth the name
THIRDS = [f"the {part} third of the layers" for part in ("first", "middle", "last")]
COLUMNS = ["model", *names(PLACE), "position", "metric", "sink", *names(VALUE), "sd"]


class Reasoning(Study):
    """Entropy of every prefix of every prompt at every layer, of one model or several."""

    name = "reasoning"
    title = "Prompt entropy along the sequence"
    paper = "Fig. 5"
    models = (1, None)
    options = (
        Option("stride", 1, "measure every N tokens; the whole prompt is always measured", least=1),
        Option(
            "center",
            "prompt",
            "mean to subtract: the whole prompt's, or the prefix's own (slower)",
            ("prompt", "prefix"),
        ),
        Option(
            "generate",
            0,
            (
                "tokens that each model writes after every text, to be measured too; 0: the texts "
                "alone"
            ),
            least=0,
        ),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure each model, one at a time; finished prompts are found again."""
        measured = [measure(request, spec, bar) for spec in read_specs(request.models)]
        options = request.options
        conventions = {
            "models": {m.label: m.identity for m in measured},
            "rows": "centered-unit",
            "center": options["center"],
            "entropy": "in nats, of the first n tokens, not divided by the log of n",
            "sink": (
                "the token with the largest norm in the prompt, found per layer on states without "
                "the final norm"
            ),
            "trace": f"up to {options['generate']} tokens, greedy, by the model itself"
            if options["generate"]
            else None,
        }
        notes = [note for m in measured for note in m.warnings]
        if len({m.tokenizer for m in measured}) > 1:
            notes.append(
                "the models cut texts into different tokens: position n is not the same place of a "
                "text in all of them."
            )
        return Result(
            tabulate(measured, request.seed), verdict(measured, request.seed), conventions, notes
        )

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Entropy against position, a color per model, a column per group of layers."""
        colors = model_colors(table)
        figure, axes = grid(1, len(THIRDS), 10.6, 3.6, sharey=True)
        table = table.assign(third=third_of(table["depth"].to_numpy()))
        looks: dict[str, dict[str, Any]] = {
            "keep": {},
            "drop": {"linestyle": DOTTED, "linewidth": 1.2, "alpha": 0.0},
        }
        for (g, axis), name, (sink, look) in product(enumerate(axes[0]), colors, looks.items()):
            rows = table[(table["third"] == g) & (table["model"] == name) & (table["sink"] == sink)]
            # bands of single layers, averaged: layers of one prompt move together, so nothing is
            # gained by averaging them
            curve = rows.groupby("position", as_index=False)[["value", *INTERVAL]].mean()
            draw_band(axis, curve, colors[name], x="position", **look)
        label_axes(
            axes,
            [name.removeprefix("the ") for name in THIRDS],
            ["prompt entropy of the prefix (nats)"],
            "tokens read",
        )
        legend(
            axes[0, -1], {**colors, "sink token dropped": "grey"}, {"sink token dropped": DOTTED}
        )
        return with_heading(figure, manifest, size=8)


@dataclass
class MeasuredTraces:
    """One model: `values` by sink setting (prompts, layers, positions), NaN where a prompt is
    shorter or a value undefined."""

    label: str
    identity: dict[str, Any]
    sites: list[Site]
    positions: np.ndarray
    values: dict[str, np.ndarray]
    tokenizer: str
    warnings: list[str] = field(default_factory=list)
    texts: list[int] = field(
        default_factory=list
    )  # tokens of each text, before what the model wrote
    traces: list[int] = field(default_factory=list)  # tokens that it wrote

    def curves(
        self, sink: str, third: int | None = None, positions: np.ndarray | None = None
    ) -> np.ndarray:
        """(prompts, positions): the mean over a third of the layers, or over all."""
        which = third_of(np.array([site.depth for site in self.sites]))
        values = self.values[sink][:, (which == third) | (third is None)]
        return defined_mean(
            values if positions is None else values[:, :, np.isin(self.positions, positions)],
            axis=1,
        )

    def changes(self, sink: str, starts: Sequence[int], ends: Sequence[int], seed: int) -> str:
        """What happens between two positions of each prompt, in each third of the layers."""
        rows = np.arange(len(starts))
        before, after = (
            np.searchsorted(self.positions, at, side="right") - 1 for at in (starts, ends)
        )
        there = (before >= 0) & (before < after)
        parts = []
        for third, name in enumerate(THIRDS):
            curves = self.curves(sink, third)
            parts.append(
                f"{mean_of(np.where(there, curves[rows, after] - curves[rows, before], np.nan), seed)} in {name}"
            )
        return "; ".join(parts)


def measure(request: Request, spec: Spec, bar: Progress) -> MeasuredTraces:
    """Run one model over all prompts."""
    assert request.texts is not None
    model = spec.open(request)
    sites = expand_sites(None, model.anatomy)
    tokens = model.tokenize(list(request.texts.texts), request.max_length)
    folder = request.work / folder_name(spec.label)
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [len(ids) for ids in tokens.ids]
    prompts = _with_traces(model, tokens.ids, request.options["generate"], folder, bar)
    longest = max((len(ids) for ids in prompts), default=0)
    if longest < _FEWEST_TOKENS:
        raise LayerscopeError(
            f"every text has fewer than {_FEWEST_TOKENS} tokens: nothing can be measured along "
            "them."
        )
    stride = request.options["stride"]
    positions = np.unique(
        [*range(max(2, stride), longest + 1, stride), longest]
    )  # lengths that are looked at
    values = {sink: np.full((len(prompts), len(sites), len(positions)), np.nan) for sink in SINKS}
    bar.begin(f"{spec.label}|prompts", len(prompts))
    for i, ids in enumerate(prompts):
        if len(ids) >= _FEWEST_TOKENS:
            file = folder / f"{i:06d}{checked.ARRAYS}"
            shown = positions[positions <= len(ids)]

            def measure(ids: list[int] = ids, shown: np.ndarray = shown) -> dict[str, np.ndarray]:
                return {"block": _prompt(model, sites, ids, shown, request)}

            block = kept_arrays(file, measure)["block"]
            for k, sink in enumerate(SINKS):
                values[sink][i, :, : block.shape[2]] = block[k]
        bar.advance(1)
    short = sum(len(ids) < _FEWEST_TOKENS for ids in prompts)
    notes = (
        [f"{spec.label}: {short} texts with fewer than {_FEWEST_TOKENS} tokens are left out."]
        if short
        else []
    )
    if any(tokens.truncated):
        notes.append(
            f"{spec.label}: {sum(tokens.truncated)} of {len(tokens.ids)} texts were cut to "
            f"{request.max_length} tokens."
        )
    cut = hashlib.sha256(str(tokens.ids[:8]).encode()).hexdigest()
    written = [len(ids) - length for ids, length in zip(prompts, lengths, strict=True)]
    return MeasuredTraces(
        spec.label, model.identity, sites, positions, values, cut, notes, lengths, written
    )


def _with_traces(
    model: LoadedModel, prompts: list[list[int]], count: int, folder: Path, bar: Progress
) -> list[list[int]]:
    """The prompts, each with what the model writes after it; what was written is on disk."""
    if not count:
        return prompts
    head = output_weights(model)
    bar.begin(f"{model.name} writes|prompts", len(prompts))
    out = []
    for i, ids in enumerate(prompts):
        file = folder / f"{i:06d}.trace{checked.ARRAYS}"

        def measure(ids: list[int] = ids) -> dict[str, np.ndarray]:
            written = write_on(model, head, ids, count) if ids else []
            return {"trace": np.array(written, dtype=np.int64)}

        trace = kept_arrays(file, measure)["trace"]
        out.append([*ids, *trace.tolist()])
        bar.advance(1)
    return out


def output_weights(model: LoadedModel) -> Tensor:
    """What turns a final state into scores of tokens: the input embeddings, where the model shares
    them."""
    config = getattr(model.module, "config", None)
    if not getattr(config, "tie_word_embeddings", False) or model.identity["bidirectional"]:
        why = (
            "it is not a decoder"
            if model.identity["bidirectional"]
            else "its output layer is not loaded"
        )
        raise LayerscopeError(
            f"{model.name} cannot write here: {why}. `generate` is for decoders that share input "
            "and output embeddings (SmolLM2, Gemma 3, Qwen 2.5 up to 3B); texts that were written "
            "elsewhere can be measured with generate=0."
        )
    return model.module.get_input_embeddings().weight  # type: ignore[operator]


def write_on(model: LoadedModel, head: Tensor, ids: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens after `ids`, the likeliest at each step, until the text ends or the
    model's context is full."""
    ends = getattr(model.module.config, "eos_token_id", None)
    stop = set(ends if isinstance(ends, list) else [ends])
    room = count if model.max_length is None else min(count, model.max_length - len(ids))
    tokens = torch.tensor([list(ids)], device=model.device)
    written: list[int] = []
    past = None
    with torch.inference_mode():
        while len(written) < room:
            output = model.module(input_ids=tokens, past_key_values=past, use_cache=True)
            past = output.past_key_values
            token = int((head @ output.last_hidden_state[0, -1]).argmax())
            if token in stop:
                break
            written.append(token)
            tokens = torch.tensor([[token]], device=model.device)
    return written


def _prompt(
    model: LoadedModel, sites: list[Site], ids: list[int], lengths: np.ndarray, request: Request
) -> np.ndarray:
    """(sink settings, layers, lengths) of one prompt. Each layer's states are let go before the
    next."""
    out = np.full((len(SINKS), len(sites), len(lengths)), np.nan)

    def follow(prompt: int, index: int, raw: Tensor, state: Tensor) -> None:
        rows = state.double()
        sink = int(torch.linalg.vector_norm(raw.double(), dim=-1).argmax())
        others = torch.cat([rows[:sink], rows[sink + 1 :]])
        fewer = np.where(lengths > sink, lengths - 1, lengths)  # what is left of each prefix
        for k, (kept, counts) in enumerate(((rows, lengths), (others, fewer))):
            distinct, back = np.unique(counts, return_inverse=True)
            entropies = entropies_of_prefixes(kept, distinct.tolist(), request.options["center"])
            out[k, index] = entropies.cpu().numpy()[back]

    read_prompts(model, sites, [ids], request.final_norm, follow)
    return out


def tabulate(measured: Sequence[MeasuredTraces], seed: int) -> pd.DataFrame:
    """One row per model, layer, position and sink setting; `sd` is over prompts. Positions out of
    reach are left out."""
    settings: list[tuple[dict[str, Any], np.ndarray]] = []
    for m, sink in product(measured, SINKS):
        for (j, site), (p, position) in product(enumerate(m.sites), enumerate(m.positions)):
            values = m.values[sink][:, j, p]
            values = values[np.isfinite(values)]
            if len(values):
                spread = float(values.std(ddof=1)) if len(values) > 1 else np.nan
                setting = {
                    "model": m.label,
                    **place_of(site),
                    "position": int(position),
                    "sink": sink,
                    "sd": spread,
                }
                settings.append((setting, values))
    return mean_table(settings, seed, COLUMNS).assign(metric="prompt_entropy")


def third_of(depths: np.ndarray) -> np.ndarray:
    """The third in which each depth lies.

    >>> third_of(np.array([0.0, 0.2, 0.5, 0.9, 1.0])).tolist()
    [0, 0, 1, 2, 2]
    """
    return np.minimum((depths * 3).astype(int), 2)


def verdict(measured: Sequence[MeasuredTraces], seed: int) -> list[str]:
    """Every other model against the first, then how entropy grows in each."""
    base, *others = measured
    short = [_answer(base, other, seed) for other in others]
    out = [line for other in others for line in _compared(base, other, seed)]
    for m in measured:
        # from a quarter of the longest prompt to its end
        whole = int(m.positions[-1])
        count = len(m.values["keep"])
        early = int(m.positions[np.searchsorted(m.positions, min(max(8, whole // 4), whole))])
        grows = m.changes("keep", [early] * count, [whole] * count, seed)
        out.append(f"{m.label}: from {early} to {whole} tokens prompt entropy changes by {grows}.")
        if not others:
            curve = m.curves("keep")[:, np.isin(m.positions, [early, whole])]
            does = {1: "grows", -1: "falls", 0: "does not clearly change"}[
                mean_of(curve[:, -1] - curve[:, 0], seed).sign
            ]
            short = [
                f"over all layers, prompt entropy of {m.label} {does} as more of a prompt is read"
            ]
        wrote = [trace for trace in m.traces if trace]
        if wrote:
            ends = [text + trace for text, trace in zip(m.texts, m.traces, strict=True)]
            out.append(
                f"{m.label} wrote {np.mean(wrote):.0f} tokens after {len(wrote)} of "
                f"{len(m.traces)} texts; along them prompt entropy without the sink token changes "
                f"by {m.changes('drop', m.texts, ends, seed)}."
            )
    return [in_short(join_words(short)), *out]


def _answer(base: MeasuredTraces, other: MeasuredTraces, seed: int) -> str:
    """Which of two models has the higher entropy over all layers, with the sink token and without
    it."""
    kept, dropped = (_difference(base, other, sink, None, seed)[0] for sink in SINKS)
    text = (
        f"over all layers, prompt entropy of {other.label} is "
        f"{DIFFERS[kept.sign]}{THAN[kept.sign]} {base.label}"
    )
    return text + change_without_sink(kept, dropped, DIFFERS)


def _compared(base: MeasuredTraces, other: MeasuredTraces, seed: int) -> list[str]:
    out = []
    for sink, note in (("keep", ""), ("drop", " without the sink token")):
        parts = []
        for third, name in enumerate(THIRDS):
            difference, spread = _difference(base, other, sink, third, seed)
            parts.append(f"{DIFFERS[difference.sign]} in {name}, {difference} nats{spread}")
        out.append(
            (
                f"{other.label} against {base.label}, prompt by prompt at equal numbers of "
                f"tokens{note}: "
            )
            + "; ".join(parts)
            + "."
        )
    return out


def _difference(
    base: MeasuredTraces, other: MeasuredTraces, sink: str, third: int | None, seed: int
) -> tuple[Interval, str]:
    """Other minus base at the positions that both have, and the ratio of their spreads between
    prompts in words."""
    shared = np.intersect1d(base.positions, other.positions)
    one, two = (m.curves(sink, third, shared) for m in (base, other))
    return mean_of(defined_mean(two - one), seed), _spread(one, two, seed)


def _spread(one: np.ndarray, two: np.ndarray, seed: int) -> str:
    """The ratio of the spreads between prompts, over positions that all prompts of both reach, with
    its interval."""
    reached = np.isfinite(one).all(axis=0) & np.isfinite(two).all(axis=0)
    if len(one) < 3 or not reached.any():
        return ""
    one = one[:, reached]
    two = two[:, reached]

    def ratio(rows: np.ndarray) -> float:
        first = one[rows].std(axis=0, ddof=1).mean()
        return float(two[rows].std(axis=0, ddof=1).mean() / first) if first > 0 else np.nan

    drawn = np.array(
        [ratio(rows) for rows in bootstrap_rows(len(one), RESAMPLES // 4, [seed, len(one)])]
    )
    value = percentile_interval(ratio(np.arange(len(one))), drawn)
    return f" (spread between prompts × {value.value:.2f}, {value.low:.2f} to {value.high:.2f})"


STUDY = Reasoning()
