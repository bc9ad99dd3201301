"""Study `extreme`: every layer under token repetition, random tokens and growing length.

Measures prompt entropy at every layer under three conditions, on token ids: repetition (each token
is replaced with probability p by one token of the same prompt), randomness (by a random token of
the vocabulary) and length (the first n tokens). Special tokens that the tokenizer adds stay in
place and are never drawn. One set of draws serves all levels of a prompt: a token that is replaced
at p = 0.1 is replaced by the same one at p = 0.5, so that levels are compared prompt by prompt.

Table: a row per condition, level, layer and sink setting. Figure: entropy against depth, a column
per condition, a color per level. Verdict: the change under each condition between its lowest and
highest level in the middle half of the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import Site, expand_sites
from layerscope.core.columns import PLACE, VALUE, names
from layerscope.data import content_key
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope_paper.studies.base import Option, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    color_key,
    draw_levels,
    grid,
    label_axes,
    with_heading,
)
from layerscope_paper.studies.shared.models import (
    Request,
    cached_arrays,
    canonical,
    max_tokens,
    read_prompts,
    read_specs,
    reduce_prompts,
)
from layerscope_paper.studies.shared.numbers import (
    MOVES,
    SINKS,
    change_without_sink,
    in_short,
    join_words,
    layer_table,
    means_of,
    middle_half,
    name_layers,
    place_of,
    sentence,
    where_clear,
)

_LENGTHS = [8, 16, 32, 64, 128, 256, 512, 1024]
_LEVELS = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
COLUMNS = ["model", "condition", "level", *names(PLACE), "metric", "sink", *names(VALUE)]
PLAIN = ("plain", 0.0)
Values = dict[str, np.ndarray]  # by sink: (layers, prompts), NaN where there is no value

_ROWS = {"keep": "prompt entropy (nats)", "drop": "the same without\nthe sink token (nats)"}


@dataclass(frozen=True)
class Prompt:
    """Token ids of one prompt, a mask of the text's own tokens (not special ones), and a number
    that identifies the text."""

    ids: np.ndarray
    is_text: np.ndarray
    key: int

    @classmethod
    def of(cls, ids: Collection[int], special: Collection[int], key: int) -> Prompt:
        """Make a prompt from a tokenizer's ids."""
        array = np.asarray(list(ids), dtype=np.int64)
        return cls(array, ~np.isin(array, np.asarray(list(special), dtype=np.int64)), key)

    def __len__(self) -> int:
        return len(self.ids)

    def replaced(
        self, p: float, seed: int, kind: int, draw: Callable[[np.random.Generator], np.ndarray]
    ) -> np.ndarray:
        """Return ids with each of the text's tokens replaced by a drawn one with probability p."""
        rng = np.random.default_rng([seed, kind, self.key & 0xFFFFFFFF, self.key >> 32])
        chances = rng.random(len(self))
        return np.where(self.is_text & (chances < p), draw(rng), self.ids)


def repeated(
    prompt: Prompt, p: float, seed: int, vocabulary: np.ndarray | None = None
) -> np.ndarray:
    """Return ids with each of the text's tokens replaced with probability p by one token of the
    text, the same for all: p = 1 repeats it."""
    text = prompt.ids[prompt.is_text]
    if not len(text):
        return prompt.ids.copy()
    return prompt.replaced(p, seed, 0, lambda rng: text[rng.integers(len(text), size=1)])


def randomized(prompt: Prompt, p: float, seed: int, vocabulary: np.ndarray) -> np.ndarray:
    """Return ids with each of the text's tokens replaced with probability p by one drawn uniformly
    from `vocabulary`."""
    size = len(prompt)
    return prompt.replaced(
        p, seed, 1, lambda rng: vocabulary[rng.integers(len(vocabulary), size=size)]
    )


def prefix(
    prompt: Prompt, length: float, seed: int = 0, vocabulary: np.ndarray | None = None
) -> np.ndarray:
    """Return the prompt cut to `length` tokens, the special tokens at its end included; empty where
    it is shorter.

    >>> prefix(Prompt.of([1, 10, 11, 12, 2], special=[1, 2], key=0), 4).tolist()
    [1, 10, 11, 2]
    """
    end = int(np.flatnonzero(prompt.is_text)[-1]) + 1 if prompt.is_text.any() else len(prompt)
    suffix = prompt.ids[end:]
    if not len(suffix) < length <= len(prompt):
        return prompt.ids[:0]
    return np.concatenate([prompt.ids[: int(length) - len(suffix)], suffix])


class Condition(NamedTuple):
    """A way to make a prompt extreme, and its names in figures and sentences."""

    change: Callable[[Prompt, float, int, np.ndarray], np.ndarray]
    title: str
    unit: str
    increase: str  # a higher level in words


CONDITIONS = {
    "repetition": Condition(repeated, "Token repetition", "p", "more repetition"),
    "randomness": Condition(randomized, "Token randomness", "p", "more random tokens"),
    "length": Condition(prefix, "Prompt length", "tokens", "length"),
}


