"""What happens to every layer when a prompt repeats itself, turns into noise, or grows?

Measures prompt entropy at every layer under three conditions, on token ids: repetition (each token is replaced with probability p
by one token of the same prompt), randomness (by a random token of the vocabulary) and length (the first n tokens). Special tokens
that the tokenizer adds stay in place and are never drawn. One set of draws serves all levels of a prompt: what is replaced at
p = 0.1 is replaced by the same token at p = 0.5, so that levels are compared prompt by prompt.

Table: a row per condition, level, layer and sink setting. Figure: entropy against depth, a column per condition, a color per
level. Verdict: what each condition does between its lowest and highest level in the middle half of the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.capture import Batch, Reducer, Site, expand_sites
from layerscope.capture.hooks import FinalNorm
from layerscope.core.columns import PLACE, VALUE, names
from layerscope.data.items import content_key
from layerscope.errors import DataError
from layerscope.forward import BatchRunner
from layerscope.metrics import Options
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.report.drawing import color_key
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import SINKS, mean_table, means_of, middle_half, place_of
from layerscope.studies.shared.figures import Figure, draw_levels, grid, head, label_axes
from layerscope.studies.shared.models import Request, canonical, read_prompts, read_specs
from layerscope.studies.shared.words import MOVES, clear_layers, in_short, join_words, name_layers
from layerscope.studies.shared.work import kept_arrays, most_tokens

CONDITIONS = ("repetition", "randomness", "length")
_LENGTHS = [8, 16, 32, 64, 128, 256, 512, 1024]
_LEVELS = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
COLUMNS = ["model", "condition", "level", *names(PLACE), "metric", "sink", *names(VALUE)]
Repeat = Literal["one", "each"]
Values = dict[str, np.ndarray]  # by sink: (prompts, layers), NaN where there is no value

_GROWS = {"repetition": "more repetition", "randomness": "more random tokens", "length": "length"}
_TITLES = {"repetition": "Token repetition", "randomness": "Token randomness", "length": "Prompt length"}
_KEYS = {"repetition": "p", "randomness": "p", "length": "tokens"}
_ROWS = {"keep": "prompt entropy (nats)", "drop": "the same without\nthe sink token (nats)"}


class Extreme(Study):
    """Prompt entropy under token repetition, token randomness and growing length."""

    name = "extreme"
    title = "Prompt entropy under extreme prompts"
    paper = "Fig. 6, App. F"
    models = (1, 1)
    options = (
        Option("conditions", list(CONDITIONS), "changes to apply: repetition, randomness, length", valid=CONDITIONS, filled=True),
        Option("levels", _LEVELS, "probabilities p with which a token is replaced", least=0, most=1, filled=True),
        Option("lengths", _LENGTHS, "numbers of tokens to keep; those above max_length are left out", least=1),
        Option("draws", 1, "random draws per prompt; the prompt's value is their mean", least=1),
        Option("repeat", "one", "one: draw one token per prompt, which p = 1 repeats; each: one per position", ("one", "each")),
        Option("alpha", 1.0, "order of the entropy"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure the model on the prompts as they are and made extreme."""
        request = canonical(request)
        spec = read_specs(request.models)[0]
        model = spec.open(request)
        measured = measure_all(request, model, bar)
        table = tabulate(measured, spec.label, request.seed)
        conventions = {
            "models": {spec.label: model.identity},
            "rows": "centered-unit",
            "alpha": request.options["alpha"],
            "entropy": "in nats, not divided by the log of the length",
            "replaced": "the text's own tokens; what the tokenizer adds stays, and special tokens are never drawn",
            "levels": "one set of draws per prompt serves all levels; intervals over prompts",
            "sink": "the token with the largest norm, found per prompt and layer on states without the final norm",
        }
        return Result(table, verdict(measured, request.seed), conventions, measured.warnings + undefined(measured))

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Entropy against depth, colored by level: a column per condition, with and without the sink."""
        conditions = list(dict.fromkeys(table["condition"]))
        figure, axes = grid(2, len(conditions), 4.0 * len(conditions), 5.6, sharex=True, sharey="row")
        for column, condition in zip(axes.T, conditions, strict=True):
            chosen = table[table["condition"] == condition]
            levels = sorted(chosen["level"].unique())
            for axis, sink in zip(column, _ROWS, strict=True):
                draw_levels(axis, chosen[chosen["sink"] == sink], levels)
            color_key(figure, list(column), [f"{level:g}" for level in levels], _KEYS[condition])
        label_axes(axes, [_TITLES[condition] for condition in conditions], _ROWS.values())
        return head(figure, manifest, table["model"].iloc[0])


@dataclass
class MeasuredPrompts:
    """Prompt entropies by (condition, level), prompts in the order of the corpus; `plain` are the prompts as they are."""

    sites: list[Site]
    values: dict[tuple[str, float], Values]
    plain: Values
    warnings: list[str] = field(default_factory=list)


def measure_all(request: Request, model: LoadedModel, bar: Progress) -> MeasuredPrompts:
    """Measure the plain prompts and every condition."""
    assert request.texts is not None
    options = request.options
    limit = most_tokens(request, model)
    tokens = model.tokenize(list(request.texts), limit)
    special = model.tokenizer.all_special_ids
    prompts = [
        Prompt.of(ids, special, content_key(text)) for ids, text in zip(tokens.ids, request.texts, strict=True) if len(ids)
    ]
    if not prompts:
        raise DataError(f"the tokenizer of {model.name} finds no token in any of the {len(request.texts)} texts.")
    vocabulary = plain_vocabulary(vocabulary_size(model), special)
    warnings = []
    if any(tokens.truncated):
        warnings.append(f"{sum(tokens.truncated)} of {len(prompts)} texts were cut to {limit} tokens.")
    if (short := sum(int(p.own.sum()) < 2 for p in prompts)) > 0:
        warnings.append(f"{short} texts have fewer than two tokens of their own: repetition leaves them as they are.")
    wanted = _wanted(options, prompts, limit, warnings)
    bar.begin("extreme prompts|texts", sum(_count(options, *each) * len(prompts) for each in [("plain", 0.0), *wanted]))
    meter = Meter(model, request.final_norm, Options(alpha=options["alpha"]), special)  # type: ignore[arg-type]

    def values_of(condition: str, level: float) -> Values:
        file = request.work / f"{condition}-{level:g}.npz"
        units = _count(options, condition, level) * len(prompts)
        return kept_arrays(file, lambda: _measure(meter, prompts, condition, level, request, vocabulary, bar), bar, units)

    plain = values_of("plain", 0.0)
    # p = 0 changes nothing: it is the plain prompt, measured once
    values = {
        (condition, level): plain if condition != "length" and level == 0 else values_of(condition, level)
        for condition, level in wanted
    }
    return MeasuredPrompts(meter.sites, values, plain, warnings)


def _wanted(options: dict[str, Any], prompts: list[Prompt], limit: int, warnings: list[str]) -> list[tuple[str, float]]:
    out = []
    for condition in dict.fromkeys(options["conditions"]):
        if condition != "length":
            out += [(condition, float(level)) for level in sorted(set(options["levels"]))]
            continue
        longest = max(len(p) for p in prompts)
        usable = [n for n in sorted(set(options["lengths"])) if n <= min(limit, longest)]
        if not usable:
            warnings.append(f"no length of {options['lengths']} is within the texts, the longest of which has {longest} tokens.")
        out += [(condition, float(n)) for n in usable]
    return out


def _count(options: dict[str, Any], condition: str, level: float) -> int:
    """Passes per prompt."""
    return int(options["draws"]) if condition in ("repetition", "randomness") and level > 0 else 1


def _measure(
    meter: Meter, prompts: list[Prompt], condition: str, level: float, request: Request, vocabulary: np.ndarray, bar: Progress
) -> Values:
    rounds = []
    for draw in range(_count(request.options, condition, level)):
        seed = request.seed + 1_000_003 * draw
        ids: list[np.ndarray | None]
        if condition == "repetition":
            ids = [repeated(p, level, seed, request.options["repeat"]) for p in prompts]
        elif condition == "randomness":
            ids = [randomized(p, level, seed, vocabulary) for p in prompts]
        elif condition == "length":
            ids = [prefix(p, int(level)) for p in prompts]
        else:
            ids = [p.ids for p in prompts]
        have = [i for i, row in enumerate(ids) if row is not None]
        got = meter.run([row for row in ids if row is not None], bar)
        whole = {sink: np.full((len(prompts), len(meter.sites)), np.nan) for sink in SINKS}
        for sink in SINKS:
            whole[sink][have] = got[sink]
        rounds.append(whole)
    return {sink: np.mean([values[sink] for values in rounds], axis=0) for sink in SINKS}


def vocabulary_size(model: LoadedModel) -> int:
    """Token ids that both the tokenizer and the embedding know."""
    known = len(model.tokenizer)
    rows = getattr(getattr(model.module, "config", None), "vocab_size", None)
    return known if rows is None else min(known, int(rows))


@dataclass(frozen=True)
class Prompt:
    """Token ids of one prompt, which of them are the text's own, and a number that stands for the text."""

    ids: np.ndarray
    own: np.ndarray
    key: int

    @classmethod
    def of(cls, ids: Collection[int], special: Collection[int], key: int) -> Prompt:
        """A prompt from a tokenizer's ids."""
        array = np.asarray(list(ids), dtype=np.int64)
        return cls(array, ~np.isin(array, np.asarray(list(special), dtype=np.int64)), key)

    def __len__(self) -> int:
        return len(self.ids)


