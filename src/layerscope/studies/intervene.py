"""Does the valley go, and do the scores move, when the sink activation is taken out inside the forward pass?

Finds the layer where one token becomes massive and the few features that carry it (Sun et al. 2024), then edits exactly these
entries there, in every pass, and profiles and scores the model again. `remove` sets them to zero, `clamp` to the largest
magnitude that the feature has in the text's other tokens, `replace` to the mean of those. `control` sets the same features of
as many other tokens to zero: what it does is what editing does by itself.

Table: `value` rows (the profile under each condition), `difference` rows (condition minus `none`, prompt by prompt), `valley`
rows, and `score` rows (task and layer, × 100). Figure: prompt entropy, sink ratio and mean score over depth, a line per
condition. Verdict: where the sink is, what becomes of the valley, and what becomes of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture import Batch, expand_sites
from layerscope.capture.hooks import first_tensor
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.sites import site_of
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError
from layerscope.evaluation.job import evaluate
from layerscope.metrics.tokens.norms import token_norms
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.reading import read_states
from layerscope.report.drawing import COLORS
from layerscope.studies.base import Option, Result, Study
from layerscope.studies.shared.curves import (
    VALLEY,
    VALUES,
    Valleys,
    band,
    by_layer,
    draw_panel,
    in_short,
    layers,
    lists,
    mean_of,
    new_figure,
    profile_rows,
    quiet,
    subtitle,
    tame,
)
from layerscope.studies.shared.models import Request, Spec, canonical, folder_name, profile_of, read_specs, runs_elsewhere

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE = "none"
EDITS = ("remove", "clamp", "replace", "control")
_METRICS = ["prompt_entropy", "sink_ratio", "sink_first"]
_SCANNED = 32  # texts that the sink is looked for in
_COLUMNS = ["kind", "condition", "task", *VALUES]
_FEWEST_TASKS = 3  # below this no interval over tasks is given
_DOES = {1: "rises", -1: "falls", 0: "does not clearly move"}


class Intervene(Study):
    """The sink activation removed, clamped or replaced inside the forward pass."""

    name: ClassVar[str] = "intervene"
    title: ClassVar[str] = "The sink activation taken out of the forward pass"
    models: ClassVar[tuple[int, int | None]] = (1, 1)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("edits", list(EDITS), "edits of the sink's entries", valid=EDITS, filled=True),
        Option("layer", -1, "layer whose output is edited; -1: where the sink appears", least=-1),
        Option("again", False, "also edit every later layer, where the sink comes back"),
        Option("least", 5.0, "a token is a sink if its norm is at least this many times the text's median", least=1),
        Option("massive", 50.0, "a feature carries the sink if its entry is at least this many times the text's median", least=1),
        Option("tasks", ["small"], "tasks to score, as for `layerscope evaluate --tasks`; `none` scores nothing"),
        Option("items", 100, "maximum items to score per task; 0: all", least=0),
        Option("data_dir", "", "folder with the data of tasks"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Find the sink, then profile and score the model as it is and under every edit."""
        if runs_elsewhere(request):
            raise LayerscopeError("the study intervene edits the model in this process: leave --engine out.")
        request = canonical(request)
        given = read_specs(request.models)[0]
        bar.begin(f"loading {given.label}|", 1)
        model = given.open(request)
        if model.kind != "texts":
            raise LayerscopeError(f"the study intervene reads texts, and {given.label} reads {model.kind}.")
        sink = find_sink_activation(model, _prompts(request, model), request.options)
        found = [_measure(request, model, given.label, edit, sink, bar) for edit in [NONE, *request.options["edits"]]]
        texts = len(request.texts or ())
        table = pd.concat([part for each in found for part in each.tables(found[0], texts, request.seed)], ignore_index=True)
        conventions = {
            "models": {given.label: model.identity},
            "sink": sink.facts(),
            "edited": "the output of that layer's block, in every forward pass; all else is computed from the edited states",
            "valley": VALLEY,
            "differences": "condition minus none, of each prompt, then their mean",
            "scores": f"mean over texts, {DEFAULT_READOUT}, × 100",
        }
        warnings = list(dict.fromkeys(line for each in found for line in each.warnings))
        return Result(table.reindex(columns=_COLUMNS), verdict(found, sink, texts, request.seed), conventions, warnings)

    def passes(self, options: dict[str, Any]) -> float:
        """One for the model as it is and one per edit; scoring is not counted."""
        return 1.0 + len(options["edits"])

    def shown(self, table: pd.DataFrame) -> pd.DataFrame:
        """The curves with all tokens."""
        return table[table["sink"] != "drop"]

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Prompt entropy and sink ratio under every condition, and scores where there are some."""
        from matplotlib.lines import Line2D

        conditions = list(dict.fromkeys(table["condition"]))
        colors = dict(zip(conditions, ["#000000", *COLORS], strict=False))
        scores = table[table["kind"] == "score"]
        values = table[table["kind"] == "value"]
        figure = new_figure(3.7 * (3 if len(scores) else 2), 3.5)
        axes = figure.subplots(1, 3 if len(scores) else 2)
        draw_panel(axes[0], values, ("prompt_entropy", "keep", "Prompt entropy"), "condition", colors)
        draw_panel(axes[1], values, ("sink_ratio", "keep", "Sink ratio"), "condition", colors)
        blocks = int(values["layer"].max())
        for axis in axes[:2]:
            axis.axvline(manifest["conventions"]["sink"]["layer"] / blocks, color="#888888", linewidth=0.8, linestyle=":")
        if len(scores):
            for condition, rows in scores.groupby("condition", sort=False):
                mean = rows.groupby("depth", as_index=False)["value"].mean()
                band(axes[2], mean.assign(ci_low=mean["value"], ci_high=mean["value"]), colors[condition])
            axes[2].set_title(f"Mean score, {scores['task'].nunique()} tasks", fontsize=9, loc="left")
            axes[2].set_xlabel("depth (layer / blocks)", fontsize=8)
            axes[2].set_ylabel("points", fontsize=8)
            quiet(axes[2])
        handles = [Line2D([], [], color=colors[name], label=name) for name in conditions]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
        figure.suptitle(tame(f"{values['model'].iloc[0]}: {subtitle(manifest)}"), fontsize=9)
        return figure


# --- the sink, and what is done to it -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SinkActivation:
    """Where a token becomes massive: the layer, the features that carry it, and how it looks on the texts scanned."""

    layer: int
    features: tuple[int, ...]
    least: float
    ratios: tuple[float, ...]  # mean sink ratio by layer
    times: tuple[float, ...]  # of each feature: its entry over the text's median entry
    first: float  # share of texts whose largest token at that layer is the first one
    again: bool = False

    @property
    def ratio(self) -> float:
        """The mean sink ratio at the layer."""
        return self.ratios[self.layer]

    def facts(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "layer": self.layer,
            "features": list(self.features),
            "times_median": [round(value, 1) for value in self.times],
            "ratio": round(self.ratio, 2),
            "first_token": round(self.first, 3),
            "least": self.least,
            "edited_again_later": self.again,
        }


def _prompts(request: Request, model: LoadedModel) -> list[np.ndarray]:
    limit = request.max_length if model.max_length is None else min(request.max_length, model.max_length)
    ids = model.tokenize(list(request.texts or ())[:_SCANNED], limit).ids
    return [np.asarray(row) for row in ids if len(row) > 2]


def find_sink_activation(model: LoadedModel, prompts: Sequence[np.ndarray], options: Mapping[str, Any]) -> SinkActivation:
    """The layer where the largest token's norm, over the median, rises most, and the features that carry it there."""
    if not prompts:
        raise LayerscopeError("no text has three tokens: there is nothing to find a sink in. Give longer texts.")
    sites = expand_sites(None, model.anatomy)
    ratios = np.zeros((len(sites), len(prompts)))
    first = np.zeros((len(sites), len(prompts)))
    times: list[np.ndarray] = [np.zeros((len(prompts), model.width)) for _ in sites]

    def look(numbers: list[int], batch: Batch, site: int, raw: Tensor, _state: Tensor) -> None:
        for row, number in enumerate(numbers):
            states = raw[row, : len(prompts[number])].double()
            norms = states.norm(dim=-1)
            largest = int(norms.argmax())
            ratios[site, number] = float(norms[largest] / norms.median())
            first[site, number] = largest == 0
            size = states.abs()
            times[site][number] = (size[largest] / size.median().clamp(min=1e-30)).cpu().numpy()

    read_states(model, prompts, sites, "raw", look)
    curve = ratios.mean(axis=1)
    least, layer = float(options["least"]), int(options["layer"])
    if layer > model.n_blocks:
        raise LayerscopeError(f"option layer: this model has layers 0 to {model.n_blocks}, not {layer}.")
    if layer < 0:
        if curve.max() < least:
            raise LayerscopeError(
                f"no sink was found: the largest token is at most {curve.max():.1f} × the median (layer {int(curve.argmax())}), "
                f"under {least:g}. Give --set least=… or the layer to edit, --set layer=…"
            )
        rise = np.diff(np.log(np.maximum(curve, 1e-30)), prepend=0.0)
        rise[curve < least] = -np.inf
        layer = int(rise.argmax())
    typical = np.median(times[layer], axis=0)
    carriers = np.flatnonzero(typical >= options["massive"])
    if not len(carriers):
        carriers = np.array([int(typical.argmax())])
    carriers = carriers[np.argsort(-typical[carriers], kind="stable")]
    return SinkActivation(
        layer,
        tuple(int(i) for i in carriers),
        least,
        tuple(float(value) for value in curve),
        tuple(float(typical[i]) for i in carriers),
        float(first[layer].mean()),
        bool(options["again"]),
    )


