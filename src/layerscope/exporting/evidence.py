"""The evidence behind an export: a finished run or an earlier choice.

It gives the layer and readout, their scores, and the mean of the evaluation's vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.choose.choice import Choice
from layerscope.choose.labels import read_labels
from layerscope.choose.select import select
from layerscope.core.heads import Head
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import Readout, readout_names, readouts_of
from layerscope.core.runs import load_run
from layerscope.core.statistics import INTERVAL
from layerscope.core.templates import get_template
from layerscope.errors import ExportError
from layerscope.evaluation.run import TASK_COLUMNS, Evaluation, texts_file
from layerscope.exporting.draft import why_not
from layerscope.models import LoadedModel
from layerscope.store.checked import read_arrays
from layerscope.vectors import MissingVectorsError, VectorStore
from layerscope.vectors.encode import open_space, read_readout


@dataclass(frozen=True)
class ExportEvidence:
    """A choice of a layer, with the evaluation that it rests on if that is still there."""

    source: str
    choice: Choice
    run: Evaluation | None = None

    @classmethod
    def load(cls, source: Any, readout: Readout | None) -> ExportEvidence:
        """Read a choice, the file of one, or a run, from which `select` chooses.

        The choice from a run is under the readout, or among all that can be exported.
        """
        if isinstance(source, str | Path):
            is_file = Path(source).is_file()
            source = Choice.from_json(Path(source)) if is_file else load_run(source)
        if isinstance(source, Choice):
            folder = source.source
            is_there = source.rule == "measured" and folder is not None and Path(folder).is_dir()
            run = Evaluation.load(folder) if is_there and folder is not None else None
            return cls("the given choice", source, run)
        names = None if readout is None else [readout.name]
        if readout is None and isinstance(source, Evaluation):
            measured = dict.fromkeys(readouts_of(source.gains))
            names = [entry.name for entry in measured if why_not(entry) is None]
        choice = select(source, readouts=names)
        return cls(str(source.path), choice, source if isinstance(source, Evaluation) else None)

    def check(self, model: LoadedModel) -> None:
        """Raise for evidence about another model, by weights, settings, precision or adapters."""
        identity = ModelIdentity.of(self.choice.identity)
        difference = identity.difference(ModelIdentity.of(model.identity))
        if difference is not None:
            raise ExportError(
                f"{self.source} is about another model than {model.name}: {difference}."
            )

    def choose(self, layer: int | None, readout: Readout | None) -> tuple[int, Readout]:
        """Return the layer and readout as given, or else as chosen."""
        chosen = Readout.parse(self.choice.readout) if self.choice.readout else Readout()
        if layer is None and readout and self.choice.readout and readout != chosen:
            raise ExportError(
                f"{self.source} chose the readout {chosen.name}, not {readout.name}. Leave out "
                "readout=."
            )
        return self.choice.layer if layer is None else layer, readout or chosen

    def facts(self, layer: int, readout: Readout, is_chosen: bool) -> dict[str, Any]:
        """Return the facts for layerscope.json and the model card."""
        return {
            "run": Path(self.source).name,
            "choice": self.choice.as_dict() if is_chosen else None,
            "scores": self._scores(layer, readout),
        }

    def _scores(self, layer: int, readout: Readout) -> list[dict[Any, Any]]:
        """Return a row for each task, in points (score × 100).

        `gain` with its interval is over the last layer under the same readout (`last`).
        """
        if self.run is None:
            return []
        gains = self.run.gains.assign(readout=readout_names(self.run.gains))
        of_readout = gains[gains["readout"] == readout.name]
        rows = of_readout[of_readout["layer"] == layer].set_index(TASK_COLUMNS)
        if rows.empty:
            names = ", ".join(sorted(set(gains["readout"])))
            raise ExportError(
                f"the run in {self.source} did not measure {readout.name} at layer {layer}. "
                f"It measured: {names}."
            )
        last = of_readout.sort_values("layer").groupby(TASK_COLUMNS)["score"].last()
        table = 100 * rows[["score", "gain", *INTERVAL]].assign(last=last)
        return table.reset_index().to_dict("records")

    def center_texts(self) -> tuple[list[str], str] | None:
        """Return the texts whose mean a choice with labels subtracts, and words for them.

        None: an evaluation has the mean.
        """
        file = self.choice.center_on
        if file is None or self.run is not None:
            return None
        if not Path(file).is_file():
            raise ExportError(
                f"{self.source} centers on the texts of {file}, which is not there. Say which "
                "texts to center on (center_on=FILE)."
            )
        texts = read_labels(file).texts
        return texts, f"the {len(texts)} texts of {Path(file).name}"

    def mean(
        self, model: LoadedModel, layer: int, readout: Readout, store: str | Path | None
    ) -> Head:
        """Return the mean over all distinct texts of the run's tasks, from vectors in the store."""
        if self.run is None or self.run.path is None:
            raise ExportError(
                f"readout {readout.name!r} subtracts a mean, and {self.source} holds no vectors "
                "to take it from: say which texts to center on (center_on=FILE)."
            )
        path = self.run.path
        tasks = list(self.run.manifest["tasks"])
        digests = [read_arrays(texts_file(path, task))["keys"] for task in tasks]
        keys = [bytes(row) for row in np.unique(np.concatenate(digests), axis=0)]
        site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
        vector_store = VectorStore(Path(store) if store else cache_dir() / "embeddings", None)
        length = self.run.manifest["conventions"]["max_length"]
        try:
            space = open_space(vector_store, model, get_template(readout.template), length)
            vectors = read_readout(space, keys, readout, site.name)
        except MissingVectorsError as error:
            raise ExportError(
                f"the vectors that {path} centered on are no longer in the store. Run the same "
                "evaluation again with another out= (it fills the store), or say which texts to "
                "center on (center_on=FILE)."
            ) from error
        words = f"the {len(keys)} texts of {', '.join(tasks)}"
        return Head(vectors.mean(0, dtype=np.float64), None, words)
