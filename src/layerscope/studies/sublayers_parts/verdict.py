"""Steps inside blocks as a table and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.capture import Site
from layerscope.studies.shared.sampling import Mean, mean_of
from layerscope.studies.shared.wording import lists
from layerscope.studies.sublayers_parts.steps import Step, site_of

COLUMNS = [
    *("model", "kind", "step", "block", "site", "part", "layer", "depth", "metric", "sink"),
    *("value", "ci_low", "ci_high", "n"),
]
Values = dict[tuple[str, str], np.ndarray]  # by (metric, sink): (prompts, sites)


@dataclass
class Inside:
    """What was measured inside a model: per-prompt values at sites, and the steps between them."""

    label: str
    sites: list[Site]
    steps: list[Step]
    n_blocks: int
    values: Values

    def at(self, metric: str, sink: str, site: str) -> np.ndarray:
        """Values (prompts,) at a site."""
        names = [s.name for s in self.sites]
        return self.values[metric, sink][:, names.index(site)]

    def change(self, metric: str, sink: str, step: Step, block: int) -> np.ndarray:
        """What a step does in a block, prompt by prompt."""
        return self.at(metric, sink, site_of(step.end, block)) - self.at(metric, sink, site_of(step.start, block))

    def mean_change(self, metric: str, sink: str, steps: Sequence[Step], blocks: Sequence[int]) -> np.ndarray:
        """The mean over blocks and steps, prompt by prompt; undefined ones are left out."""
        held = np.stack([self.change(metric, sink, step, k) for step in steps for k in blocks])
        count = np.isfinite(held).sum(axis=0)
        return np.where(count > 0, np.nansum(held, axis=0) / np.maximum(count, 1), np.nan)


def tabulate(inside: Inside, seed: int) -> pd.DataFrame:
    """Values at every site (`state`), changes by every step (`step`), and their means over blocks (`mean step`)."""
    rows: list[list[object]] = []

    def add(place: list[object], values: np.ndarray) -> None:
        mean = mean_of(values, seed)
        rows.append([inside.label, *place, mean.value, mean.low, mean.high, mean.n])

    for metric, sink in inside.values:
        for site in inside.sites:
            part = site.part or ("embed" if site.block is None else "output")
            place: list[object] = ["state", None, site.block, site.name, part, site.layer, site.depth, metric, sink]
            add(place, inside.at(metric, sink, site.name))
        for step in inside.steps:
            for k in range(inside.n_blocks):
                where = [k, site_of(step.end, k), step.kind, k + 1, (k + 0.5) / inside.n_blocks]
                add(["step", step.name, *where, metric, sink], inside.change(metric, sink, step, k))
            whole = inside.mean_change(metric, sink, [step], range(inside.n_blocks))
            add(["mean step", step.name, None, None, step.kind, None, None, metric, sink], whole)
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"block": "Int64", "layer": "Int64", "depth": float})


def verdict(inside: Inside, seed: int) -> list[str]:
    """Where the stream falls and which step does it, with the sink token and without it; then the mean over all blocks."""
    sums = [step for step in inside.steps if step.kind == "sum"]
    blocks = range(inside.n_blocks)
    total = {s: mean_of(inside.mean_change("prompt_entropy", s, sums, blocks), seed) for s in ("keep", "drop")}
    out = [*_fall(inside, sums, seed), _average(total["keep"], total["drop"])]
    for sink, words in (("keep", "Mean over blocks: prompt entropy is"), ("drop", "Without the sink token it is")):
        out.append(f"{words} {_each(inside, 'prompt_entropy', sink, seed)}.")
    rank = {s: mean_of(inside.mean_change("prompt_effective_rank", s, sums, blocks), seed) for s in ("keep", "drop")}
    text = f"The sums change the effective rank of a prompt's tokens by {rank['keep']} each"
    out.append(f"{text}; without the sink token {rank['drop']}.")
    return out


def _average(kept: Mean, dropped: Mean) -> str:
    does = {1: "raise", -1: "lower", 0: "do not clearly move"}
    text = f"On average over all blocks the residual sums {does[kept.apart]} prompt entropy: {kept} nats per sum"
    if kept.apart == dropped.apart:
        return f"{text}; without the sink token the same, {dropped}."
    return f"{text}; without the sink token they {does[dropped.apart]} it: {dropped}."


def _fall(inside: Inside, sums: list[Step], seed: int) -> list[str]:
    """The stream's largest fall between two layers, which sums do it, and what is left of it without the sink token."""
    stream = [site_of("stream", k) for k in range(inside.n_blocks)] + [site_of("output", inside.n_blocks - 1)]
    curve = np.array([np.nanmean(inside.at("prompt_entropy", "keep", site)) for site in stream])
    low = int(np.argmin(curve - np.maximum.accumulate(curve)))
    top = int(np.argmax(curve[: low + 1]))
    if low == top:
        return ["Along the residual stream prompt entropy never falls."]
    whole, parts = {}, {}
    for sink in ("keep", "drop"):
        change = inside.at("prompt_entropy", sink, stream[low]) - inside.at("prompt_entropy", sink, stream[top])
        whole[sink] = mean_of(change, seed)
        moved = {step.name: sum(inside.change("prompt_entropy", sink, step, k) for k in range(top, low)) for step in sums}
        parts[sink] = lists(f"{mean_of(np.asarray(held), seed)} in the {name}" for name, held in moved.items())
    kept, dropped = whole["keep"], whole["drop"]
    text = f"Prompt entropy along the residual stream falls most from layer {top} to layer {low}, {kept} nats: {parts['keep']}."
    left = _left(kept, dropped)
    out = [text, f"{left}: {dropped}, {parts['drop']}."]
    changes = [(inside.change("prompt_entropy", "keep", step, k), step, k) for step in sums for k in range(inside.n_blocks)]
    values, step, k = min(changes, key=lambda held: float(np.nanmean(held[0])))
    without = mean_of(inside.change("prompt_entropy", "drop", step, k), seed)
    text = f"The single step that lowers it most is the {step.name} in block.{k}, {mean_of(values, seed)}"
    out.append(f"{text}; without the sink token {without}.")
    return out


def _left(kept: Mean, dropped: Mean) -> str:
    """What is left of a fall without the sink token, no surer than the intervals."""
    if not kept.apart:
        return "That fall is not clear; without the sink token"
    if dropped.high < 0:
        share = "all" if dropped.value <= 0.995 * kept.value else f"{dropped.value / kept.value:.0%}".replace("%", " %")
        return f"Without the sink token {share} of the fall is left"
    if dropped.low > kept.high:
        return "It is one token's: without the sink no fall is left"
    return "What is left without the sink token is not clear"


def _each(inside: Inside, metric: str, sink: str, seed: int) -> str:
    """The steps that lower it, those that raise it, each with its mean over blocks; those that do neither are named."""
    held = {
        step.name: mean_of(inside.mean_change(metric, sink, [step], range(inside.n_blocks)), seed)
        for step in inside.steps
        if step.kind != "back"
    }
    told = []
    for sign, word in ((-1, "lowered by"), (1, "raised by")):
        some = sorted(((name, mean) for name, mean in held.items() if mean.apart == sign), key=lambda pair: -abs(pair[1].value))
        if some:
            told.append(f"{word} {', '.join(f'{name} {mean}' for name, mean in some)}")
    unclear = [name for name, mean in held.items() if mean.apart == 0]
    if unclear:
        told.append(f"not clearly moved by {lists(unclear)}")
    return "; ".join(told)
