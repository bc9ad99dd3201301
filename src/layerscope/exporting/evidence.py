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
from layerscope.choose.labels.read import read_labels
from layerscope.choose.select import select
from layerscope.core.heads import Head
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT, Readout, readout_names
from layerscope.core.runs import load_run
from layerscope.core.statistics import INTERVAL
from layerscope.core.templates import get_template
from layerscope.errors import ExportError
from layerscope.evaluation.run import TASK_COLUMNS, Evaluation, texts_file
from layerscope.exporting.draft import why_not
from layerscope.models import LoadedModel
from layerscope.profiling.run import Profile
from layerscope.store.checked import read_arrays
from layerscope.vectors import MissingVectorsError, VectorStore
from layerscope.vectors.encode import open_space, read_readout


@dataclass(frozen=True)
class ExportEvidence:
    """A choice of a layer, with the run that it rests on if that is still there."""

    source: str
    choice: Choice
    run: Evaluation | Profile | None = None

    @classmethod
    def load(cls, source: Any, readout: Readout | None) -> ExportEvidence:
        """Read a choice, the file of one, or a run, from which `select` chooses.

        The choice from a run is under the readout, or among all that can be exported.
        """
        if isinstance(source, Choice):
            return cls("the given choice", source, _evaluation_of(source))
        run = source
        if not isinstance(source, Evaluation | Profile):
            if Path(source).is_file():
                choice = Choice.from_json(Path(source))
                return cls(str(source), choice, _evaluation_of(choice))
            run = load_run(source)
        if not isinstance(run, Evaluation | Profile):
            raise ExportError(
                f"{source} holds a {run.kind}, which says nothing about the layer to export. Give "
                "the folder of a profile or an evaluation, or a file that `layerscope select "
                "--json` wrote."
            )
        if readout is None:
            return cls(str(run.path), select(run, usable=why_not), run)
        return cls(str(run.path), select(run, readouts=[readout.name]), run)

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
        choice = self.choice
        chosen_readout = Readout.parse(choice.readout) if choice.readout else None
        if layer is not None:
            return layer, readout or chosen_readout or Readout()
        if readout and chosen_readout and readout != chosen_readout:
            raise ExportError(
                f"{self.source} chose the readout {choice.readout}, not {readout.name}. Leave "
                "out readout=."
            )
        return choice.layer, readout or chosen_readout or Readout()

    def facts(self, layer: int, readout: Readout, is_chosen: bool) -> dict[str, Any]:
        """Return the facts for layerscope.json and the model card."""
        notes = [
            note.replace("cannot be used", "cannot be exported") for note in self.choice.passed_over
        ]
        return {
            "run": Path(self.source).name,
            "choice": self.choice.as_dict() if is_chosen else None,
            "scores": self._scores(layer, readout),
            "notes": notes if is_chosen else [],
            "conventions": {} if self.run is None else self.run.manifest["conventions"],
        }

    def _scores(self, layer: int, readout: Readout) -> list[dict[Any, Any]]:
        """Return a row for each task, in points (score × 100).

        `gain` with its interval is over the last layer under the same readout (`last`).
        `gain_readout` is that last layer over the last layer under the default readout.
        """
        if not isinstance(self.run, Evaluation):
            return []
        gains = self.run.gains.assign(readout=readout_names(self.run.gains))
        is_chosen = (gains["readout"] == readout.name) & (gains["layer"] == layer)
        rows = gains[is_chosen].set_index(TASK_COLUMNS)
        if rows.empty:
            names = ", ".join(sorted(set(gains["readout"])))
            raise ExportError(
                f"the run in {self.source} did not measure {readout.name} at layer {layer}. "
                f"It measured: {names}."
            )
        last_rows = gains.loc[gains.groupby([*TASK_COLUMNS, "readout"])["layer"].idxmax()]
        last_scores = last_rows.set_index(["readout", *TASK_COLUMNS])["score"].sort_index()
        table = rows[["score", "gain", *INTERVAL]].assign(last=last_scores[readout.name])
        if DEFAULT_READOUT in last_scores:
            table["default_last"] = last_scores[DEFAULT_READOUT]
        else:
            table["default_last"] = np.nan
        table["gain_readout"] = table["last"] - table["default_last"]
        tasks = self.run.manifest["tasks"]
        table = (100 * table).reset_index()
        table["items"] = [tasks.get(task, {}).get("items") for task in table["task"]]
        return table.to_dict("records")

    def center_texts(self) -> tuple[list[str], str] | None:
        """Return the texts whose mean a choice with labels subtracts, and words for them.

        None: an evaluation has the mean.
        """
        file = self.choice.center_on
        if file is None or isinstance(self.run, Evaluation):
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
        """Return the mean over all distinct texts of the run's tasks, by the vectors in the store."""
        if not isinstance(self.run, Evaluation) or self.run.path is None:
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
        template = get_template(readout.template)
        try:
            space = open_space(
                vector_store, model, template, self.run.manifest["conventions"]["max_length"]
            )
            vectors = read_readout(space, keys, readout, site.name)
        except MissingVectorsError as error:
            raise ExportError(
                f"the vectors that {path} centered on are no longer in the store. Run the same "
                "evaluation again with another out= (it fills the store), or say which texts to "
                "center on (center_on=FILE)."
            ) from error
        words = f"the {len(keys)} texts of {', '.join(tasks)}"
        return Head(vectors.mean(0, dtype=np.float64), None, words)


def _evaluation_of(choice: Choice) -> Evaluation | None:
    """Return the evaluation that a choice rests on, if there is one and it is still there."""
    if choice.rule != "measured" or choice.source is None or not Path(choice.source).is_dir():
        return None
    return Evaluation.load(choice.source)
