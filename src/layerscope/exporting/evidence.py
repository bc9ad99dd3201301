"""What a finished evaluation says about a layer: which to export, how it scored against the last, and the mean of its vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.core.readout import Readout, get_template
from layerscope.evaluation.encode import open_space, readout_vectors
from layerscope.evaluation.run import Evaluation
from layerscope.evaluation.score import texts_file
from layerscope.evaluation.tables import READOUT_COLUMNS
from layerscope.exporting.errors import ExportError
from layerscope.exporting.express import why_not
from layerscope.models import LoadedModel
from layerscope.store.embeddings import EmbeddingStore, MissingVectorsError


@dataclass(frozen=True)
class Evidence:
    """A finished evaluation, asked about the layer and readout to export."""

    run: Evaluation

    @classmethod
    def load(cls, path: str | Path) -> Evidence:
        """Read a run's folder."""
        return cls(Evaluation.load(path))

    @property
    def conventions(self) -> dict[str, Any]:
        """How the run read its texts."""
        return self.run.manifest["conventions"]

    def check(self, model: LoadedModel) -> None:
        """Refuse a run of other weights."""
        for name in ("weights_sha256", "dtype", "bidirectional"):
            there, here = self.run.manifest["model"].get(name), model.identity.get(name)
            if there != here:
                raise ExportError(
                    f"the run in {self.run.path} measured another model: {name} is {there} there, {here} for {model.name}."
                )

    def choose(self, layer: int | None, readout: Readout | None) -> tuple[int, Readout, list[str]]:
        """The best layer and readout that can be exported, by the mean score over tasks; and notes on what was passed over."""
        known = self.run.scores.dropna(subset=["score"])
        means: Any = known.groupby([*READOUT_COLUMNS, "layer"])["score"].mean()
        rows = [(Readout(*(str(part) for part in key[:-1])), int(key[-1]), float(score)) for key, score in means.items()]
        rows.sort(key=lambda row: (-row[2], row[1]))  # of equals the shallower, which is the cheaper
        fitting = [row for row in rows if (readout is None or row[0] == readout) and (layer is None or row[1] == layer)]
        if not fitting:
            measured = ", ".join(sorted({row[0].name for row in rows}))
            wanted = " and ".join(text for text in (readout and readout.name, layer is not None and f"layer {layer}") if text)
            raise ExportError(f"the run in {self.run.path} did not measure {wanted}. It measured: {measured}.")
        usable = [row for row in fitting if why_not(row[0]) is None] if readout is None else fitting
        if not usable:
            raise ExportError(f"no readout of the run in {self.run.path} can be exported: {why_not(fitting[0][0])}.")
        best, passed = usable[0], fitting[0]
        notes = []
        if best[2] < passed[2]:
            notes.append(
                f"{passed[0].name} at layer {passed[1]} scored higher ({100 * passed[2]:.2f} against {100 * best[2]:.2f}), "
                f"but cannot be exported: {why_not(passed[0])}."
            )
        return best[1], best[0], notes

    def rows(self, layer: int, readout: Readout) -> list[dict[str, Any]]:
        """Per task: the score of the layer, of the last under the same readout, the gain with its interval; × 100."""
        gains = self.run.gains
        same = gains[(gains[READOUT_COLUMNS] == pd.Series(readout.__dict__)[READOUT_COLUMNS]).all(axis=1)]
        default = gains[(gains[READOUT_COLUMNS] == pd.Series(Readout().__dict__)[READOUT_COLUMNS]).all(axis=1)]
        rows = []
        for (task, split, subset), group in same.groupby(["task", "split", "subset"], sort=False):
            here = group[group["layer"] == layer]
            if here.empty:
                continue
            one, last = here.iloc[0], group.iloc[int(group["layer"].argmax())]
            usual = default[(default["task"] == task) & (default["split"] == split) & (default["subset"] == subset)]
            top = usual.iloc[int(usual["layer"].argmax())] if len(usual) else None
            facts = self.run.manifest["tasks"].get(task, {})
            rows.append(
                {
                    "task": task,
                    "split": split,
                    "subset": subset,
                    "items": facts.get("items"),
                    "score": 100 * float(one["score"]),
                    "last_layer": int(last["layer"]),
                    "last": 100 * float(last["score"]),
                    "gain": 100 * float(one["gain"]),
                    "ci_low": 100 * float(one["ci_low"]),
                    "ci_high": 100 * float(one["ci_high"]),
                    "default_last": None if top is None else 100 * float(top["score"]),
                }
            )
        return rows

    def mean(self, model: LoadedModel, layer: int, readout: Readout, store: str | Path | None) -> tuple[np.ndarray, str]:
        """The mean over all distinct texts of the run's tasks, from the vectors in the embedding store; and what it is over."""
        tasks = list(self.run.manifest["tasks"])
        found = np.concatenate([np.load(texts_file(self.run.path, task), allow_pickle=False) for task in tasks])
        keys = [bytes(row) for row in np.unique(found, axis=0)]
        held = EmbeddingStore(Path(store) if store else cache_dir() / "embeddings", None)
        length, dtype = self.conventions["max_length"], self.conventions.get("store_dtype", "float32")
        site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
        try:
            space = open_space(held, model, get_template(readout.template), length, dtype)
            vectors = readout_vectors(space, keys, readout, site.name)
        except MissingVectorsError as error:
            raise ExportError(
                f"the vectors that {self.run.path} centred on are no longer in the store. Run the same evaluation again with "
                "another --out (it fills the store), or say which texts to centre on (--center-on FILE)."
            ) from error
        return vectors.mean(0, dtype=np.float64), f"the {len(keys)} texts of {', '.join(tasks)}"
