"""Study `reasoning`: prompt entropy along the sequence, of one model or several.

Measures the entropy of every prefix of every prompt at every layer (`prefix_entropies` has the
mathematics). Finished prompts are on disk, one file each. With `generate`, each model first
continues every text with the likeliest token at each step, and entropy is measured along the text
and this trace. Solutions written by people are measured without it, as texts (`--data
openai/gsm8k:main/test --column answer`).

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
    cached_arrays,
    folder_name,
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

_FEWEST_TOKENS = 3  # of a prompt that is measured
THIRDS = [f"the {place} third of the layers" for place in ("first", "middle", "last")]
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
            "mean to subtract: the whole prompt's, or that of the prefix (slower)",
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
        """Measure each model, one at a time; finished prompts are read from disk."""
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
        table = tabulate(measured, request.seed)
        return Result(table, verdict(measured, request.seed), conventions, notes)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw entropy against position, a color per model, a column per group of layers."""
        colors = model_colors(table)
        figure, axes = grid(1, len(THIRDS), 10.6, 3.6, sharey=True)
        table = table.assign(third=third_of(table["depth"].to_numpy()))
        looks: dict[str, dict[str, Any]] = {
            "keep": {},
            "drop": {"linestyle": DOTTED, "linewidth": 1.2, "alpha": 0.0},
        }
        for (g, axis), name, (sink, look) in product(enumerate(axes[0]), colors, looks.items()):
            rows = table[(table["third"] == g) & (table["model"] == name) & (table["sink"] == sink)]
            # bands of single layers, averaged: layers of one prompt move together, so the band of
            # their mean is not narrower
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
    shorter or a value undefined.

    `texts` has the number of tokens of each text, `traces` of those that the model wrote after it;
    `tokenizer` is a hash that differs between tokenizers.
    """

    label: str
    identity: dict[str, Any]
    sites: list[Site]
    positions: np.ndarray
    values: dict[str, np.ndarray]
    tokenizer: str
    warnings: list[str] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)
    traces: list[int] = field(default_factory=list)

    def curves(
        self, sink: str, third: int | None = None, positions: np.ndarray | None = None
    ) -> np.ndarray:
        """Return (prompts, positions): the mean over a third of the layers, or over all."""
        thirds = third_of(np.array([site.depth for site in self.sites]))
        values = self.values[sink][:, (thirds == third) | (third is None)]
        if positions is not None:
            values = values[:, :, np.isin(self.positions, positions)]
        return defined_mean(values, axis=1)

    def changes(self, sink: str, starts: Sequence[int], ends: Sequence[int], seed: int) -> str:
        """Describe the change between two positions of each prompt, in each third of the layers."""
        rows = np.arange(len(starts))
        before, after = (
            np.searchsorted(self.positions, places, side="right") - 1 for places in (starts, ends)
        )
        measured = (before >= 0) & (before < after)
        phrases = []
        for third, name in enumerate(THIRDS):
            curves = self.curves(sink, third)
            change = np.where(measured, curves[rows, after] - curves[rows, before], np.nan)
            phrases.append(f"{mean_of(change, seed)} in {name}")
        return "; ".join(phrases)


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

            block = cached_arrays(file, measure)["block"]
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
    """Return the prompts, each with the model's continuation, which is stored on disk."""
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

        trace = cached_arrays(file, measure)["trace"]
        out.append([*ids, *trace.tolist()])
        bar.advance(1)
    return out


def output_weights(model: LoadedModel) -> Tensor:
    """Return the weights that turn a final state into scores of tokens: the input embeddings, where
    the model shares them."""
    config = getattr(model.module, "config", None)
    reason = ""
    if model.identity["bidirectional"]:
        reason = "it is not a decoder"
    elif not getattr(config, "tie_word_embeddings", False):
        reason = "its output layer is not loaded"
    if reason:
        raise LayerscopeError(
            f"{model.name} cannot write here: {reason}. `generate` is for decoders that share "
            "input and output embeddings (SmolLM2, Gemma 3, Qwen 2.5 up to 3B); texts that were "
            "written elsewhere can be measured with generate=0."
        )
    return model.module.get_input_embeddings().weight  # type: ignore[operator]


def write_on(model: LoadedModel, head: Tensor, ids: Sequence[int], count: int) -> list[int]:
    """Write at most `count` tokens after `ids`, the likeliest at each step, until the text ends or
    the model's context is full."""
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
    """Return entropies (sink settings, layers, lengths) of one prompt, layer by layer to save
    memory."""
    entropies = np.full((len(SINKS), len(sites), len(lengths)), np.nan)

    def measure_layer(prompt: int, index: int, raw: Tensor, state: Tensor) -> None:
        rows = state.double()
        sink = int(torch.linalg.vector_norm(raw.double(), dim=-1).argmax())
        without_sink = torch.cat([rows[:sink], rows[sink + 1 :]])
        lengths_without = np.where(lengths > sink, lengths - 1, lengths)
        for k, (states, counts) in enumerate(((rows, lengths), (without_sink, lengths_without))):
            distinct, inverse = np.unique(counts, return_inverse=True)
            values = entropies_of_prefixes(states, distinct.tolist(), request.options["center"])
            entropies[k, index] = values.cpu().numpy()[inverse]

    read_prompts(model, sites, [ids], request.final_norm, measure_layer)
    return entropies


