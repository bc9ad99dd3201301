"""`improve`: from a model and texts to a better embedding model, in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch

from layerscope.blocks.encoder import Encoder
from layerscope.blocks.folder import reads_last_state
from layerscope.blocks.job import Request, Texts, make_faster
from layerscope.blocks.result import FasterEncoder
from layerscope.cache import cache_dir
from layerscope.command import Command
from layerscope.core.candidates import ScoredCandidates
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.identity import model_key
from layerscope.core.readout import HEAD, Readout
from layerscope.core.runs import MANIFEST
from layerscope.data.corpus import lack_words
from layerscope.engines import Engine
from layerscope.errors import (
    InvalidValueError,
    LayerscopeError,
    NonFiniteStatesError,
)
from layerscope.exporting.cutting import needs_filler
from layerscope.exporting.describing import license_of
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.job import check_free
from layerscope.exporting.pushing import PRIVATE
from layerscope.exporting.servers import (
    SERVERS,
    check_names,
    check_servers,
    facts_of,
    plan_formats,
)
from layerscope.extras import require
from layerscope.improving.choose import COLUMNS, KEPT, SCREEN, decide, relative_costs, too_little
from layerscope.improving.chosen import Chosen, working_folder
from layerscope.improving.cost import ReadingCost, estimate_reading
from layerscope.improving.fitting import check_center_on
from layerscope.improving.grid import (
    StoredCandidates,
    by_template,
    make_grid,
    offered,
    search_templates,
)
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.judging import (
    JudgeGiven,
    Panel,
    find_judge,
    make_panel,
    prefers_plain_text,
    second_opinion,
)
from layerscope.improving.lesson import check_settings
from layerscope.improving.making import Maker, check_trainable
from layerscope.improving.mapping import map_of_choice
from layerscope.improving.neighbors import changed_share, neighbor_table
from layerscope.improving.pairs import Pairs, check_search, read_asked
from layerscope.improving.record import (
    Settings,
    as_evidence,
    evidence_of,
    is_finished,
    left_alone,
    manifest_of,
    told,
)
from layerscope.improving.result import Improved
from layerscope.improving.sample import MORE, MOST, Reader, Sample, draw_sample, own_readout
from layerscope.improving.speed import compare_speeds
from layerscope.improving.student import BUDGET
from layerscope.loggers import OnRows
from layerscope.maps import LayerMap
from layerscope.models import LoadedModel
from layerscope.models.load import at_commit
from layerscope.models.source import resolve
from layerscope.progress import Progress, progress_bar
from layerscope.selection.choice import Choice
from layerscope.selection.judges.base import TEXTS
from layerscope.selection.labels.read import Labeled, read_labels
from layerscope.store import RunFolder
from layerscope.store.folder import config_key
from layerscope.vectors import VectorStore
from layerscope.version import VERSION


def improve(
    model: str | Path | LoadedModel | torch.nn.Module,
    data: str | Path | Iterable[str],
    *,
    out: str | Path | None = None,
    column: str | None = None,
    encoding: str | None = None,
    queries: Any = None,
    pairs: Pairs | None = None,
    labels: str | Path | None = None,
    judge: JudgeGiven = "minilm-l6",
    budget: float | None = None,
    keep: float | None = None,
    servers: Sequence[str] = (),
    templates: Sequence[str] | None = None,
    sample: int = 1000,
    max_length: int = 256,
    seed: int = 0,
    center_on: str = "auto",
    time: float | None = None,
    train: bool | Mapping[str, Any] = False,
    texts: bool = True,
    tokenizer: Any = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
    offline: bool = False,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    on_rows: OnRows | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Improved | FasterEncoder:
    """Make a sentence encoder faster, or find the layer and readout of a language model that serve
    these texts best; export the result as a sentence-transformers folder.

    **A sentence encoder** (given by name or folder) keeps its readout and loses blocks: those that
    its own vectors of these texts need least are left out, and the others are refitted by least
    squares to do their work as well. Without a limit the cheapest is taken that agrees well enough.
    `budget`, `keep` and `labels` (which only measure the result) are for it; other options of the
    choice are not.

    **A language model:**

    Every layer under every readout is judged on a sample of the texts. So are heads: linear maps of
    a layer's plain reading, fitted so that similarities agree with those of the best prompt, and
    judged on texts that they were not fitted on. Of the candidates that score practically the same,
    the cheapest is chosen. The default (last layer, mean of the tokens) stays if the evidence is
    weak. The result can encode right away; with `out` it is also written there and verified.

    - `data`: strings, a data frame, a file (with its `column` and `encoding`), a folder of
      documents, a catalogued corpus or a
      hub dataset. About `sample` texts, drawn at random, are judged on.
    - `judge`: the sentence encoder that candidates should agree with; `none` uses the model's own
      consistency. Or an
      object with a method `judge`.
    - `queries`: questions, as a file or strings: choose how they find these texts, each side read
      in its own way. `pairs`: a file
      of queries and documents (texts or ids) that belong together, which then judge as well.
    - `labels`: a file with a few labeled examples, which then judge as well.
    - `templates`: the templates of the readouts to try.
    - `budget`: the largest share of today's computation per text (last layer, no prompt) that the
      choice may cost.
    - `keep`: for a sentence encoder, how well the result has to agree with the whole encoder: the
      correlation of the similarities of all pairs of texts that fitted nothing.
    - `servers`: programs that have to open the folder, such as `["tei", "vllm"]`
      (`layerscope verify --for`): other readouts are no candidates, and a graph or GGUF file that
      they need is written.
    - `center_on`: the texts that a mean or a head is fitted on: `sample` (those judged on), `all`,
      or `auto` (all, or as many
      random ones as take a quarter of the time of the choice). `time`: minutes to read further
      texts for the fit, instead.
    - `train`: train the blocks below a head too, in at most `time` minutes (30 if not given).
      Without a budget the model keeps
      half of its blocks. Or settings of sentence-transformers' trainer: `train={"per_device_train_batch_size": 64}`.
    - `on_rows`: a function such as `wandb.log`, called with the numbers of a training's steps.
    - `texts`: whether the result may hold texts, in the map and in five examples.

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine`.

        better = layerscope.improve("smollm2-135m", texts, out="better")
        better.encode(["how do I reset my card?"])
    """
    ways: dict[str, Any] = {
        "engine": engine,
        "offline": offline,
        "progress": progress,
    }
    command = Command(
        "improve", options, **ways, show=partial(progress_bar, always=True), function=improve
    )
    if budget is not None and not budget > 0:
        raise InvalidValueError(
            f"a budget is a share of today's computation per text above 0, such as 0.3, not {budget:g}."
        )
    if sample < 1:
        raise InvalidValueError(f"a sample has at least one text, not {sample}.")
    check_center_on(center_on)
    check_names(servers)
    if servers and queries is not None:
        raise InvalidValueError(
            "queries are read in their own way by sentence-transformers alone: leave out servers=."
        )
    if time is not None and not time > 0:
        raise InvalidValueError(f"time= is minutes, more than 0, not {time:g}.")
    train = train if isinstance(train, Mapping) else bool(train)
    if train is not False:
        require("train")
        check_settings(train if isinstance(train, Mapping) else {})
    if queries is not None or pairs is not None:
        check_search(
            queries,
            labels=labels,
            time=time,
            train=train,
            center_on=center_on,
        )
    names = (
        search_templates(templates)
        if queries is not None
        else offered(templates, labels is not None)
    )
    make_grid(
        names, has_cls=False, has_norm=True
    )  # what is wrong is said before anything is loaded
    judge = find_judge(judge)
    place = None if out is None else Path(out)
    if (
        place is not None and not (place / MANIFEST).is_file()
    ):  # a run that is there may be this very one
        check_free(place, overwrite)
    labeled = None if labels is None else read_labels(labels)
    alone = nullcontext(None) if place is None else working_folder(place)
    with alone as work, command:
        more = MORE if time is None and train is False and center_on != "all" else MOST
        given: dict[str, Any] = {
            "column": column,
            "encoding": encoding,
            "seed": seed,
            "offline": offline,
        }
        asked = (
            None if queries is None else read_asked(queries, data, pairs, sample=sample, **given)
        )
        drawn = (
            draw_sample(data, size=sample, more=more, **given)
            if asked is None
            else asked.documents_as_sample()
        )
        if train is not False:
            check_trainable(drawn)
        loaded = command.load(model, tokenizer)
        _check_readable(loaded)
        folder = None if asked is not None else encoder_folder(model, loaded, offline)
        if folder is not None and train is False:
            check_opens(folder, servers)
            request = Request(budget, keep, seed)
            where = place, overwrite
            return _faster(loaded, folder, drawn, labeled, request, max_length, command.bar, *where)
        if keep is not None:
            raise LayerscopeError(
                f"keep= is for sentence encoders given by name, and {loaded.name} is none. Give "
                "budget= for a lighter model."
            )
        held = VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size)
        running: dict[str, Any] = {"engine": command.engine, "recipe": command.recipe}
        reader = Reader(loaded, held, max_length, batch_size=command.where.batch_size, **running)
        judged_by = judge if isinstance(judge, str) else judge.name
        told = None if asked is None else asked.key
        settings = Settings(
            names, budget, seed, sample, judged_by, labels, max_length, center_on, time, train, texts, told,
            tuple(servers),
        )  # fmt: skip
        try:
            what: dict[str, Any] = {} if asked is None else {"asked": asked}
            kind = JOBS["search" if what else "texts"]
            job = kind(
                loaded,
                model,
                drawn,
                labeled,
                reader,
                settings,
                command.bar,
                offline,
                work,
                on_rows,
                **what,
            )
            return job.run(judge, place, overwrite)
        except NonFiniteStatesError as error:
            raise NonFiniteStatesError(f"{loaded.name}: {error}") from error


def encoder_folder(given: Any, model: LoadedModel, offline: bool) -> Path | None:
    """Return the folder of a sentence encoder whose blocks can be left out; None for other models.

    An export of layerscope stays as it is, and so does what reads an inner state.
    """
    identity = model.identity
    if not isinstance(given, (str, Path)) or not identity.get("sentence_encoder"):
        return None
    if identity.get("exported") or identity.get("untrained") or model.n_blocks < 2:
        return None
    folder = resolve(at_commit(given, model), offline=offline).path
    return folder if reads_last_state(folder) else None


def _faster(
    model: LoadedModel,
    folder: Path,
    sample: Sample,
    labels: Labeled | None,
    request: Request,
    max_length: int,
    bar: Progress,
    out: Path | None,
    overwrite: bool,
) -> FasterEncoder:
    """Make an encoder faster on a sample; a run that is finished in `out` is read back."""
    texts = Texts.divide(sample.name, sample.facts, [*sample.texts, *sample.more])
    config = {
        "model": model_key(model.identity),
        "texts": sample.facts["fingerprint"],
        "count": len(texts.fitted),
        "labels": None if labels is None else labels.facts(),
        "max_length": max_length,
        **asdict(request),
        "layerscope": VERSION,
    }
    if out is not None:
        if not overwrite and is_finished(out, config):
            return FasterEncoder.load(out)
        check_free(out, overwrite)
    encoder = Encoder.open(folder, model.device, model.dtype, max_length)
    license_name = license_of(model, folder, True)
    result = make_faster(
        encoder, texts, request, model.identity, bar,
        labels=labels, license_name=license_name, config=config,
    )  # fmt: skip
    if out is not None:
        bar.begin(f"writing {out}|folder", 1)
        result.save(out, overwrite)
        bar.advance(1)
    return result


def check_opens(folder: Path, servers: Sequence[str]) -> None:
    """Raise if programs do not open an encoder's folder: they will not open it with fewer blocks."""
    found = check_servers(folder, servers) if servers else {}
    problems = [f"{SERVERS[name].title}: {'; '.join(some)}" for name, some in found.items() if some]
    if problems:
        raise LayerscopeError(
            f"the encoder does not open there as it is, nor with fewer blocks. {' '.join(problems)}."
        )


def _check_readable(model: LoadedModel) -> None:
    if model.kind != "texts":
        raise LayerscopeError(
            f"{model.name} reads {model.kind}; improve is for models that read texts."
        )
    if model.tokenizer is None:
        raise LayerscopeError(
            f"{model.name} has no tokenizer. Give one: improve(module, texts, tokenizer=…)."
        )


@dataclass
class ImproveJob:
    """One improvement: a loaded model, a sample of texts and the settings."""

    model: LoadedModel
    given: Any
    sample: Sample
    labels: Labeled | None
    reader: Reader
    settings: Settings
    bar: Progress
    offline: bool = False
    work: Path | None = None
    on_rows: OnRows | None = None
    notes: list[str] = field(default_factory=list)
    screened: dict[str, float] = field(default_factory=dict)

    def run(self, judge: JudgeGiven, out: Path | None, overwrite: bool) -> Improved:
        """Judge, choose, export, report; a run that is finished in `out` is read back."""
        config = self.settings.config(self.model, self.sample)
        if out is not None:
            if not overwrite and is_finished(out, config):
                return Improved.load(out)
            check_free(out, overwrite)
        self.config, self.clock = config, perf_counter()
        if self.model.identity.get("sentence_encoder"):
            if self.settings.trains:
                raise LayerscopeError(
                    f"{self.model.name} is a sentence encoder, which improve does not train. Leave out train=."
                )
            return self._left_alone(out, overwrite)
        self.reader.check_differ(self.sample.texts)
        return self._choose(judge, out, overwrite)

    def _choose(self, judge: JudgeGiven, out: Path | None, overwrite: bool) -> Improved:
        """Judge, choose and export."""
        panel = make_panel(judge, self.labels, self.model, self.sample.texts, self.offline)
        self.notes += panel.notes
        if self.model.identity.get("untrained"):
            self.notes.append(
                "the model's weights are as before any training: it knows nothing of what these texts mean."
            )
        if panel.alone and lack_words(self.sample.texts):
            if self.settings.trains or self.settings.budget is not None:
                raise LayerscopeError(f"train= and budget= need a judge, and {_NO_WORDS}")
            return self._left_alone(out, overwrite, _NO_WORDS)
        grid = self._grid()
        cost = estimate_reading(panel, self.reader, grid, self.sample, self.bar)
        self._check_budget(self._costs(grid, cost))
        readouts = self._screen(panel, grid)
        stage = self._stage(panel, readouts, len(self.sample.texts))
        judgment = panel.judge(
            self.reader, readouts, self.sample.texts, self.settings.seed, self.bar, stage
        )
        self._note_weak_judge(panel, judgment, readouts)
        heads, problems = None, self._served(HEAD_READOUT)[0]
        if not problems:
            heads = self._heads(panel, judgment, readouts)
        elif self.settings.trains:
            raise LayerscopeError(f"a trained model has a head. {'; '.join(problems)}.")
        if heads is not None:
            judgment = panel.judge_heads(
                self.reader, readouts, heads, self.sample.texts, self.settings.seed, self.bar
            )
            readouts = [*readouts, HEAD_READOUT]
        costs = self._costs(readouts, cost)
        maker = Maker(
            self.reader, self.sample, self.labels, self.settings, panel, cost, self.bar, self.notes, config_key(self.config),
            self.work, self.on_rows,
        )  # fmt: skip
        if self.settings.trains and heads is not None:
            choice = self._decide_blocks(readouts, judgment, costs)
            student = maker.train(heads, choice.layer, self._today().encode)
            if student is not None:
                return self._result(maker, readouts, choice, heads, *student, out, overwrite)
        choice = self._decide(panel, readouts, judgment, costs, cost.tokens["plain"])
        return self._result(maker, readouts, choice, heads, None, None, out, overwrite)

    def _costs(self, readouts: Sequence[Readout], cost: ReadingCost) -> np.ndarray:
        """What candidates cost (readouts, layers) relative to today."""
        tokens = [cost.tokens[readout.template] for readout in readouts]
        more = [needs_filler(self.model, readout.final_norm) for readout in readouts]
        return relative_costs(tokens, self.reader.layers, self.model.n_blocks, more)

    def _check_budget(self, costs: np.ndarray) -> None:
        """Refuse a budget that nothing can keep, before anything is read."""
        budget, one = self.settings.budget, 1 / self.model.n_blocks
        if self.settings.trains and (budget or BUDGET) + 1e-9 < one:
            raise InvalidValueError(
                f"budget={budget or BUDGET:g} allows no block to train; one costs {one:.2g}."
            )
        if budget is not None and budget + 1e-9 < costs.min():
            raise InvalidValueError(too_little(budget, float(costs.min())))

    def _heads(
        self, panel: Panel, judgment: ScoredCandidates, readouts: Sequence[Readout]
    ) -> Heads | None:
        """A head at every layer, taught by what was judged best; None where nothing can teach."""
        layers, texts = self.reader.layers, self.sample.texts
        teacher = find_teacher(
            judgment, readouts, layers, "" if panel.encoder is None else panel.encoder.name
        )
        found, why = None, "no prompt that could teach beats today's"
        if len(texts) < LEAST_TEXTS:
            why = f"{len(texts)} texts are too few, it takes {LEAST_TEXTS}"
        elif teacher is not None:
            candidates = StoredCandidates(self.reader.spaces, readouts, layers, {TEXTS: texts})
            prompted = candidates.raw(teacher.readout, teacher.layer)
            raw = np.stack([candidates.raw(Readout(), layer) for layer in layers])
            found = fit_heads(teacher, raw, prompted)
            why = "the prompt that should teach says the same of all texts"
        if found is None and self.settings.trains:
            raise LayerscopeError(
                f"{self.model.name} cannot be trained on these texts: {why}. Leave out train=."
            )
        if found is None and self.settings.budget is not None:  # a light model was expected
            self.notes.append(f"no head was fitted: {why}.")
        return found

    def _grid(self) -> list[Readout]:
        has_cls, has_norm = self.model.has_class_token, self.model.anatomy.final_norm is not None
        grid = make_grid(self.settings.templates, has_cls=has_cls, has_norm=has_norm)
        problems, formats = self._served(grid[0])
        for name in formats:  # what cannot be written is refused before anything is read
            FORMATS.get(name).check()
            FORMATS.get(name).check_choice(self.model, self.model.n_blocks, grid[0])
        if problems:
            raise LayerscopeError(
                f"no readout of {self.model.name} opens there: {'; '.join(problems)}."
            )
        return [readout for readout in grid if not self._served(readout)[0]]

    def _served(self, readout: Readout) -> tuple[list[str], list[str]]:
        """What keeps the wanted programs from opening a readout, and the formats they need."""
        servers = self.settings.servers
        return plan_formats(facts_of(self.model, readout), servers) if servers else ([], [])

    def _stage(self, panel: Panel, readouts: Sequence[Readout], texts: int) -> str:
        """What a stage reads, in words."""
        parts, many = " and their parts" if panel.needs_views else "", len(by_template(readouts))
        return f"{self.model.name} reads {texts} texts{parts} under {many} templates"

    def _screen(self, panel: Panel, grid: list[Readout]) -> list[Readout]:
        """All templates on a part of the sample; the readouts of the best, and the default's, go on
        to the whole of it."""
        names = list(dict.fromkeys(readout.template for readout in grid))
        if len(names) <= KEPT + 1 or len(self.sample.texts) <= SCREEN:
            return grid
        some, stage = self.sample.texts[:SCREEN], self._stage(panel, grid, SCREEN)
        judgment = panel.judge(self.reader, grid, some, self.settings.seed, self.bar, stage)
        top = dict.fromkeys(names, -np.inf)
        for readout, scores, known in zip(grid, judgment.score, judgment.defined, strict=True):
            if known.any():
                top[readout.template] = max(top[readout.template], float(scores[known].max()))
        self.screened = {name: value for name, value in top.items() if np.isfinite(value)}
        rest = sorted((name for name in names if name != "plain"), key=lambda name: -top[name])
        kept = {"plain", *rest[:KEPT]}
        return [readout for readout in grid if readout.template in kept]

    def _decide(
        self,
        panel: Panel,
        readouts: Sequence[Readout],
        judgment: ScoredCandidates,
        costs: np.ndarray,
        tokens: float,
    ) -> Choice:
        """The judge's choice; of its template's layers, with a second opinion. Heads are told apart
        by the judge alone."""
        layers, budget = self.reader.layers, self.settings.budget
        eligible = panel.eligible(readouts, tokens)
        choice = decide(judgment, readouts, layers, costs, budget, eligible=eligible)
        best = of_name(readouts, choice.extra["best"]["readout"])
        if (
            panel.takes_second_opinion
            and not choice.extra["kept_default"]
            and best.centering != HEAD
        ):
            second = second_opinion(
                self.reader,
                readouts,
                best.template,
                self.sample.texts,
                self.settings.seed,
                self.bar,
            )
            choice = decide(
                judgment, readouts, layers, costs, budget, eligible=eligible, second=second
            )
        return choice

    def _decide_blocks(
        self, readouts: Sequence[Readout], judgment: ScoredCandidates, costs: np.ndarray
    ) -> Choice:
        """The head on as many blocks as the budget of a training allows."""
        layers, budget = self.reader.layers, self.settings.budget or BUDGET
        may = (
            np.outer([readout.centering == HEAD for readout in readouts], np.asarray(layers) > 0)
            & judgment.defined
        )
        if not (may & (costs <= budget + 1e-9)).any():
            raise InvalidValueError(
                f"budget={budget:g} allows no block to train; one costs {1 / self.model.n_blocks:.2g}."
            )
        only = may & (costs == costs[may & (costs <= budget + 1e-9)].max())
        return decide(judgment, readouts, layers, costs, budget, only=only)

    def _note_weak_judge(
        self, panel: Panel, judgment: ScoredCandidates, readouts: Sequence[Readout]
    ) -> None:
        """A judge that seems weak is named."""
        prompts = any(readout.template != "plain" for readout in readouts)
        if (
            panel.encoder is not None
            and self.labels is None
            and prompts
            and prefers_plain_text(judgment, readouts)
        ):
            self.notes.append(
                f"{panel.encoder.name} agrees more with the plain text than with any prompt. Judges that go by words rather than "
                "by meaning do that, and their choice is worth less; long documents are another cause. Compare with judge='none'."
            )

    def _result(
        self, maker: Maker, readouts: Sequence[Readout], choice: Choice, heads: Heads | None, chosen: Chosen | None,
        trained: dict[str, Any] | None, out: Path | None, overwrite: bool,
    ) -> Improved:  # fmt: skip
        """The result; `chosen` and `trained` are a student's."""
        layers, sample, panel = self.reader.layers, self.sample.texts, maker.panel
        readout, layer = of_name(readouts, choice.readout), choice.layer
        candidates = StoredCandidates(self.reader.spaces, readouts, layers, {TEXTS: sample}, heads)
        before = candidates.vectors(Readout())[-1]
        if chosen is None:
            chosen = maker.fit(Chosen(self.model, self.reader, readout, layer), candidates, heads)
        after = (
            chosen.encode(sample) if trained else chosen.finished(candidates.raw(readout, layer))
        )
        teacher = (
            heads.teacher.describe() if heads is not None and readout.centering == HEAD else None
        )
        today = self._today()
        speeds = compare_speeds(panel, today, chosen, sample)
        evidence = {
            **evidence_of(panel, choice),
            "teacher": trained["teacher"] if trained else teacher,
            "trained": trained,
            "speedup": speeds["now"] / speeds["today"],
            "encoder": panel.trained_encoder,
            "texts_per_second": speeds,
            "screened": self.screened,
            "found": None
            if trained
            else panel.found(
                candidates, {"before": (Readout(), layers[-1]), "after": (readout, layer)}
            ),
            "changed_neighbors": changed_share(before, after),
        }
        if trained is not None:
            evidence |= as_evidence(trained)
            choice = replace(choice, before=evidence["before"], after=evidence["after"])
        self._note_cuts(readout)
        choice = told(choice, self.model, self.reader, evidence, self.notes)
        sampled = {"texts": list(sample), "before": before, "after": after}
        kept = bool(evidence["kept_default"])
        made = map_of_choice(
            self.model, self.sample, candidates, chosen, after, kept, bool(trained)
        )
        return self._finish(choice, choice.table, sampled, evidence, chosen, out, overwrite, made)

    def _today(self) -> Chosen:
        """What the user has: the last layer, the mean of its tokens."""
        return Chosen(self.model, self.reader, Readout(), self.model.n_blocks)

    def _note_cuts(self, readout: Readout) -> None:
        for name in dict.fromkeys(["plain", readout.template]):
            cut = (
                self.reader.truncated(name, self.sample.texts) if name in self.reader.spaces else 0
            )
            if cut:
                self.notes.append(
                    f"{cut} of {len(self.sample.texts)} texts were cut to {self.reader.max_length} tokens ({name})."
                )
        stored = self.model.identity.get("quantization")
        if stored:
            self.notes.append(f"the weights were quantized ({stored}) in their source.")

    def _left_alone(self, out: Path | None, overwrite: bool, why: str = "") -> Improved:
        """A sentence encoder was trained for this: its own readout stays. With `why`, today's stays
        for that reason."""
        named = isinstance(self.given, (str, Path)) and not why
        folder = (
            resolve(at_commit(self.given, self.model), offline=self.offline).path if named else None
        )
        readout, blocks = own_readout(folder, self.model.width), self.model.n_blocks
        self.reader.read(
            {"plain": list(readout.kinds)}, list(self.sample.texts), self.bar, self.model.name
        )
        candidates = StoredCandidates(
            self.reader.spaces, [readout], self.reader.layers, {TEXTS: self.sample.texts}
        )
        vectors = candidates.vectors(readout)[-1]
        evidence, choice = left_alone(self.model, readout, why)
        sampled = {"texts": list(self.sample.texts), "before": vectors, "after": vectors}
        chosen = Chosen(self.model, self.reader, readout, blocks)
        made = map_of_choice(self.model, self.sample, candidates, chosen, vectors, True)
        return self._finish(
            choice, pd.DataFrame(columns=COLUMNS), sampled, evidence, chosen, out, overwrite, made
        )

    def _finish(
        self, choice: Choice, table: pd.DataFrame, sampled: dict[str, Any], evidence: dict[str, Any], chosen: Chosen,
        out: Path | None, overwrite: bool, made: LayerMap | None, neighbors: pd.DataFrame | None = None,
    ) -> Improved:  # fmt: skip
        if neighbors is None:
            neighbors = neighbor_table(sampled["texts"], sampled["before"], sampled["after"])
        if not self.settings.texts:
            neighbors, made = neighbors.iloc[:0], made and made.without_texts()
        manifest = manifest_of(
            self.config,
            self.model,
            self.reader,
            self.sample,
            self.settings,
            evidence,
            choice,
            chosen.fitted,
        )
        manifest["seconds"] = perf_counter() - self.clock

        def write(place: Path) -> None:
            """What tells the run, into the folder before it appears in its place."""
            folder = RunFolder(place)
            result.write(folder)
            folder.write_manifest(manifest)

        def save(place: Path, replace_old: bool) -> Path:
            return chosen.save(
                place,
                replace_old,
                self.offline,
                _card(self.sample.name, choice, self.settings.texts),
                write,
                self._served(chosen.readout)[1],
            )

        asks = None if chosen.query is None else chosen.query.encode
        result = Improved(
            choice, table, neighbors, manifest, None, sampled, chosen.encode, save, asks
        )
        result._map = made
        if out is not None:
            self.bar.begin(f"writing {out}|folder", 1)
            result.save(out, overwrite)
            self.bar.advance(1)
        return result


_NO_WORDS = (
    "most of these texts are hardly made of words. A part of such a text need not mean the same, so the model cannot judge "
    "itself: give a few labeled examples, or as the judge an encoder that knows such texts."
)

JOBS: dict[str, type[ImproveJob]] = {"texts": ImproveJob}
"""What improves each kind of data; the file of a search adds its own."""


def _card(corpus: str, choice: Choice, texts: bool) -> str:
    """How the layer and readout were chosen, for the model card."""
    private = PRIVATE if texts else "No text of that sample is in this folder."
    return f"Chosen by `layerscope improve` on {corpus}, without labels unless it says so. {choice.reason} {private}"


def of_name(readouts: Sequence[Readout], name: str | None) -> Readout:
    """One of the candidates' readouts; parsing its name would strip a pattern of the user's own."""
    return next(readout for readout in readouts if readout.name == name)
