"""Study `attention`: the token with the largest norm, and the token that gets the attention.

"Sink" has two meanings: the token whose state is far longer than the others' (a massive
activation), and the token that most of the attention goes to. This study measures both at every
block, on a few prompts, from the attention weights themselves: the model is switched to `eager`
attention, which is slow and takes memory, so the number of prompts is small.

Table: a row per model, block and metric. `attention_on_largest` and `attention_on_first` are the
shares of the attention of later tokens (all others, where attention is not causal) that go to the
token with the largest norm in the block's input, and to the first token; means over heads and
prompts. `attention_if_uniform` is the share of the first token if attention were even,
`attended_is_largest` the share of prompts whose most attended token is the one with the largest
norm, `input_ratio` that token's norm over the median. Figure: shares by depth. Verdict, per model:
the blocks in which the two sinks are one token.

    layerscope-paper study attention smollm2-135m controlled-ar --limit 8 --max-length 48
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.errors import LayerscopeError
from layerscope.metrics.tokens import find_sink
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.drawing import escape_math
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_band,
    grid,
    label_axes,
    model_colors,
    with_heading,
)
from layerscope_paper.studies.shared.models import Request, Spec, canonical, read_specs
from layerscope_paper.studies.shared.numbers import (
    VALUES,
    in_short,
    join_words,
    layer_table,
    name_layers,
    whole_layer,
)

METRICS = (
    "attention_on_largest",
    "attention_on_first",
    "attention_if_uniform",
    "attended_is_largest",
    "input_ratio",
)
_FEWEST_TOKENS = 4
_LARGE = 5.0  # a norm so many times the median is a sink by norm
_MUCH = 3.0  # attention so many times the even share is a sink by attention


class Attention(Study):
    """Attention on the largest token and on the first one, by block."""

    name = "attention"
    title = "The sink by norm and the sink by attention"
    paper = ""
    models = (1, None)
    options = (
        Option(
            "prompts",
            8,
            "maximum number of prompts: attention weights take tokens² numbers per head and block",
            least=1,
        ),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure one model after the other."""
        request = canonical(request)
        models = {}
        tables = []
        for spec in read_specs(request.models):
            models[spec.label], values = measure(request, spec, bar)
            blocks = values["input_ratio",].shape[1]
            # a block's place is that of its output
            places = [whole_layer(block + 1, blocks) for block in range(blocks)]
            common = {"model": spec.label, "normalization": "raw", "sink": "keep"}
            tables.append(layer_table(values, ("metric",), places, request.seed, VALUES, **common))
        table = pd.concat(tables, ignore_index=True)
        conventions = {
            "models": models,
            "attention": (
                "weights after the softmax, mean over heads, then over the queries that see the "
                "token, itself left out"
            ),
            "sink": (
                "the token with the largest norm in the block's input, on states without the final "
                "norm"
            ),
        }
        return Result(table, verdict(table), conventions)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw shares of attention by depth; the ratio of norms beside them."""
        figure, axes = grid(1, 2, 9.0, 3.4)
        share_axis, ratio_axis = axes[0]
        dashes = {
            "attention_on_largest": "-",
            "attention_on_first": "--",
            "attention_if_uniform": ":",
        }
        for name, color in model_colors(table).items():
            metrics = dict(iter(table[table["model"] == name].groupby("metric")))
            for metric, style in dashes.items():
                draw_band(share_axis, metrics[metric], color, linestyle=style)
            draw_band(ratio_axis, metrics["input_ratio"], color, label=escape_math(name))
        ratio_axis.set_yscale("log")
        share_title = "Attention on the largest (—), the first (--) token; even (··)"
        label_axes(axes, [share_title, "Largest norm over the median, in the block's input"])
        ratio_axis.legend(frameon=False, fontsize=7)
        return with_heading(figure, manifest, size=8)


def measure(
    request: Request, spec: Spec, bar: Progress
) -> tuple[dict[str, Any], dict[tuple[str], np.ndarray]]:
    """Run one model over a few prompts; return its identity, and values (prompts, blocks) by
    metric."""
    assert request.texts is not None
    model = spec.open(request)
    tokens = model.tokenize(list(request.texts.texts), request.max_length).ids
    prompts = [ids for ids in tokens if len(ids) >= _FEWEST_TOKENS][: request.options["prompts"]]
    if not prompts:
        raise LayerscopeError(
            f"every text has fewer than {_FEWEST_TOKENS} tokens, too few to measure attention: "
            "give longer texts."
        )
    bar.begin(f"{spec.label}|prompts", len(prompts))
    per_prompt = []
    for ids in prompts:
        weights, states = read_attention(model, ids)
        per_prompt.append([attention_facts(w, s) for w, s in zip(weights, states, strict=True)])
        bar.advance(1)
    return model.identity, {
        (name,): np.array([[block[name] for block in prompt] for prompt in per_prompt])
        for name in METRICS
    }


def read_attention(model: LoadedModel, ids: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return attention weights (heads, tokens, tokens) of every block, and the states (tokens,
    width) that each block read."""
    tokens = torch.tensor([ids], device=model.device)
    states: list[Tensor] = []

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states.append((args[0] if args else kwargs["hidden_states"])[0].detach())

    before = getattr(getattr(model.module, "config", None), "_attn_implementation", None)
    switch = getattr(model.module, "set_attn_implementation", None)
    hooks = [
        block.register_forward_pre_hook(keep, with_kwargs=True) for block in model.anatomy.blocks
    ]
    try:
        if switch is not None and before != "eager":
            switch("eager")
        with torch.inference_mode():
            output = model.module(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), output_attentions=True
            )
    finally:
        for hook in hooks:
            hook.remove()
        if switch is not None and before not in (None, "eager"):
            switch(before)
    weights = [w[0] for w in (getattr(output, "attentions", None) or ()) if w is not None]
    if not weights or len(weights) != len(states):
        raise LayerscopeError(
            f"{model.name} gives attention weights at {len(weights)} of its {len(states)} blocks: "
            "this study needs all of them. Models without attention (Mamba) have none."
        )
    return weights, states