class Extreme(Study):
    """Prompt entropy under token repetition, token randomness and growing length."""

    name = "extreme"
    title = "Prompt entropy under extreme prompts"
    paper = "Fig. 6, App. F"
    models = (1, 1)
    options = (
        Option(
            "conditions",
            list(CONDITIONS),
            "changes to apply: repetition, randomness, length",
            tuple(CONDITIONS),
            filled=True,
        ),
        Option(
            "levels",
            _LEVELS,
            "probabilities p with which a token is replaced",
            least=0,
            most=1,
            filled=True,
        ),
        Option(
            "lengths",
            _LENGTHS,
            "numbers of tokens to keep; those above max_length are left out",
            least=1,
        ),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure the model on plain and extreme prompts."""
        request = canonical(request)
        spec = read_specs(request.models)[0]
        model = spec.open(request)
        measured = measure_all(request, model, bar)
        by_setting = {
            (*key, sink): values[sink].T
            for key, values in measured.values.items()
            for sink in SINKS
        }
        keys = ("condition", "level", "sink")
        places = [place_of(site) for site in measured.sites]
        common = {"model": spec.label, "metric": "prompt_entropy"}
        table = layer_table(by_setting, keys, places, request.seed, COLUMNS, **common)
        conventions = {
            "models": {spec.label: model.identity},
            "rows": "centered-unit",
            "entropy": "in nats, not divided by the log of the length",
            "replaced": (
                "the text's own tokens; what the tokenizer adds stays, and special tokens are "
                "never drawn"
            ),
            "levels": "one set of draws per prompt serves all levels; intervals over prompts",
            "sink": (
                "the token with the largest norm, found per prompt and layer on states without the "
                "final norm"
            ),
        }
        warnings = measured.warnings + undefined(measured)
        return Result(table, verdict(measured, request.seed), conventions, warnings)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw entropy against depth, colored by level: a column per condition, with and without
        the sink."""
        conditions = list(dict.fromkeys(table["condition"]))
        count = len(conditions)
        figure, axes = grid(2, count, 4.0 * count, 5.6, sharex=True, sharey="row")
        for column, condition in zip(axes.T, conditions, strict=True):
            rows = table[table["condition"] == condition]
            levels = sorted(rows["level"].unique())
            for axis, sink in zip(column, _ROWS, strict=True):
                draw_levels(axis, rows[rows["sink"] == sink], levels)
            names = [f"{level:g}" for level in levels]
            color_key(figure, list(column), names, CONDITIONS[condition].unit)
        label_axes(axes, [CONDITIONS[condition].title for condition in conditions], _ROWS.values())
        return with_heading(figure, manifest, table["model"].iloc[0])


@dataclass
class MeasuredPrompts:
    """Prompt entropies by (condition, level), prompts in the order of the corpus; `plain` are those
    of the unchanged prompts."""

    sites: list[Site]
    values: dict[tuple[str, float], Values]
    plain: Values
    warnings: list[str] = field(default_factory=list)


def measure_all(request: Request, model: LoadedModel, bar: Progress) -> MeasuredPrompts:
    """Measure the plain prompts and every condition."""
    assert request.texts is not None
    limit = max_tokens(request, model)
    tokens = model.tokenize(list(request.texts), limit)
    special = model.tokenizer.all_special_ids
    prompts = [
        Prompt.of(ids, special, content_key(text))
        for ids, text in zip(tokens.ids, request.texts, strict=True)
        if len(ids)
    ]
    if not prompts:
        raise DataError(
            f"the tokenizer of {model.name} finds no token in any of the {len(request.texts)} "
            "texts."
        )
    vocabulary = plain_vocabulary(vocabulary_size(model), special)
    warnings = []
    if any(tokens.truncated):
        warnings.append(
            f"{sum(tokens.truncated)} of {len(prompts)} texts were cut to {limit} tokens."
        )
    if (short := sum(int(p.is_text.sum()) < 2 for p in prompts)) > 0:
        warnings.append(
            f"{short} texts have fewer than two tokens besides special ones: repetition does not "
            "change them."
        )
    settings = _settings(request.options, min(limit, max(len(p) for p in prompts)), warnings)
    sites = expand_sites(None, model.anatomy)
    passes = {PLAIN: [p.ids for p in prompts]}
    # p = 0 changes nothing: it is the plain prompt, measured once
    pass_of = {key: PLAIN if key[0] != "length" and key[1] == 0 else key for key in settings}
    for condition, level in settings:
        if pass_of[condition, level] != PLAIN:
            change = CONDITIONS[condition].change
            passes[condition, level] = [change(p, level, request.seed, vocabulary) for p in prompts]
    bar.begin("extreme prompts|texts", len(passes) * len(prompts))
    values = {}
    for (condition, level), ids in passes.items():
        measure = partial(measure_prompts, model, sites, ids, request.final_norm, special, bar)
        values[condition, level] = cached_arrays(
            request.work / f"{condition}-{level:g}.safetensors", measure, bar, len(prompts)
        )
    by_setting = {key: values[name] for key, name in pass_of.items()}
    return MeasuredPrompts(sites, by_setting, values[PLAIN], warnings)


def _settings(
    options: dict[str, Any], longest: int, warnings: list[str]
) -> list[tuple[str, float]]:
    """Return the conditions and levels to measure."""
    lengths = [n for n in options["lengths"] if n <= longest]
    if "length" in options["conditions"] and not lengths:
        warnings.append(
            f"no length of {options['lengths']} is within the texts, the longest of which has "
            f"{longest} tokens."
        )
    levels = {"length": lengths}
    return [
        (c, float(n))
        for c in dict.fromkeys(options["conditions"])
        for n in sorted(set(levels.get(c, options["levels"])))
    ]


def vocabulary_size(model: LoadedModel) -> int:
    """Return the number of token ids that both the tokenizer and the embedding have."""
    config = getattr(model.module, "config", None)
    return min(len(model.tokenizer), getattr(config, "vocab_size", None) or len(model.tokenizer))


def plain_vocabulary(size: int, special: Collection[int]) -> np.ndarray:
    """Return every token id but the special ones."""
    return np.setdiff1d(np.arange(size, dtype=np.int64), np.asarray(list(special), dtype=np.int64))


def measure_prompts(
    model: LoadedModel,
    sites: list[Site],
    prompts: Sequence[np.ndarray],
    norm: str,
    special: Collection[int],
    bar: Progress,
) -> Values:
    """Return prompt entropies of token ids; NaN where a text repeats one token and its states are
    equal.

    A causal model without absolute positions gives such tokens the same state (behind a
    beginning-of-text token, at layer 0 only). After centering only rounding error remains, or a
    single direction, whose entropy has no meaning.
    """
    entropies = reduce_prompts(model, prompts, norm, bar, *SINKS)
    repeated_prompts = []
    for i, ids in enumerate(prompts):
        text = ids[~np.isin(ids, list(special))]
        if len(text) > 1 and len(np.unique(text)) == 1:
            repeated_prompts.append(i)

    def look(number: int, layer: int, raw: Tensor, state: Tensor) -> None:
        prompt = repeated_prompts[number]
        is_text = ~np.isin(prompts[prompt], list(special))
        z = state.float()[torch.from_numpy(is_text).to(state.device)]
        spread = torch.linalg.vector_norm(z - z.mean(0))
        size = torch.linalg.vector_norm(z)
        if bool(spread <= torch.finfo(state.dtype).eps ** 0.5 * size):
            for values in entropies.values():
                values[layer, prompt] = np.nan

    if repeated_prompts:
        read_prompts(model, sites, [prompts[i] for i in repeated_prompts], norm, look)
    return entropies


def verdict(measured: MeasuredPrompts, seed: int) -> list[str]:
    """Describe the change of each condition between its lowest and its highest level, prompt by
    prompt."""
    out: list[str] = []
    short: list[str] = []
    inner = middle_half(len(measured.sites))
    for condition in dict.fromkeys(condition for condition, _ in measured.values):
        levels = sorted(level for name, level in measured.values if name == condition)
        # at least half of the prompts must have values at every middle layer
        defined = {
            level: np.isfinite(measured.values[condition, level]["keep"][inner]).all(0).mean()
            for level in levels
        }
        levels = [level for level in levels if defined[level] >= 0.5]
        if len(levels) < 2:
            out.append(
                f"{condition.capitalize()}: fewer than two levels with a value, nothing to compare."
            )
            continue
        low = levels[0]
        high = levels[-1]
        span = f"{low:g} → {high:g} tokens" if condition == "length" else f"p = {low:g} → {high:g}"
        change = {
            sink: measured.values[condition, high][sink] - measured.values[condition, low][sink]
            for sink in SINKS
        }
        with_sink, without_sink = means_of(
            (change[sink][inner].mean(axis=0) for sink in SINKS), seed
        )
        verb = MOVES[with_sink.sign]
        short.append(
            f"{verb}{change_without_sink(with_sink, without_sink, MOVES)} with "
            f"{CONDITIONS[condition].increase}"
        )
        out.append(
            f"{condition.capitalize()} ({span}): prompt entropy {verb} in the middle half of the "
            f"layers, {with_sink} nats; without the sink token {without_sink}."
        )
        out.append(f"  {sentence(where_clear(means_of(change['keep'], seed), 'up', 'down'))}")
    answer = "there is nothing to compare"
    if short:
        answer = f"in the middle half of the layers, prompt entropy {join_words(short)}"
    return [in_short(answer), *out]


def undefined(measured: MeasuredPrompts) -> list[str]:
    """Describe the settings without a value at some layer, with the reason."""
    out = []
    for (condition, level), values in measured.values.items():
        missing = np.isnan(values["keep"]) & np.isfinite(measured.plain["keep"])
        layers = np.flatnonzero(missing.any(axis=1)).tolist()
        if layers and condition != "length":
            out.append(
                f"{condition} at p = {level:g}: the tokens of up to {missing.sum(axis=1).max()} "
                f"prompts all have the same state at {name_layers(layers)}; prompt entropy is not "
                "defined there, and those values are left out."
            )
    return out


STUDY = Extreme()
