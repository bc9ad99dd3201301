"""Every condition at every level, each finished one kept in the study's work folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.errors import DataError
from layerscope.metrics import Options
from layerscope.models import LoadedModel
from layerscope.profiling.plan import text_key
from layerscope.progress import Progress
from layerscope.store import atomic
from layerscope.studies.base import Request
from layerscope.studies.extreme_parts.measure import FIELDS, Meter
from layerscope.studies.extreme_parts.prompts import Prompt, plain_vocabulary, prefix, randomised, repeated

Values = dict[str, np.ndarray]  # by sink: (prompts, layers), NaN where there is no value


@dataclass
class Measured:
    """Prompt entropies by (condition, level), prompts in the order of the corpus; `plain` are the prompts as they are."""

    sites: list[Site]
    values: dict[tuple[str, float], Values]
    plain: Values
    warnings: list[str] = field(default_factory=list)


def measure_all(request: Request, model: LoadedModel, bar: Progress) -> Measured:
    """Measure the plain prompts and every condition."""
    assert request.texts is not None
    options = request.options
    limit = request.max_length if model.max_length is None else min(request.max_length, model.max_length)
    tokens = model.tokenize(list(request.texts), limit)
    special = model.tokenizer.all_special_ids
    prompts = [Prompt.of(ids, special, text_key(text)) for ids, text in zip(tokens.ids, request.texts, strict=True) if len(ids)]
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
    meter = Meter(model, request.final_norm, Options(alpha=options["alpha"]))  # type: ignore[arg-type]

    def values_of(condition: str, level: float) -> Values:
        file = request.work / f"{condition}-{level:g}.npz"
        if file.exists():
            with np.load(file, allow_pickle=False) as held:
                kept = {sink: held[sink] for sink in FIELDS}
            bar.advance(_count(options, condition, level) * len(prompts))
            return kept
        found = _measure(meter, prompts, condition, level, request, vocabulary, bar)
        atomic.write_arrays(file, found)
        return found

    plain = values_of("plain", 0.0)
    # p = 0 changes nothing: it is the plain prompt, measured once
    values = {
        (condition, level): plain if condition != "length" and level == 0 else values_of(condition, level)
        for condition, level in wanted
    }
    return Measured(meter.sites, values, plain, warnings)


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
            ids = [randomised(p, level, seed, vocabulary) for p in prompts]
        elif condition == "length":
            ids = [prefix(p, int(level)) for p in prompts]
        else:
            ids = [p.ids for p in prompts]
        have = [i for i, row in enumerate(ids) if row is not None]
        got = meter.run([row for row in ids if row is not None], bar)
        whole = {sink: np.full((len(prompts), len(meter.sites)), np.nan) for sink in FIELDS}
        for sink in FIELDS:
            whole[sink][have] = got[sink]
        rounds.append(whole)
    return {sink: np.mean([held[sink] for held in rounds], axis=0) for sink in FIELDS}


def vocabulary_size(model: LoadedModel) -> int:
    """Token ids that both the tokenizer and the embedding know."""
    known = len(model.tokenizer)
    rows = getattr(getattr(model.module, "config", None), "vocab_size", None)
    return known if rows is None else min(known, int(rows))
