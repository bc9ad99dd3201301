"""`study`, which runs one experiment on any models and texts, and the run it returns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from layerscope.capture import FINAL_NORMS
from layerscope.command import Command, environment, make_manifest, run_in
from layerscope.core.identity import SEVERAL, Reading
from layerscope.core.options import EngineOptions, ModelOptions
from layerscope.data import Corpus, load_corpus
from layerscope.engines import Engine
from layerscope.errors import DataError, InvalidValueError, UnknownNameError
from layerscope.extras import MissingExtraError
from layerscope.models import LoadedModel, wrap
from layerscope.models.source import check_name
from layerscope.progress import Progress
from layerscope.store import RunFolder, StoredRun, atomic
from layerscope.store.folder import Session
from layerscope.version import VERSION
from layerscope_paper.drawing import Figure
from layerscope_paper.studies.base import STUDIES, Study
from layerscope_paper.studies.shared.models import Request, Spec, read_spec

# a folder of intermediate results, such as the profiles of the models, which are runs themselves
WORK = "parts"


@dataclass
class StudyRun(StoredRun):
    """The result of `layerscope_paper.study`: a tidy `table` and a `verdict` in plain sentences."""

    kind: ClassVar[str] = "study"
    files: ClassVar[dict[str, str]] = {"study": "table"}

    table: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.manifest["study"])

    @property
    def verdict(self) -> list[str]:
        """The answer first, then the sentences with its numbers and intervals."""
        return list(self.manifest["verdict"])

    def plot(self) -> Figure:
        """Return the study's figure."""
        return STUDIES.get(self.name).draw(self.table, self.manifest)

    def write(self, folder: RunFolder) -> None:
        """Write the table, and the figure as figure.png and figure.svg."""
        super().write(folder)
        try:
            figure = self.plot()
            for kind in ("png", "svg"):
                folder.write_file(f"figure.{kind}", partial(figure.savefig, format=kind))
        except MissingExtraError as error:  # the numbers must not be lost without matplotlib
            # without the command that installs it, which names a folder of this machine
            warning = f"no figure was drawn: that needs the extra `{error.extra}`"
            self.manifest["warnings"] = [*self.manifest["warnings"], warning]

    def summary(self) -> dict[str, Any]:
        """Return the answer and its settings as plain values."""
        facts = {
            name: self.manifest[name] for name in ("study", "title", "paper", "verdict", "options")
        }
        return {**facts, "rows": len(self.table), **super().summary()}

    def __repr__(self) -> str:
        return f"<StudyRun {self.name}: {len(self.table)} rows. {''.join(self.verdict[:1])}>"


def study(
    name: str,
    *models: Any,
    data: str | Path | Iterable[str] | Corpus = "lee",
    out: str | Path | None = None,
    tokenizer: Any = None,
    limit: int | None = None,
    column: str | None = None,
    seed: int = 0,
    final_norm: str | None = None,
    max_length: int = 256,
    overwrite: bool = False,
    progress: bool | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> StudyRun:
    """Run one study; `layerscope-paper study list` names them.

    - `models`: names, folders, hub ids (with settings of their own if needed:
      `org/base?bidirectional=true`), `LoadedModel`s, or torch modules with their `tokenizer`.
    - `data`: texts, as for `layerscope.profile`.
    - `out`: a folder, which is resumed if it holds this very study.
    - `final_norm`: `raw` unless the study says otherwise (`scores`: `applied`).
    - `options`: the study's own options.

    Options of the models (dtype, device, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords, as for `layerscope.profile`. They apply to all
    models; the settings written with a model come first.

        run = layerscope_paper.study("extreme", "smollm2-135m", limit=40, levels=[0, 0.5, 1])
        run.verdict; run.table; run.plot()
    """
    chosen = STUDIES.get(name)
    study_options = {option.name for option in chosen.options}
    run_options = {
        key: options.pop(key)
        for key in (*ModelOptions.names(), *EngineOptions.names())
        if key in {*options} - study_options
    }
    command = Command("study", run_options, engine=engine, progress=progress)
    filled = chosen.fill(options)
    chosen.check_models(len(models))
    final_norm = final_norm or chosen.final_norm
    if final_norm not in FINAL_NORMS:
        raise UnknownNameError("final_norm", str(final_norm), FINAL_NORMS)
    if max_length < 1:
        raise InvalidValueError(f"max_length must be at least 1 token, not {max_length}.")
    if seed < 0:
        raise InvalidValueError(f"seed must be 0 or more, not {seed}.")
    folder = None if out is None else RunFolder(out)
    loaded = [
        model if isinstance(model, (str, Path, LoadedModel, Spec)) else wrap(model, tokenizer)
        for model in models
    ]
    # a misspelled name must be refused before the first model is measured
    for spec in map(read_spec, loaded):
        if isinstance(spec.model, (str, Path)):
            check_name(spec.model)
    smallest_count, largest_count = chosen.models
    texts = None
    if chosen.texts and (loaded or smallest_count or not largest_count):
        texts = _read_texts(data, column, limit)
    request = Request(loaded, texts, filled, seed, command.loading, final_norm, max_length, Path())
    request.batch_size = command.where.batch_size
    with command:
        request.engine = command.engine
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="layerscope-study-") as scratch:
                request.work = Path(scratch)
                return _measure(chosen, request, command.bar)

        def compute(session: Session) -> StudyRun:
            request.work = folder.path / WORK
            request.work.mkdir(parents=True, exist_ok=True)
            return _measure(chosen, request, command.bar)

        settings: dict[str, Any] = {"overwrite": overwrite, "owned": [WORK], "study": chosen.name}
        return run_in(folder, StudyRun, identify(chosen, request), compute, **settings)


def _read_texts(data: Any, column: str | None, limit: int | None) -> Corpus:
    if not isinstance(data, Corpus):
        return load_corpus(data, column=column, limit=limit)
    if limit is not None or column is not None:
        raise DataError(
            "limit and column go with texts that are not read yet: pass them to load_corpus."
        )
    return data


def identify(chosen: Study, request: Request) -> dict[str, Any]:
    """Return everything that decides a study's numbers."""
    return {
        "study": chosen.name,
        "models": chosen.identify(request),
        "corpus": None if request.texts is None else request.texts.fingerprint,
        "options": request.options,
        "seed": request.seed,
        "final_norm": request.final_norm,
        "max_length": request.max_length,
        "layerscope": VERSION,
    }


def _measure(chosen: Study, request: Request, bar: Progress) -> StudyRun:
    """Run a study, and return its table and manifest."""
    clock = time.perf_counter()
    texts = request.texts
    corpus = None
    if texts is not None:
        corpus = {"name": texts.name, "fingerprint": texts.fingerprint, **texts.source}
    result = chosen.run(request, bar)
    common: dict[str, Any] = {"seed": request.seed}
    if chosen.texts:
        reading = Reading(request.final_norm, request.max_length, SEVERAL).as_conventions()
        common = {**reading, **common, "intervals": "95 %, over prompts"}
    manifest = make_manifest(
        StudyRun.kind,
        study=chosen.name,
        title=chosen.title,
        paper=chosen.paper,
        options=atomic.plain(request.options),
        corpus=corpus,
        texts=None if texts is None else len(texts),
        conventions={**common, **result.conventions},
        verdict=result.verdict,
        warnings=result.warnings,
        environment=environment(),
        seconds=round(time.perf_counter() - clock, 3),
    )
    return StudyRun(result.table, manifest)
