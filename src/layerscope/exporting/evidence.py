"""What a choice rests on: which layer and readout to export, how they scored, and the mean of their
vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.choose.choice import Choice
from layerscope.choose.labels.read import read_labels
from layerscope.choose.select import select
from layerscope.core.conventions import Reading
from layerscope.core.heads import Head
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import DEFAULT_READOUT, READOUT_COLUMNS, Readout, readout_names
from layerscope.core.runs import load_run
from layerscope.core.statistics import INTERVAL
from layerscope.core.templates import get_template
from layerscope.errors import ExportError, RunFolderError
from layerscope.evaluation.run import Evaluation, texts_file
from layerscope.exporting.draft import why_not
from layerscope.models import LoadedModel
from layerscope.profiling.run import Profile
from layerscope.store.checked import read_arrays
from layerscope.vectors import MissingVectorsError, VectorStore
from layerscope.vectors.encode import open_space, read_readout


@dataclass(frozen=True)
class ExportEvidence:
    """A finished run, or a choice that was made earlier, asked about the layer and readout to
    export."""

    where: str
    run: Evaluation | Profile | None = None
    given: Choice | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """The facts of the model's identity."""

    @classmethod
    def load(cls, source: Any) -> ExportEvidence:
        """From a run's folder, a file that `layerscope select --json` wrote, a run or a choice."""
        if isinstance(source, Choice):
            return cls._of_choice("the given choice", source)
        if isinstance(source, (Evaluation, Profile)):
            return cls(str(source.path), source, about=source.manifest["model"])
        path = Path(source)
        if path.is_file():
            try:
                return cls._of_choice(str(path), Choice.from_json(path))
            except RunFolderError as error:
                raise ExportError(str(error)) from None
        run = load_run(path)
        if isinstance(run, (Evaluation, Profile)):
            return cls(str(path), run, about=run.manifest["model"])
        raise ExportError(
            f"{path} holds a {run.kind}, which says nothing about the layer to export. Give the folder of a profile or an "
            "evaluation, or a file that `layerscope select --json` wrote."
        )

    @classmethod
    def _of_choice(cls, where: str, choice: Choice) -> ExportEvidence:
        """A choice that was made earlier; scores come with it where the evaluation that it rests on
        is still there."""
        run = None
        if choice.rule == "measured" and choice.source is not None and Path(choice.source).is_dir():
            run = Evaluation.load(choice.source)
        return cls(where, run, choice, choice.identity)

    def check(self, model: LoadedModel) -> None:
        """Refuse evidence about another model: other weights, settings, precision, attention or
        adapters."""
        difference = ModelIdentity.of(self.about).difference(ModelIdentity.of(model.identity))
        if difference is not None:
            raise ExportError(
                f"{self.where} is about another model than {model.name}: {difference}."
            )

    def choose(
        self, layer: int | None, readout: Readout | None
    ) -> tuple[int, Readout, Choice | None, list[str]]:
        """What to export: as asked, and for the rest as `layerscope.choose` chooses; with notes
        on what was passed over."""
        notes: list[str] = []
        choice = None
        if layer is None or readout is None:
            choice, notes = self._chosen(readout)
            readout = readout or (Readout.parse(choice.readout) if choice.readout else Readout())
            layer = choice.layer if layer is None else layer
        if isinstance(self.run, Evaluation):
            self._check_measured(layer, readout)
        return layer, readout, choice, notes

    def _chosen(self, readout: Readout | None) -> tuple[Choice, list[str]]:
        if self.given is not None:
            if readout is not None and self.given.readout not in (None, readout.name):
                raise ExportError(
                    f"{self.where} chose the readout {self.given.readout}, not {readout.name}. Leave out readout=."
                )
            return self.given, []
        usable = why_not if readout is None else None
        choice = select(
            self.run, readouts=None if readout is None else [readout.name], usable=usable
        )
        return choice, [
            text.replace("cannot be used", "cannot be exported") for text in choice.passed_over
        ]

    def _measured(self) -> dict[str, set[int]]:
        """The layers that were scored, by readout."""
        assert isinstance(self.run, Evaluation)
        known = self.run.scores.dropna(subset=["score"])[
            [*READOUT_COLUMNS, "layer"]
        ].drop_duplicates()
        layers_by_readout: dict[str, set[int]] = {}
        for row in known.to_dict("records"):
            layers_by_readout.setdefault(Readout.from_row(row).name, set()).add(int(row["layer"]))
        return layers_by_readout

    def _check_measured(self, layer: int, readout: Readout) -> None:
        measured = self._measured()
        if layer not in measured.get(readout.name, ()):
            raise ExportError(
                f"the run in {self.where} did not measure {readout.name} at layer {layer}. "
                f"It measured: {', '.join(sorted(measured))}."
            )

    @property
    def max_length(self) -> int | None:
        """How many tokens of a text were read."""
        if self.run is not None:
            return Reading.of(self.run.manifest).max_length
        return None if self.given is None else self.given.max_length

    @property
    def unit_length(self) -> bool | None:
        """Whether vectors were scaled to length 1; None where no vectors were scored."""
        if isinstance(self.run, Evaluation):
            return bool(self.run.manifest["conventions"].get("unit_length"))
        return None if self.given is None else self.given.unit_length

    def facts(
        self, layer: int, readout: Readout, choice: Choice | None, notes: list[str]
    ) -> dict[str, Any]:
        """What layerscope.json and the model card say."""
        manifest = self.run.manifest if self.run is not None else {}
        return {
            "run": Path(self.where).name,
            "selected": choice is not None,
            "choice": None if choice is None else choice.as_dict(),
            "scores": self.rows(layer, readout),
            "notes": notes,
            "warnings": manifest.get("warnings", []),
            "conventions": manifest.get("conventions", {}),
            "tasks": manifest.get("tasks", {}),
        }

    def rows(self, layer: int, readout: Readout) -> list[dict[str, Any]]:
        """Per task, in points (score × 100): the layer's score and what of its gain is the layer's
        and what the readout's.

        `gain` with its interval is over the last layer under the same readout, `gain_readout` is
        that last layer over the last layer under the default readout.
        """
        if not isinstance(self.run, Evaluation):
            return []
        keys = ["task", "split", "subset"]
        gains = self.run.gains.assign(readout=readout_names(self.run.gains))
        last = gains.loc[gains.groupby([*keys, "readout"])["layer"].idxmax()]
        usual = last[last["readout"] == DEFAULT_READOUT].set_index(keys)["score"]
        lasts: Any = last[last["readout"] == readout.name].set_index(keys)
        rows = []
        for one in gains[(gains["readout"] == readout.name) & (gains["layer"] == layer)].to_dict(
            "records"
        ):
            key = (one["task"], one["split"], one["subset"])
            own, default = 100 * float(lasts.at[key, "score"]), usual.get(key)
            before = None if default is None else 100 * float(default)
            rows.append(
                {
                    **dict(zip(keys, key, strict=True)),
                    "items": self.run.manifest["tasks"].get(key[0], {}).get("items"),
                    "score": 100 * float(one["score"]),
                    "last_layer": int(lasts.at[key, "layer"]),
                    "last": own,
                    **{name: 100 * float(one[name]) for name in ("gain", *INTERVAL)},
                    "default_last": before,
                    "gain_readout": None if before is None else own - before,
                }
            )
        return rows

    def center_texts(self) -> tuple[list[str], str] | None:
        """The texts whose mean a choice with labels subtracts, and what they are; None where an
        evaluation has the mean."""
        file = None if self.given is None else self.given.center_on
        if file is None or isinstance(self.run, Evaluation):
            return None
        if not Path(file).is_file():
            raise ExportError(
                f"{self.where} centers on the texts of {file}, which is not there. Say which texts to center on (center_on=FILE)."
            )
        texts = read_labels(file).texts
        return texts, f"the {len(texts)} texts of {Path(file).name}"

    def mean(
        self, model: LoadedModel, layer: int, readout: Readout, store: str | Path | None
    ) -> Head:
        """The mean over all distinct texts of the run's tasks, from the vectors in the embedding
        store."""
        if not isinstance(self.run, Evaluation):
            raise ExportError(
                f"readout {readout.name!r} subtracts a mean, and {self.where} holds no vectors to take it from: "
                "say which texts to center on (center_on=FILE)."
            )
        tasks = list(self.run.manifest["tasks"])
        if self.run.path is None:
            raise ExportError(
                "this evaluation is in memory only: give center_on=, or evaluate with a folder (out)."
            )
        digests = np.concatenate(
            [read_arrays(texts_file(self.run.path, task))["keys"] for task in tasks]
        )
        keys = [bytes(row) for row in np.unique(digests, axis=0)]
        opened = VectorStore(Path(store) if store else cache_dir() / "embeddings", None)
        conventions = self.run.manifest["conventions"]
        site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
        try:
            space = open_space(
                opened, model, get_template(readout.template), conventions["max_length"]
            )
            vectors = read_readout(space, keys, readout, site.name)
        except MissingVectorsError as error:
            raise ExportError(
                f"the vectors that {self.run.path} centered on are no longer in the store. Run the same evaluation again with "
                "another out= (it fills the store), or say which texts to center on (center_on=FILE)."
            ) from error
        return Head(
            vectors.mean(0, dtype=np.float64), None, f"the {len(keys)} texts of {', '.join(tasks)}"
        )