def repeated(prompt: Prompt, p: float, seed: int, how: Repeat = "one") -> np.ndarray:
    """Each of the text's tokens replaced with probability p by one drawn from the same text.

    `one`: a single token is drawn for the whole prompt, so that p = 1 leaves one token repeated; `each`: anew each time.
    """
    text = prompt.ids[prompt.own]
    if not len(text):
        return prompt.ids.copy()
    rng = _rng(prompt, seed, 0)
    chances = rng.random(len(prompt))
    drawn = text[rng.integers(len(text), size=1 if how == "one" else len(prompt))]
    return np.where(prompt.own & (chances < p), drawn, prompt.ids)


def randomized(prompt: Prompt, p: float, seed: int, vocabulary: np.ndarray) -> np.ndarray:
    """Each of the text's tokens replaced with probability p by one drawn uniformly from `vocabulary`."""
    rng = _rng(prompt, seed, 1)
    chances = rng.random(len(prompt))
    drawn = vocabulary[rng.integers(len(vocabulary), size=len(prompt))]
    return np.where(prompt.own & (chances < p), drawn, prompt.ids)


def prefix(prompt: Prompt, length: int) -> np.ndarray | None:
    """The prompt cut to `length` tokens, with what the tokenizer added at its end put back; None where it is shorter.

    >>> prefix(Prompt.of([1, 10, 11, 12, 2], special=[1, 2], key=0), 4).tolist()
    [1, 10, 11, 2]
    """
    if len(prompt) < length:
        return None
    behind = len(prompt) - 1 - int(np.flatnonzero(prompt.own)[-1]) if prompt.own.any() else 0
    if length <= behind:
        return None
    return np.concatenate([prompt.ids[: length - behind], prompt.ids[len(prompt) - behind :]])