def tabulate(measured: Sequence[MeasuredTraces], seed: int) -> pd.DataFrame:
    """Return a row per model, layer, position and sink setting; `sd` is over prompts. Positions
    that no prompt reaches are left out."""
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
    """Return the third (0, 1, 2) in which each depth lies.

    >>> third_of(np.array([0.0, 0.2, 0.5, 0.9, 1.0])).tolist()
    [0, 0, 1, 2, 2]
    """
    return np.minimum((depths * 3).astype(int), 2)


def verdict(measured: Sequence[MeasuredTraces], seed: int) -> list[str]:
    """Describe every other model against the first, then the growth of entropy in each."""
    base, *others = measured
    short = [_answer(base, other, seed) for other in others]
    out = [line for other in others for line in _compare(base, other, seed)]
    for m in measured:
        # from a quarter of the longest prompt to its end
        end = int(m.positions[-1])
        count = len(m.values["keep"])
        start = int(m.positions[np.searchsorted(m.positions, min(max(8, end // 4), end))])
        growth = m.changes("keep", [start] * count, [end] * count, seed)
        out.append(f"{m.label}: from {start} to {end} tokens prompt entropy changes by {growth}.")
        if not others:
            curve = m.curves("keep")[:, np.isin(m.positions, [start, end])]
            sign = mean_of(curve[:, -1] - curve[:, 0], seed).sign
            verb = {1: "grows", -1: "falls", 0: "does not clearly change"}[sign]
            short = [
                f"over all layers, prompt entropy of {m.label} {verb} as more of a prompt is read"
            ]
        written = [trace for trace in m.traces if trace]
        if written:
            ends = [text + trace for text, trace in zip(m.texts, m.traces, strict=True)]
            out.append(
                f"{m.label} wrote {np.mean(written):.0f} tokens after {len(written)} of "
                f"{len(m.traces)} texts; along them prompt entropy without the sink token changes "
                f"by {m.changes('drop', m.texts, ends, seed)}."
            )
    return [in_short(join_words(short)), *out]


def _answer(base: MeasuredTraces, other: MeasuredTraces, seed: int) -> str:
    """Compare the entropies of two models over all layers, with the sink token and without it."""
    with_sink, without_sink = (_difference(base, other, sink, None, seed)[0] for sink in SINKS)
    return (
        f"over all layers, prompt entropy of {other.label} is "
        f"{DIFFERS[with_sink.sign]}{THAN[with_sink.sign]} "
        f"{base.label}{change_without_sink(with_sink, without_sink, DIFFERS)}"
    )


def _compare(base: MeasuredTraces, other: MeasuredTraces, seed: int) -> list[str]:
    """Compare two models in each third of the layers, with the sink token and without it."""
    out = []
    for sink, note in (("keep", ""), ("drop", " without the sink token")):
        phrases = []
        for third, name in enumerate(THIRDS):
            difference, spread = _difference(base, other, sink, third, seed)
            phrases.append(f"{DIFFERS[difference.sign]} in {name}, {difference} nats{spread}")
        out.append(
            f"{other.label} against {base.label}, prompt by prompt at equal numbers of "
            f"tokens{note}: {'; '.join(phrases)}."
        )
    return out


def _difference(
    base: MeasuredTraces, other: MeasuredTraces, sink: str, third: int | None, seed: int
) -> tuple[Interval, str]:
    """Return other minus base at the positions that both have, and the ratio of their spreads
    between prompts in words."""
    shared = np.intersect1d(base.positions, other.positions)
    base_curves, other_curves = (m.curves(sink, third, shared) for m in (base, other))
    difference = mean_of(defined_mean(other_curves - base_curves), seed)
    return difference, _spread(base_curves, other_curves, seed)


def _spread(base: np.ndarray, other: np.ndarray, seed: int) -> str:
    """Describe the ratio of the spreads between prompts, with its interval, over positions that all
    prompts of both models reach."""
    reached = np.isfinite(base).all(axis=0) & np.isfinite(other).all(axis=0)
    count = len(base)
    if count < 3 or not reached.any():
        return ""

    def ratio(rows: np.ndarray) -> float:
        base_spread, other_spread = (
            values[:, reached][rows].std(axis=0, ddof=1).mean() for values in (base, other)
        )
        return float(other_spread / base_spread) if base_spread > 0 else np.nan

    rows = bootstrap_rows(count, RESAMPLES // 4, [seed, count])
    value = percentile_interval(ratio(np.arange(count)), np.array([ratio(r) for r in rows]))
    return f" (spread between prompts × {value.value:.2f}, {value.low:.2f} to {value.high:.2f})"


STUDY = Reasoning()
