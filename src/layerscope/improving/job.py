"""`improve`: from a model and texts to a better embedding model, in one call."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from layerscope.cache import cache_dir
from layerscope.capture import Site
from layerscope.core.readout import Readout, get_template
from layerscope.core.sites import site_of
from layerscope.engines import Engine, engine_in_use, open_engine
from layerscope.engines.recipe import driver_options, make_recipe
from layerscope.errors import LayerscopeError
from layerscope.evaluation.encode import TextEncoder
from layerscope.exporting.job import check_free, export
from layerscope.improving.choose import COLUMNS, Decision, candidate_table, decide, keep_default, relative_costs
from layerscope.improving.grid import BLEND, QUICK, StoredCandidates, make_grid, passes_of, prompts_among
from layerscope.improving.judging import CHECKED, NONE, Check, Panel, check_choice, make_panel
from layerscope.improving.neighbors import changed_share, neighbor_table
from layerscope.improving.reading import Reader, Sample, draw_sample, own_readout
from layerscope.improving.result import Improved
from layerscope.improving.stages import announce, said_time, stages
from layerscope.models import LoadedModel, open_model
from layerscope.models.source import check_name, resolve
from layerscope.progress import Progress
from layerscope.selection.budget import check as check_budget
from layerscope.selection.choice import Choice
from layerscope.selection.judges.base import TEXTS, Judgment
from layerscope.selection.labels.read import Labeled, read_labels
from layerscope.store import RunFolder
from layerscope.store.embeddings import DEFAULT_BUDGET, EmbeddingStore
from layerscope.store.folder import config_key
from layerscope.version import VERSION

DEFAULT_JUDGE = "minilm-l6"
SAMPLE = 1000
SCREEN = 200
"""Texts on which all templates are compared; the best of them and the default are then compared on the whole sample."""
KEPT = 1
"""Templates that go on from there, besides the default's."""
MAX_LENGTH = 256


def improve(
    model: str | Path | LoadedModel | torch.nn.Module,
    texts: str | Path | Iterable[str],
    *,
    out: str | Path | None = None,
    column: str | None = None,
    labels: str | Path | None = None,
    judge: str | LoadedModel = DEFAULT_JUDGE,
    budget: float | None = None,
    max_cost: float = 1,
    templates: Sequence[str] | None = None,
    sample: int = SAMPLE,
    max_length: int = MAX_LENGTH,
    seed: int = 0,
    tokenizer: Any = None,
    batch_size: int | None = None,
    store: str | Path | None = None,
    store_budget: int | None = DEFAULT_BUDGET,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    address: str | None = None,
    model_options: dict[str, Any] | None = None,
) -> Improved:
    """Find the layer and readout of a model that serve these texts best, and export it as a sentence-transformers folder.

    `texts` are strings, a file, a catalogued corpus or a hub dataset; about `sample` of them, drawn at random, are read. Every
    layer under every readout of `templates` is judged on them: by agreement with the sentence encoder `judge` (`none`: by the
    model's own consistency), and by `labels`, a file of a few labeled examples, where there are any. Of the candidates that tie
    the cheapest is taken; what the user has today stays where the evidence is weak, or where the model is a sentence encoder
    already. `budget` is the largest share of the blocks to run, `max_cost` the most passes per text. The result encodes at
    once; with `out` it is also written there, verified.

        better = layerscope.improve("smollm2-135m", texts, out="better")
        better.encode(["how do I reset my card?"])
    """
    check_budget(budget, None)
    open_engine(engine, address)  # connects to nothing yet
    if sample < 1:
        raise LayerscopeError(f"a sample has at least one text, not {sample}.")
    names = list(dict.fromkeys(["plain", *(templates if templates is not None else QUICK)]))
    make_grid(names, has_cls=False, has_norm=True, max_cost=max_cost)  # what is wrong is said before anything is loaded
    if isinstance(judge, str) and judge != NONE:
        check_name(judge)
    drawn = draw_sample(texts, column=column, size=sample, seed=seed, offline=offline)
    labeled = None if labels is None else read_labels(labels)
    options = model_options or {}
    with engine_in_use(engine, address) as used, stages(progress) as bar:
        loaded = open_model(model, tokenizer, offline, driver_options(model, options) if used.remote else options)
        _check_readable(loaded)
        recipe = make_recipe(model, loaded, offline, options) if used.remote else None
        held = EmbeddingStore(Path(store) if store else cache_dir() / "embeddings", store_budget)
        reader = Reader(loaded, held, max_length, batch_size=batch_size, engine=used, recipe=recipe)
        settings = _Settings(names, budget, max_cost, seed, sample, None if judge is None else _name(judge), labels, max_length)
        job = ImproveJob(loaded, model, drawn, labeled, reader, settings, bar, offline)
        return job.run(judge, None if out is None else Path(out), overwrite)