def attention_facts(weights: Tensor, states: Tensor) -> dict[str, float]:
    """Return the metrics of one block and prompt, from weights (heads, queries, keys) and its input
    (tokens, width).

    >>> even = torch.full((1, 4, 4), 0.25)
    >>> round(attention_facts(even, torch.eye(4))["attention_on_first"], 4)
    0.25
    """
    mean = weights.double().mean(0)
    tokens = len(mean)
    causal = not bool((mean > 0).triu(1).any())
    # sees[q, k]: query q sees key k; each token itself is left out
    sees = ~torch.eye(tokens, dtype=torch.bool, device=mean.device)
    expected = torch.full_like(mean[0], 1 / tokens)
    even = 1 / tokens
    if causal:
        sees = sees.tril()
        expected = 1.0 / torch.arange(1, tokens + 1, device=mean.device).double()
        even = float(expected[1:].mean())
    # the last token of a causal model is seen by none
    counts = sees.sum(0)
    received = torch.where(sees, mean, 0.0).sum(0) / counts.clamp(min=1)
    received = torch.where(counts > 0, received, torch.nan)
    sink = find_sink(states.unsqueeze(0))
    largest = int(sink.position[0])
    # fewer queries see later keys, so each share is divided by the share in even attention
    share = torch.where(sees, mean / expected.unsqueeze(1), 0.0).sum(0) / counts.clamp(min=1)
    most_attended = int(torch.where(counts > 0, share, -1.0).argmax())
    return {
        "attention_on_largest": float(received[largest]),
        "attention_on_first": float(received[0]),
        "attention_if_uniform": even,
        "attended_is_largest": float(most_attended == largest),
        "input_ratio": float(sink.ratio[0]),
    }


def verdict(table: pd.DataFrame) -> list[str]:
    """Say, per model, in which blocks the two sinks are one token."""
    out = []
    answers = []
    for label, rows in table.groupby("model", sort=False):
        wide = rows.pivot(index="layer", columns="metric", values="value")
        even = wide["attention_if_uniform"]
        by_norm = wide.index[wide["input_ratio"] >= _LARGE]
        attended = wide.index[wide["attention_on_largest"] / even >= _MUCH]
        attended_first = wide.index[wide["attention_on_first"] >= _MUCH * even]
        answer = f"{label} has no token that stands out by norm"
        if len(by_norm):
            answer = (
                f"in {label} the largest token also draws the attention in "
                f"{len(by_norm.intersection(attended))} of {len(by_norm)} blocks"
            )
        answers.append(answer)
        top = int(wide.index[int(wide["attention_on_first"].argmax())])
        out.append(
            f"{label}: a token stands out by norm (at least {_LARGE:g} × the median) before "
            f"{_layers_or_none(by_norm)}; the first token gets at least {_MUCH:g} × its even share "
            f"in the blocks of {_layers_or_none(attended_first)}, most in that of layer {top}: "
            f"{wide['attention_on_first'].loc[top]:.0%}, {even.loc[top]:.0%} if attention were "
            "even. The most attended token is the largest in "
            f"{wide['attended_is_largest'].mean():.0%} of blocks and prompts."
        )
    return [in_short(join_words(answers)), *out]


def _layers_or_none(layers: pd.Index) -> str:
    return name_layers(layers.tolist()) if len(layers) else "no layer"


STUDY = Attention()