class SinkEdit:
    """Edits the sink's entries in every forward pass of a model while the context is open. Hooks opened later see the edit."""

    def __init__(self, model: LoadedModel, sink: SinkActivation, edit: str) -> None:
        self.model, self.sink, self.edit = model, sink, edit
        self.edited = 0
        """Tokens edited so far."""
        self._mask: Tensor | None = None
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        if self.edit == NONE:
            return self
        self._handles.append(self.model.module.register_forward_pre_hook(self._begin, with_kwargs=True))
        blocks = self.model.anatomy.blocks
        last = self.model.n_blocks if self.sink.again else self.sink.layer
        for layer in range(self.sink.layer, last + 1):
            if layer == 0:
                self._handles.append(blocks[0].register_forward_pre_hook(self._before, with_kwargs=True))
            else:
                self._handles.append(blocks[layer - 1].register_forward_hook(self._after))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, _module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        self._mask = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None

    def _before(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        states = first_tensor(args, kwargs)
        new = self.apply(states)
        args = tuple(new if value is states else value for value in args)
        return args, {name: new if value is states else value for name, value in kwargs.items()}

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return self.apply(output)
        states = first_tensor(output)
        return type(output)([self.apply(value) if value is states else value for value in output])

    def apply(self, states: Tensor) -> Tensor:
        """States (B, T, D) with the sink's entries edited; all others are untouched."""
        there = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self._mask is not None:
            there = self._mask[:, -states.shape[1] :].to(states.device)
        norms = token_norms(states)
        median = norms.masked_fill(~there, torch.nan).nanmedian(-1, keepdim=True).values
        massive = there & (norms >= self.sink.least * median)
        target = self._elsewhere(massive, there) if self.edit == "control" else massive
        self.edited += int(target.sum())
        features = torch.tensor(self.sink.features, device=states.device)
        entries = states[..., features]
        others = (there & ~massive).unsqueeze(-1)
        if self.edit in ("remove", "control"):
            new = torch.zeros_like(entries)
        elif self.edit == "replace":
            mean = torch.where(others, entries, 0.0).sum(1, keepdim=True) / others.sum(1, keepdim=True).clamp(min=1)
            new = mean.expand_as(entries)
        else:
            most = torch.where(others, entries.abs(), 0.0).amax(1, keepdim=True)
            new = torch.maximum(torch.minimum(entries, most), -most)
        out = states.clone()
        out[..., features] = torch.where(target.unsqueeze(-1), new.to(states.dtype), entries)
        return out

    @staticmethod
    def _elsewhere(massive: Tensor, there: Tensor) -> Tensor:
        """As many tokens of each text that are no sinks: the last ones."""
        count = massive.sum(-1, keepdim=True)
        usable = there & ~massive
        behind = usable.flip(-1).cumsum(-1).flip(-1)  # 1 at the last usable token, 2 at the one before, …
        return usable & (behind <= count)


# --- measuring ------------------------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The profile, valley and scores of one condition."""

    condition: str
    label: str
    run: Any
    scores: pd.DataFrame  # task, layer, value × 100
    blocks: int
    warnings: list[str]

    def entropies(self, texts: int, sink: str = "keep") -> np.ndarray:
        return by_layer(self.run.prompts, "prompt_entropy", sink, texts).to_numpy()

    def valleys(self, texts: int, seed: int) -> Valleys:
        return replace(Valleys.of(self.run, self.label, seed, texts), label=self.condition)

    def ratio(self, layer: int | None = None) -> float:
        rows = self.run.table[(self.run.table["metric"] == "sink_ratio") & (self.run.table["normalization"] == "raw")]
        values = rows.sort_values("layer")["value"]
        return float(values.max() if layer is None else values.iloc[layer])

    def mean_scores(self) -> pd.Series:
        return self.scores.groupby("layer")["value"].mean()

    def tables(self, base: _Found, texts: int, seed: int) -> list[pd.DataFrame]:
        parts = [profile_rows(self.run, self.label, kind="value", condition=self.condition)]
        rows: list[dict[str, Any]] = []
        if self is not base:
            for sink in ("keep", "drop"):
                change = self.entropies(texts, sink) - base.entropies(texts, sink)
                for layer in range(change.shape[1]):
                    mean = mean_of(change[:, layer], seed)
                    place = {"site": site_of(layer), "layer": layer, "depth": layer / self.blocks}
                    ends = {"value": mean.value, "ci_low": mean.low, "ci_high": mean.high, "n": mean.n}
                    rows.append({"kind": "difference", **place, "metric": "prompt_entropy", "sink": sink, **ends})
        valleys = replace(self.valleys(texts, seed), label=self.label)
        rows += [{**row, "kind": "valley"} for row in valleys.rows()]
        parts.append(pd.DataFrame(rows).assign(model=self.label, condition=self.condition, normalization="raw"))
        if len(self.scores):
            placed = self.scores.assign(
                kind="score", condition=self.condition, model=self.label, metric="score", normalization="raw", n=1,
                site=[site_of(int(layer)) for layer in self.scores["layer"]], depth=self.scores["layer"] / self.blocks,
            )  # fmt: skip
            parts.append(placed)
        return [part.reindex(columns=_COLUMNS) for part in parts]


def _measure(request: Request, model: LoadedModel, label: str, edit: str, sink: SinkActivation, bar: Progress) -> _Found:
    options = request.options
    own = replace(request, work=request.work / edit)
    with SinkEdit(model, sink, edit):
        run = profile_of(replace(own, model_options={}, engine=None), Spec(model, label), _METRICS, bar)
        scores, notes = pd.DataFrame(columns=["task", "layer", "value"]), []
        if options["tasks"] and options["tasks"] != [NONE]:
            bar.begin(f"scores, {edit}|", 1)
            evaluation = evaluate(
                model,
                options["tasks"],
                out=own.work / f"{folder_name(label)}-scores",
                readouts=[DEFAULT_READOUT],
                data_dir=options["data_dir"] or None,
                limit=options["items"] or None,
                max_length=request.max_length,
                seed=request.seed,
                store=own.work / "vectors",  # never the common one: these vectors are not the model's own
                offline=request.offline,
                progress=False,
            )
            scores = evaluation.scores.assign(value=100 * evaluation.scores["score"])[["task", "layer", "value"]]
            notes = [f"{one['task']} could not be scored: {one['reason']}" for one in evaluation.failed]
    return _Found(edit, label, run, scores, model.n_blocks, [*run.manifest["warnings"], *notes])


def verdict(found: Sequence[_Found], sink: SinkActivation, texts: int, seed: int) -> list[str]:
    """Where the sink is, then every condition's valley and scores beside those of the model as it is."""
    base = found[0]
    before = base.valleys(texts, seed)
    carriers = lists([f"{i} ({t:.0f} ×)" for i, t in list(zip(sink.features, sink.times, strict=True))[:5]])
    more = f" and {len(sink.features) - 5} more" if len(sink.features) > 5 else ""
    out = [
        f"The sink appears at layer {sink.layer} of {base.blocks}: the largest token is {sink.ratio:.1f} × the median norm "
        f"there, the first token in {100 * sink.first:.0f} % of texts; feature{'s' * (len(sink.features) != 1)} {carriers}{more} "
        "carry it (entry over the text's median entry).",
        f"As it is: {before.sentence()}",
    ]
    gone, moved = [], []
    for each in found[1:]:
        valley = each.valleys(texts, seed)
        change = each.entropies(texts) - base.entropies(texts)
        place = before.kept.place
        there = mean_of(change[:, place], seed)
        out.append(
            f"{each.condition}: the largest token is at most {each.ratio():.1f} × the median (before: {base.ratio():.1f}); "
            f"prompt entropy at layer {place} {_DOES[there.sign]}, {there} nats. {valley.sentence()}"
        )
        if before.kept.is_valley and each.condition != "control":
            gone.append((each.condition, not valley.kept.is_valley))
        if len(each.scores):
            sentence, sign = _score_sentence(base, each, seed)
            out.append(f"  {sentence}")
            if each.condition != "control":
                moved.append((each.condition, sign))
    return [in_short(_answer(before, gone, moved)), *out]


def _answer(before: Valleys, gone: list[tuple[str, bool]], moved: list[tuple[str, int]]) -> str:
    if not before.kept.is_valley:
        text = "the model has no clear valley to begin with"
    else:
        lost = [name for name, is_gone in gone if is_gone]
        kept = [name for name, is_gone in gone if not is_gone]
        parts = [f"the valley goes under {lists(lost)}"] * bool(lost) + [f"it stays under {lists(kept)}"] * bool(kept)
        text = "; ".join(parts) if parts else "no edit but the control was asked for"
    words = {1: "rise", -1: "fall", 0: "do not clearly move"}
    for sign, word in words.items():
        names = [name for name, one in moved if one == sign]
        if names:
            text += f"; scores {word} under {lists(names)}"
    return text


def _score_sentence(base: _Found, each: _Found, seed: int) -> tuple[str, int]:
    """The best layer's and the last layer's mean score, before and after; the sign of the change over tasks, at the last."""
    one, two = base.mean_scores(), each.mean_scores()
    best, now = int(one.idxmax()), int(two.idxmax())  # type: ignore[call-overload]
    last = int(one.index.max())
    wide = [f.scores.pivot(index="task", columns="layer", values="value") for f in (base, each)]
    change = (wide[1] - wide[0]).dropna()

    def at(layer: int) -> Interval:
        values = change[layer].to_numpy()
        return mean_of(values, seed) if len(values) >= _FEWEST_TASKS else Interval(float(values.mean()), n=len(values))

    worst = int(change.mean().abs().idxmax())  # type: ignore[call-overload]
    sentence = (
        f"Scores, mean of {len(change)} tasks: best {one[best]:.1f} at {layers([best])} → {two[now]:.1f} at {layers([now])}; "
        f"last layer {one[last]:.1f} → {two[last]:.1f}, {at(last)} points over tasks; most at {layers([worst])}, {at(worst)}."
    )
    return sentence, at(last).sign


STUDY = Intervene()