def _name(judge: str | LoadedModel) -> str:
    return judge.name if isinstance(judge, LoadedModel) else str(judge)


def _check_readable(model: LoadedModel) -> None:
    if model.kind != "texts":
        raise LayerscopeError(f"{model.name} reads images; improve is for models that read texts.")
    if model.tokenizer is None:
        raise LayerscopeError(f"{model.name} has no tokenizer. Give one: improve(module, texts, tokenizer=…).")


@dataclass(frozen=True)
class _Settings:
    templates: Sequence[str]
    budget: float | None
    max_cost: float
    seed: int
    sample: int
    judge: str | None
    labels: str | Path | None
    max_length: int

    def config(self, model: LoadedModel, sample: Sample) -> dict[str, Any]:
        """What tells this run from others."""
        keys = ("weights_sha256", "settings_sha256", "family", "dtype", "bidirectional", "adapters")
        labels = None if self.labels is None else hashlib.sha256(Path(self.labels).read_bytes()).hexdigest()
        return {
            "model": {key: model.identity.get(key) for key in keys},
            "texts": {"fingerprint": sample.facts["fingerprint"], "sample": self.sample},
            "templates": list(self.templates),
            "judge": self.judge,
            "labels": labels,
            "budget": self.budget,
            "max_cost": self.max_cost,
            "max_length": self.max_length,
            "seed": self.seed,
            "layerscope": VERSION,
        }


