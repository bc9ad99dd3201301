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
    """A finished run, an earlier choice, or a choice with the evaluation that it rests on."""

    source: str
    run: Evaluation | Profile | None = None
    choice: Choice | None = None

    @classmethod
    def load(cls, source: Any) -> ExportEvidence:
        """Read a run's folder, a file of `layerscope select --json`, a run or a choice."""
        if isinstance(source, Evaluation | Profile):
            return cls(str(source.path), source)
        if isinstance(source, Choice):
            name = "the given choice"
            choice = source
        elif Path(source).is_file():
            name = str(source)
            choice = Choice.from_json(Path(source))
        else:
            run = load_run(source)
            if isinstance(run, Evaluation | Profile):
                return cls(str(source), run)
            raise ExportError(
                f"{source} holds a {run.kind}, which says nothing about the layer to export. Give "
                "the folder of a profile or an evaluation, or a file that `layerscope select "
                "--json` wrote."
            )
        rests_on = choice.source if choice.rule == "measured" else None
        if rests_on is not None and Path(rests_on).is_dir():
            return cls(name, Evaluation.load(rests_on), choice)
        return cls(name, None, choice)

    def check(self, model: LoadedModel) -> None:
        """Raise for evidence about another model, by weights, settings, precision or adapters."""
        facts = self.choice.identity if self.choice else self._manifest["model"]
        difference = ModelIdentity.of(facts).difference(ModelIdentity.of(model.identity))
        if difference is not None:
            raise ExportError(
                f"{self.source} is about another model than {model.name}: {difference}."
            )

    def choose(
        self, layer: int | None, readout: Readout | None
    ) -> tuple[int, Readout, dict[str, Any]]:
        """Return the layer and readout, as given or else as `select` chooses, and the facts for
        layerscope.json and the model card."""
        choice = None
        notes: list[str] = []
        if layer is None or readout is None:
            choice = self.choice
            if choice is None:
                readouts = None if readout is None else [readout.name]
                usable = why_not if readout is None else None
                choice = select(self.run, readouts=readouts, usable=usable)
                notes = [
                    note.replace("cannot be used", "cannot be exported")
                    for note in choice.passed_over
                ]
            elif readout is not None and choice.readout not in (None, readout.name):
                raise ExportError(
                    f"{self.source} chose the readout {choice.readout}, not {readout.name}. Leave "
                    "out readout=."
                )
            readout = readout or (Readout.parse(choice.readout) if choice.readout else Readout())
            layer = choice.layer if layer is None else layer
        facts = {
            "run": Path(self.source).name,
            "choice": None if choice is None else choice.as_dict(),
            "scores": self._scores(layer, readout),
            "notes": notes,
            "conventions": self._manifest.get("conventions", {}),
        }
        return layer, readout, facts

    @property
    def max_length(self) -> int | None:
        """The number of tokens that were read of a text."""
        if self.choice is not None and self.run is None:
            return self.choice.max_length
        return self._manifest["conventions"].get("max_length")

    @property
    def unit_length(self) -> bool | None:
        """True if vectors were scaled to length 1; None if no vectors were scored."""
        if isinstance(self.run, Evaluation):
            return bool(self._manifest["conventions"].get("unit_length"))
        return None if self.choice is None else self.choice.unit_length

    @property
    def _manifest(self) -> dict[str, Any]:
        return {} if self.run is None else self.run.manifest

    def _scores(self, layer: int, readout: Readout) -> list[dict[Any, Any]]:
        """Return a row for each task, in points (score × 100).

        `gain` with its interval is over the last layer under the same readout (`last`).
        `gain_readout` is that last layer over the last layer under the default readout.
        """
        if not isinstance(self.run, Evaluation):
            return []
        gains = self.run.gains.assign(readout=readout_names(self.run.gains))
        same = gains[gains["readout"] == readout.name]
        rows = same[same["layer"] == layer].set_index(TASK_COLUMNS)
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
        tasks = self._manifest["tasks"]
        table = (100 * table).reset_index()
        table["items"] = [tasks.get(task, {}).get("items") for task in table["task"]]
        return table.to_dict("records")

    def center_texts(self) -> tuple[list[str], str] | None:
        """Return the texts whose mean a choice with labels subtracts, and words for them.

        None: an evaluation has the mean.
        """
        file = None if self.choice is None else self.choice.center_on
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
        tasks = list(self._manifest["tasks"])
        digests = [read_arrays(texts_file(path, task))["keys"] for task in tasks]
        keys = [bytes(row) for row in np.unique(np.concatenate(digests), axis=0)]
        site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
        vector_store = VectorStore(Path(store) if store else cache_dir() / "embeddings", None)
        template = get_template(readout.template)
        try:
            space = open_space(
                vector_store, model, template, self._manifest["conventions"]["max_length"]
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
