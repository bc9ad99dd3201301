"""Training, step by step, in words."""

from __future__ import annotations

import numpy as np

from layerscope.profiling import Run
from layerscope.studies.checkpoints_parts.steps import Step
from layerscope.studies.shared.sampling import Mean, by_layer, mean_of
from layerscope.studies.shared.valleys import Valleys, deeper


def verdict(steps: list[Step], runs: list[Run], valleys: list[Valleys], texts: int, seed: int) -> list[str]:
    """When the valley forms, with the sink token and without it, and how the metrics move."""
    out = [_forms(steps, valleys, "keep"), _forms(steps, valleys, "drop")]
    first, last = valleys[0], valleys[-1]
    kept, dropped = deeper(first.kept, last.kept, seed), deeper(first.dropped, last.dropped, seed)
    span = f"from step {steps[0].shown} to step {steps[-1].shown}"
    out.append(f"The deepest dip changes by {kept} nats {span}; without the sink token by {dropped}.")
    for metric, unit in (("prompt_entropy", "nats"), ("curvature", "radians")):
        if metric not in set(runs[0].table["metric"]):
            continue
        out.append(_movement(runs, metric, unit, texts, seed, span))
        if metric == "prompt_entropy" and len(steps) > 2:
            out.append(_course(steps, runs, seed))
    pooled = [_pooled(runs, metric) for metric in ("dataset_entropy", "effective_rank", "sink_ratio")]
    told = [text for text in pooled if text]
    if told:
        out.append(f"At the middle layer, {span}: {'; '.join(told)}.")
    return out


def _forms(steps: list[Step], valleys: list[Valleys], sink: str) -> str:
    words = "" if sink == "keep" else "Without the sink token: "
    dips = [v.kept if sink == "keep" else v.dropped for v in valleys]
    clear = [i for i, dip in enumerate(dips) if dip.is_valley]
    deepest = max(range(len(dips)), key=lambda i: np.nan_to_num(dips[i].depth.value, nan=-1.0))
    d = dips[deepest].depth
    depth = f"{d.value:.2f} ({d.low:.2f} to {d.high:.2f}) nats at step {steps[deepest].shown}"
    if not clear:
        return _start(f"{words}no step has a clear valley of prompt entropy; the deepest dip is {depth}.")
    place = f"layer {dips[clear[0]].place} of {valleys[clear[0]].layers}"
    text = f"{words}the valley of prompt entropy is first clear at step {steps[clear[0]].shown} ({place})"
    if len(clear) < len(steps) - clear[0]:
        gone = [steps[i].shown for i in range(clear[0], len(steps)) if i not in clear]
        text += f", is not clear at step{'s' * (len(gone) > 1)} {', '.join(gone)}"
    elif clear[0] == 0:
        text += ", the first one measured"
    return _start(f"{text}, and is deepest with {depth}.")


def _movement(runs: list[Run], metric: str, unit: str, texts: int, seed: int, span: str) -> str:
    """The change over training of the middle half of the layers and of the others."""
    told = []
    for sink in ("keep", "drop"):
        one, other = (by_layer(run.prompts, metric, sink, texts).to_numpy() for run in (runs[0], runs[-1]))
        if one.shape != other.shape:
            return f"{metric.replace('_', ' ').capitalize()}: the steps have different numbers of layers, nothing to pair."
        inner = _middle(one.shape[1])
        middle, ends = mean_of((other - one)[:, inner].mean(1), seed), mean_of((other - one)[:, ~inner].mean(1), seed)
        told.append((middle, ends))
    (kept, ends), (dropped, without) = told
    name = metric.replace("_", " ").capitalize()
    does = {1: "rises", -1: "falls", 0: "does not clearly move"}
    text = (
        f"{name} {does[kept.apart]} in the middle half of the layers {span}, {kept} {unit}, and {_also(kept, ends)} in the others"
    )
    return f"{text}, {ends}; without the sink token {dropped} and {without}."


def _course(steps: list[Step], runs: list[Run], seed: int) -> str:
    """Prompt entropy of the middle half of the layers at every step: what lies between the first and the last."""
    told = []
    for step, run in zip(steps, runs, strict=True):
        values = by_layer(run.prompts, "prompt_entropy", "keep").to_numpy()
        mean = mean_of(values[:, _middle(values.shape[1])].mean(1), seed)
        told.append(f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f}) at step {step.shown}")
    return f"  On the way: {', '.join(told)}."


def _middle(layers: int) -> np.ndarray:
    depth = np.arange(layers) / (layers - 1)
    return (depth >= 0.25) & (depth <= 0.75)


def _also(one: Mean, other: Mean) -> str:
    does = {1: "rises", -1: "falls", 0: "does not clearly move"}[other.apart]
    return f"also {does}" if one.apart == other.apart and one.apart else does


def _pooled(runs: list[Run], metric: str) -> str | None:
    """A metric of all prompts together at the middle layer, before and after, each with its interval."""
    if metric not in set(runs[0].table["metric"]):
        return None
    told = []
    for run in (runs[0], runs[-1]):
        curve = run.curve(metric)
        row = curve.iloc[(curve["depth"] - 0.5).abs().argmin()]
        told.append(f"{row['value']:.3g} ({row['ci_low']:.3g} to {row['ci_high']:.3g})")
    return f"{metric.replace('_', ' ')} {told[0]} → {told[1]}"


def _start(text: str) -> str:
    return text[0].upper() + text[1:]