def plain_vocabulary(size: int, special: Collection[int]) -> np.ndarray:
    """Every token id but the special ones."""
    return np.setdiff1d(np.arange(size, dtype=np.int64), np.asarray(list(special), dtype=np.int64))


def _rng(prompt: Prompt, seed: int, kind: int) -> np.random.Generator:
    return np.random.default_rng([seed, kind, prompt.key & 0xFFFFFFFF, prompt.key >> 32])


class Meter:
    """Runs token ids through a model; gives prompt entropies by sink setting, (prompts, layers) each."""

    def __init__(self, model: LoadedModel, final_norm: FinalNorm, options: Options, special: Collection[int]) -> None:
        self.model = model
        self.sites: list[Site] = expand_sites(None, model.anatomy)
        self._final_norm = final_norm
        self._special = np.asarray(list(special), dtype=np.int64)
        self._reducer = Reducer(model.anatomy, self.sites, final_norm, options, curvature=False)
        self._runner = BatchRunner(model)

    def run(self, prompts: Sequence[np.ndarray], bar: Progress) -> dict[str, np.ndarray]:
        """Entropies of all prompts."""
        out = {sink: np.full((len(prompts), len(self.sites)), np.nan) for sink in SINKS}

        def measure(items: list[int], batch: Batch) -> None:
            measured = self._reducer.run(batch, self.model.run, token_level=True).tokens
            for sink in SINKS:
                out[sink][items] = measured[f"entropy_{sink}"].T
            bar.advance(len(items))

        with self._reducer:
            self._runner.run(prompts, measure)
        alike = [i for i, ids in enumerate(prompts) if self._repeats_one_token(ids)]
        if alike:
            equal = self._equal_states([prompts[i] for i in alike])
            for values in out.values():
                values[alike] = np.where(equal, np.nan, values[alike])
        return out

    def _repeats_one_token(self, ids: np.ndarray) -> bool:
        """Whether the text is one token again and again; what the tokenizer adds around it does not count."""
        own = ids[~np.isin(ids, self._special)]
        return len(own) > 1 and bool((own == own[0]).all())

    def _equal_states(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        """(prompts, layers): where the states of one token, repeated, are equal up to rounding.

        A causal model without absolute positions cannot tell such tokens apart (behind a beginning-of-text token this holds
        at layer 0 only). After centering only rounding error is left, or a single direction, and its entropy says nothing.
        """
        equal = np.zeros((len(prompts), len(self.sites)), dtype=bool)
        own = [torch.from_numpy(~np.isin(ids, self._special)) for ids in prompts]

        def look(prompt: int, index: int, raw: Tensor, state: Tensor) -> None:
            z = state.float()[own[prompt].to(state.device)]
            spread, size = torch.linalg.vector_norm(z - z.mean(0)), torch.linalg.vector_norm(z)
            equal[prompt, index] = bool(spread <= torch.finfo(state.dtype).eps ** 0.5 * size)

        read_prompts(self.model, self.sites, prompts, self._final_norm, look)
        return equal


def tabulate(measured: MeasuredPrompts, label: str, seed: int) -> pd.DataFrame:
    """One row per condition, level, layer and sink setting."""
    settings = [
        ({"condition": condition, "level": level, **place_of(site), "sink": sink}, values[sink][:, j])
        for (condition, level), values in measured.values.items()
        for sink in SINKS
        for j, site in enumerate(measured.sites)
    ]
    return mean_table(settings, seed, COLUMNS).assign(model=label, metric="prompt_entropy")


def verdict(measured: MeasuredPrompts, seed: int) -> list[str]:
    """What each condition does between its least and its greatest level, prompt by prompt."""
    out: list[str] = []
    short: list[str] = []
    for condition in dict.fromkeys(condition for condition, _ in measured.values):
        levels = sorted(level for name, level in measured.values if name == condition)
        levels = [level for level in levels if _defined(measured, condition, level)]
        if len(levels) < 2:
            out.append(f"{condition.capitalize()}: fewer than two levels with a value, nothing to compare.")
            continue
        first, last = levels[0], levels[-1]
        span = f"{first:g} → {last:g} tokens" if condition == "length" else f"p = {first:g} → {last:g}"
        change = {sink: measured.values[condition, last][sink] - measured.values[condition, first][sink] for sink in SINKS}
        inner = middle_half(len(measured.sites))
        kept, dropped = means_of((change[sink][:, inner].mean(axis=1) for sink in SINKS), seed)
        same = kept.sign == dropped.sign
        other = "" if same else f" ({MOVES[dropped.sign]} without the sink token)"
        short.append(f"{MOVES[kept.sign]}{other} with {_GROWS[condition]}")
        text = f"prompt entropy {MOVES[kept.sign]} in the middle half of the layers, {kept} nats"
        tail = f"{dropped}" if same else f"it {MOVES[dropped.sign]}: {dropped}"
        out += [f"{condition.capitalize()} ({span}): {text}; without the sink token {tail}.", _where(change["keep"], seed)]
    answer = f"in the middle half of the layers, prompt entropy {join_words(short)}" if short else "there is nothing to compare"
    return [in_short(answer), *out]


def undefined(measured: MeasuredPrompts) -> list[str]:
    """What has no value at some layer, and why."""
    out = []
    for (condition, level), values in measured.values.items():
        if condition == "length":
            continue
        missing = np.isnan(values["keep"]) & np.isfinite(measured.plain["keep"])
        where = [site.layer for j, site in enumerate(measured.sites) if missing[:, j].any()]
        if where:
            most = int(missing.sum(axis=0).max())
            out.append(
                f"{condition} at p = {level:g}: the tokens of up to {most} prompts all have the same state at "
                f"{name_layers(where)}; prompt entropy is not defined there, and those values are left out."
            )
    return out


def _defined(measured: MeasuredPrompts, condition: str, level: float) -> bool:
    """Whether at least half of the prompts have values at every middle layer."""
    inner = measured.values[condition, level]["keep"][:, middle_half(len(measured.sites))]
    return bool(np.isfinite(inner).all(axis=1).mean() >= 0.5)


def _where(change: np.ndarray, seed: int) -> str:
    each = means_of(change.T, seed)
    where, _, most = clear_layers(each, "up", "down")
    if not where:
        return "  At no single layer is the change clear."
    return f"  It is clearly {where} of {len(each) - 1}; most at layer {most}, {each[most]}."


STUDY = Extreme()