@dataclass
class ImproveJob:
    """One improvement: a loaded model, a sample of texts and the settings."""

    model: LoadedModel
    given: Any
    sample: Sample
    labels: Labeled | None
    reader: Reader
    settings: _Settings
    bar: Progress
    offline: bool = False
    notes: list[str] = field(default_factory=list)
    screened: dict[str, float] = field(default_factory=dict)
    estimated: float = 0.0

    @property
    def prompts(self) -> list[str]:
        """The templates that a blend averages."""
        return prompts_among(self.settings.templates)

    def run(self, judge: str | LoadedModel, out: Path | None, overwrite: bool) -> Improved:
        """Judge, choose, export, report; a run that is finished in `out` is read back."""
        config = self.settings.config(self.model, self.sample)
        if out is not None:
            done = _finished(out, config)
            if done is not None and not overwrite:
                return done
            check_free(out, overwrite)
        self.config, self.clock = config, time.perf_counter()
        if self.model.identity.get("sentence_encoder"):
            return self._left_alone(out, overwrite)
        panel = make_panel(judge, self.labels, self.model, self.sample.texts, self.offline)
        self.notes += panel.notes
        grid = self._grid()
        self._estimate(panel, grid)
        readouts = self._screen(panel, grid)
        judgment = panel.judge(
            self.reader, readouts, self.sample.texts, self.prompts, self.settings.seed, self.bar,
            f"{self.model.name}, {len(self.sample.texts)} texts",
        )  # fmt: skip
        costs = self._costs(readouts)
        decision = decide(judgment, readouts, self.reader.layers, costs, self.settings.budget)
        if out is not None and readouts[decision.chosen[0]].template == BLEND:
            # the nearest that a standard folder can express
            single = [i for i, readout in enumerate(readouts) if readout.template != BLEND]
            blend = judgment.score[decision.chosen]
            judgment, readouts, costs = judgment.only(single), [readouts[i] for i in single], costs[single]
            decision = decide(judgment, readouts, self.reader.layers, costs, self.settings.budget)
            self.notes.append(
                f"the mean over {len(self.prompts)} templates scores {blend:.3f}, the exported readout "
                f"{judgment.score[decision.chosen]:.3f}: a standard folder makes one pass per text. In Python, without out, "
                "the mean is used."
            )
        check = None
        if decision.chosen != decision.reference:
            place = (readouts[decision.chosen[0]], self.reader.layers[decision.chosen[1]])
            check = check_choice(
                panel, self.reader, Readout(), place, self.sample.texts, self.prompts, self.settings.seed, self.bar
            )
            decision = self._trusted(panel, decision, check)
        return self._result(panel, readouts, judgment, decision, costs, check, out, overwrite)

    def _grid(self) -> list[Readout]:
        identity = self.model.identity
        has_cls = bool(identity["bidirectional"]) and getattr(self.model.tokenizer, "cls_token_id", None) is not None
        has_norm = self.model.anatomy.final_norm is not None
        return make_grid(self.settings.templates, has_cls=has_cls, has_norm=has_norm, max_cost=self.settings.max_cost)

    def _screen(self, panel: Panel, grid: list[Readout]) -> list[Readout]:
        """All templates on a part of the sample; the readouts of the best, and the default's, go on to the whole of it."""
        names = list(dict.fromkeys(readout.template for readout in grid))
        if len(names) <= KEPT + 1 or len(self.sample.texts) <= SCREEN:
            return grid
        judgment = panel.judge(
            self.reader, grid, self.sample.texts[:SCREEN], self.prompts, self.settings.seed, self.bar,
            f"{self.model.name}, {len(names)} templates on {SCREEN} texts",
        )  # fmt: skip
        top = dict.fromkeys(names, -np.inf)
        for readout, scores, known in zip(grid, judgment.score, judgment.defined, strict=True):
            if known.any():
                top[readout.template] = max(top[readout.template], float(scores[known].max()))
        self.screened = {name: value for name, value in top.items() if np.isfinite(value)}
        rest = sorted((name for name in names if name != "plain"), key=lambda name: -top[name])
        kept = {"plain", *rest[:KEPT]}
        return [readout for readout in grid if readout.template in kept]

    def _estimate(self, panel: Panel, grid: Sequence[Readout]) -> None:
        """How long it will take, said before anything long begins."""
        names = list(dict.fromkeys(name for r in grid for name in (self.prompts if r.template == BLEND else [r.template])))
        tokens = self.reader.tokens(names, self.sample.texts[:SCREEN])
        views = 2.7 if panel.needs_views else 1.0  # a text, most of it, and its halves
        many = len(self.sample.texts)
        screened = many > SCREEN and len(names) > KEPT + 1
        count = sum(tokens.values()) * (SCREEN if screened else many)
        if screened:
            count += (many - SCREEN) * (tokens["plain"] + (KEPT * max(tokens.values())))
        count = views * count + CHECKED * 1.7 * (tokens["plain"] + max(tokens.values()))
        self.estimated = count * self.reader.seconds_per_token(self.sample.texts[:SCREEN])
        announce(
            self.bar,
            f"about {said_time(self.estimated)}: {len(grid) * len(self.reader.layers)} layers × readouts of {self.model.name} on "
            f"{many} of {self.sample.total} texts, judged by {panel.name}",
        )

    def _costs(self, readouts: Sequence[Readout]) -> np.ndarray:
        names = list(dict.fromkeys(["plain", *self.settings.templates]))
        tokens = self.reader.tokens(names, self.sample.texts[:SCREEN])
        blend = sum(tokens[name] for name in self.prompts)
        each = [blend if readout.template == BLEND else tokens[readout.template] for readout in readouts]
        return relative_costs(each, self.reader.layers, self.model.n_blocks)

    def _trusted(self, panel: Panel, decision: Decision, check: Check) -> Decision:
        """The default stays where the choice recognizes texts by their parts worse than it; a weak judge is named."""
        if check.judge_worse and panel.encoder is not None:
            self.notes.append(
                f"{panel.encoder.name} recognizes these texts by their parts worse than {self.model.name} does today "
                f"({check.judge:.2f} against {check.before:.2f}): it may be too weak a judge for them. Compare with --judge none."
            )
        if check.worse:
            return keep_default(
                decision,
                f"the judge's favorite recognizes texts by their parts worse ({check.after:.2f} against {check.before:.2f})",
            )
        return decision

    def _result(
        self,
        panel: Panel,
        readouts: Sequence[Readout],
        judgment: Judgment,
        decision: Decision,
        costs: np.ndarray,
        check: Check | None,
        out: Path | None,
        overwrite: bool,
    ) -> Improved:
        layers, sample = self.reader.layers, self.sample.texts
        readout, layer = readouts[decision.chosen[0]], layers[decision.chosen[1]]
        kept = decision.chosen == decision.reference
        candidates = StoredCandidates(self.reader.spaces, readouts, layers, {TEXTS: sample}, self.prompts)
        before = candidates.vectors(Readout())[-1]
        after = candidates.vectors(readout)[decision.chosen[1]]
        evidence = {
            "judge": panel.name,
            "score_name": panel.score_name,
            "before": float(judgment.score[decision.reference]),
            "after": float(judgment.score[decision.chosen]),
            "interval": [decision.low, decision.high],
            "readout_gain": decision.template_gain,
            "layer_gain": decision.layer_gain,
            "today": f"layer {layers[-1]} under {Readout().name}",
            "cost": self._cost_words(readout, costs[decision.chosen]),
            "passes": passes_of(readout, self.prompts),
            "relative_cost": float(costs[decision.chosen]),
            "candidates": int(judgment.defined.sum()),
            "tied": int(decision.tied.sum()),
            "kept_default": kept,
            "best": {"readout": readouts[decision.best[0]].name, "layer": layers[decision.best[1]]},
            "screened": self.screened,
            "recognized": None if check is None else vars(check),
            "changed_neighbors": changed_share(before, after),
        }
        choice = self._choice(readout, layer, decision, evidence, kept)
        table = candidate_table(readouts, layers, judgment, decision, costs)
        mean = candidates.mean(readout, layer) if readout.centering == "corpus" and readout.template != BLEND else None
        sampled = {"texts": list(sample), "before": before, "after": after}
        return self._finish(choice, table, sampled, evidence, readout, layer, mean, out, overwrite)

    def _choice(self, readout: Readout, layer: int, decision: Decision, evidence: dict[str, Any], kept: bool) -> Choice:
        blocks = self.model.n_blocks
        if kept:
            why = decision.weak or "it is already the best that was found"
            reason = f"{why}. Last layer, {Readout().name}."
        else:
            ties = f" It is the cheapest of {evidence['tied']} that tie." if evidence["tied"] > 1 else ""
            reason = (
                f"By {evidence['judge']} it is the best of {evidence['candidates']} layers and readouts: "
                f"{evidence['before']:.3f} → {evidence['after']:.3f} (readout {evidence['readout_gain']:+.3f}, layer "
                f"{evidence['layer_gain']:+.3f}).{ties}"
            )
        for name in dict.fromkeys(["plain", readout.template]):
            cut = self.reader.truncated(name, self.sample.texts) if name in self.reader.spaces else 0
            if cut:
                self.notes.append(
                    f"{cut} of {len(self.sample.texts)} texts were cut to {self.reader.max_length} tokens ({name})."
                )
        stored = self.model.identity.get("quantization")
        if stored:
            self.notes.append(f"the weights of {self.model.name} were quantized ({stored}) in their source.")
        return Choice(
            layer=layer,
            site=site_of(layer),
            readout=readout.name,
            expected_gain=None,
            ci_low=None,
            ci_high=None,
            risk_of_loss=None,
            tied=tuple(sorted({self.reader.layers[k] for k in np.flatnonzero(decision.tied[decision.chosen[0]])} | {layer})),
            rule="improve",
            blocks_saved=blocks - layer,
            layers=blocks,
            model=self.model.name,
            reason=reason,
            warnings=tuple(self.notes),
            abstained=bool(decision.weak),
            metric=evidence["score_name"],
            before=evidence["before"],
            after=evidence["after"],
            identity=self.model.identity,
            max_length=self.reader.max_length,
            unit_length=True,
        )

    def _cost_words(self, readout: Readout, relative: float) -> str:
        passes = passes_of(readout, self.prompts)
        return f"{passes} pass{'es' if passes > 1 else ''} per text, {relative:.2f} × today's computation"

    def _left_alone(self, out: Path | None, overwrite: bool) -> Improved:
        """A sentence encoder was trained for this: its own readout stays."""
        folder = resolve(self.given, offline=self.offline).path if isinstance(self.given, (str, Path)) else None
        readout, blocks = own_readout(folder, self.model.width), self.model.n_blocks
        self.reader.read({"plain": list(readout.kinds)}, list(self.sample.texts), self.bar, self.model.name)
        candidates = StoredCandidates(self.reader.spaces, [readout], self.reader.layers, {TEXTS: self.sample.texts})
        vectors = candidates.vectors(readout)[-1]
        evidence = {
            "judge": "none was asked", "score_name": "", "candidates": 0, "tied": 1, "kept_default": True,
            "today": f"layer {blocks} under {readout.name}", "changed_neighbors": 0.0,
        }  # fmt: skip
        reason = "it is a sentence encoder, trained for embeddings, and no other readout of it was found to be better."
        choice = Choice(
            layer=blocks, site=site_of(blocks), readout=readout.name, expected_gain=None, ci_low=None, ci_high=None,
            risk_of_loss=None, tied=(blocks,), rule="improve", blocks_saved=0, layers=blocks, model=self.model.name,
            reason=reason, abstained=True,
        )  # fmt: skip
        sampled = {"texts": list(self.sample.texts), "before": vectors, "after": vectors}
        table = pd.DataFrame(columns=COLUMNS)
        return self._finish(choice, table, sampled, evidence, readout, blocks, None, out, overwrite)

    def _finish(
        self,
        choice: Choice,
        table: pd.DataFrame,
        sampled: dict[str, Any],
        evidence: dict[str, Any],
        readout: Readout,
        layer: int,
        mean: np.ndarray | None,
        out: Path | None,
        overwrite: bool,
    ) -> Improved:
        def save(place: Path, replace_old: bool) -> Path:
            return self._export(place, readout, layer, mean, replace_old)

        neighbors = neighbor_table(sampled["texts"], sampled["before"], sampled["after"])
        manifest = {
            "kind": "improve",
            "key": config_key(self.config),
            "config": self.config,
            "layerscope": VERSION,
            "status": "complete",
            "model": self.model.identity,
            "texts": {**self.sample.facts, "sampled": len(self.sample.texts)},
            "judge": self.settings.judge,
            "evidence": evidence,
            "choice": choice.as_dict(),
            "conventions": {
                "layer": "layer k is the state after k blocks; layer 0 is the input of the first block",
                "agreement": "mean of the overlap of the 10 nearest neighbors and the rank correlation over the 50 nearest",
                "interval": "95 %, texts resampled; a text counts as one that asks and as a neighbor",
                "tied": "within one standard error of the best, on the same resampled texts",
                "centering": "the mean over the sampled texts is subtracted",
                "max_length": self.reader.max_length,
                "seed": self.settings.seed,
            },
            "warnings": choice.warnings,
            "seconds": {"estimated": self.estimated, "taken": time.perf_counter() - self.clock},
        }
        result = Improved(choice, table, neighbors, manifest, None, sampled, self._encoder(readout, layer, mean), save)
        if out is not None:
            self.bar.begin(f"writing {out}|folder", 1)
            result.save(out, overwrite)
            self.bar.advance(1)
            folder = RunFolder(out)
            folder.write_table("candidates", table)
            folder.write_table("neighbors", neighbors)
            folder.write_manifest(manifest)
        return result

    def _export(self, place: Path, readout: Readout, layer: int, mean: np.ndarray | None, overwrite: bool) -> Path:
        if readout.template == BLEND:
            raise LayerscopeError(
                f"a mean over {len(self.prompts)} templates takes as many passes per text, which no standard folder can express. "
                "Run it with --max-cost 1 for one that can; in Python, encode() works at once."
            )
        center = None if mean is None else (mean, f"{len(self.sample.texts)} texts of {self.sample.name}")
        alone = self.model.identity.get("sentence_encoder")
        export(
            self.model, layer, readout=readout, out=place, mean=center, max_length=self.reader.max_length,
            normalize=None if alone else True, overwrite=overwrite, offline=self.offline,
        )  # fmt: skip
        return place

    def _encoder(self, readout: Readout, layer: int, mean: np.ndarray | None) -> Any:
        """A function from texts to vectors, by the model that is in memory."""
        site: list[Site] = [one for one in self.reader.sites if one.layer == layer]
        parts = self.prompts if readout.template == BLEND else [readout.template]
        candidates = StoredCandidates(self.reader.spaces, [readout], self.reader.layers, {TEXTS: self.sample.texts}, self.prompts)

        def encode(texts: Sequence[str]) -> np.ndarray:
            total = None
            for name in parts:
                encoder = TextEncoder(self.model, get_template(name), site, list(readout.kinds), self.reader.max_length)
                vectors, _ = encoder.run(encoder.read(list(texts)), lambda n: None)
                found = vectors[readout.kinds[0]][0].astype(np.float64)
                if readout.template == BLEND:
                    found = found - candidates.mean(Readout(name, *list(vars(readout).values())[1:]), layer)
                    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-30)
                elif mean is not None:
                    found = found - mean
                total = found if total is None else total + found
            assert total is not None
            return (total / len(parts)).astype(np.float32)

        return encode


def _finished(out: Path, config: dict[str, Any]) -> Improved | None:
    """The run in `out`, if it is this very one and whole."""
    manifest = RunFolder(out).manifest() if out.is_dir() else None
    if manifest is None or manifest.get("key") != config_key(config) or manifest.get("status") != "complete":
        return None
    return Improved.load(out)
