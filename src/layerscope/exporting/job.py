"""`export`: a layer of a model as a folder that sentence-transformers and transformers load, verified before it is published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout
from layerscope.exporting import publish
from layerscope.exporting.checking.reference import pooled_vectors
from layerscope.exporting.checking.verify import require_sentence_transformers, verify
from layerscope.exporting.draft import Draft
from layerscope.exporting.errors import ExportError
from layerscope.exporting.evidence import Evidence
from layerscope.exporting.express import check_expressible
from layerscope.exporting.folder.cutting import check_cuttable
from layerscope.exporting.folder.preparing import DEFAULT_MAX_LENGTH, prepare
from layerscope.exporting.telling.facts import describe, finish
from layerscope.exporting.telling.licence import licence_of
from layerscope.models import LoadedModel, open_model


@dataclass(frozen=True)
class Exported:
    """An exported folder; `facts` is what its layerscope.json holds."""

    path: Path
    facts: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Exported:
        """Read an exported folder's facts."""
        file = Path(path) / publish.MARKER
        facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if facts.get("kind") != "export":
            raise ExportError(f"{path} holds no export of layerscope.")
        return cls(Path(path), facts)

    @property
    def layer(self) -> int:
        """The layer that is read."""
        return int(self.facts["layer"])

    @property
    def readout(self) -> str:
        """How it is read."""
        return str(self.facts["readout"])

    @property
    def cosine_distance(self) -> float:
        """The largest cosine distance to the captured vectors."""
        return float(self.facts["verification"]["cosine_distance"])


def export(
    model: Any,
    layer: int | None = None,
    *,
    readout: str | Readout | None = None,
    out: str | Path,
    from_run: str | Path | None = None,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    center_on: str | Path | Sequence[str] | None = None,
    max_length: int | None = None,
    normalize: bool | None = None,
    onnx: bool = False,
    quantize: str | None = None,
    bench: bool = False,
    store: str | Path | None = None,
    overwrite: bool = False,
    offline: bool = False,
    model_options: dict[str, Any] | None = None,
) -> Exported:
    """Write layer `layer` of a model, read as `readout` says, as a sentence-transformers folder, and verify it.

    `from_run` is the folder of an evaluation: it gives the layer and readout where they are left out (the best measured), the
    length and scaling of texts, the mean for centering, and the evidence in the model card. `center_on` names other texts to
    centre on (a file or corpus, or texts). `texts` are verified on besides the built-in ones. `normalize` scales vectors to
    length 1 (None: as the run, or the model's own pipeline, does). `onnx` adds an ONNX graph, `quantize="int8"` a smaller one
    beside it; `bench` measures the folder against the whole model. Precision is the model's: `model_options={"dtype":
    "bfloat16"}` makes a smaller folder.
    """
    require_sentence_transformers()
    if onnx or quantize:
        from layerscope.exporting.folder.graph import check_request

        check_request(onnx, quantize)
    place = Path(out)
    publish.check_free(place, overwrite)
    wanted = _readout(readout)
    loaded = open_model(model, tokenizer, offline, model_options or {})
    evidence = None if from_run is None else Evidence.load(from_run)
    notes: list[str] = []
    chosen = None if layer is None else _layer(loaded, layer)
    selected = chosen is None or wanted is None
    if evidence is not None:
        evidence.check(loaded)
        chosen, wanted, notes = evidence.choose(chosen, wanted)
    elif chosen is None:
        raise ExportError(f"say which layer: --layer 0 to {loaded.n_blocks}, or --from-run with the folder of an evaluation.")
    plan = wanted or Readout()
    _check(loaded, plan)
    length = _length(loaded, max_length, evidence)
    unit = _unit(loaded, normalize, evidence)
    with publish.published(place) as folder:
        draft = prepare(
            loaded, chosen, plan, folder, texts=texts, max_length=length, extend=max_length is None, unit=unit,
            centre=lambda ids_of: _mean(loaded, chosen, plan, evidence, center_on, store, offline, ids_of),
        )  # fmt: skip
        facts = {
            **describe(draft, verify([draft])[0]),
            "licence": licence_of(loaded, model, offline),
            "evidence": None if evidence is None else _evidence(evidence, draft, selected, notes),
        }
        if onnx:
            from layerscope.exporting.folder.graph import write_graphs

            facts["onnx"] = write_graphs(draft, quantize)
        if bench:
            from layerscope.exporting.measuring.bench import bench_facts

            facts["bench"] = bench_facts(folder, model, offline)
        finish(draft, facts)
    return Exported(place, json.loads((place / publish.MARKER).read_text(encoding="utf-8")))


def _readout(given: str | Readout | None) -> Readout | None:
    if given is None:
        return None
    readout = given.check() if isinstance(given, Readout) else Readout.parse(given)
    check_expressible(readout)
    return readout


def _layer(model: LoadedModel, layer: int) -> int:
    chosen = layer if layer >= 0 else model.n_blocks + 1 + layer
    if not 0 <= chosen <= model.n_blocks:
        raise ExportError(f"layer {layer} does not exist: {model.name} has layers 0 to {model.n_blocks} (or -1 for the last).")
    return chosen


def _check(model: LoadedModel, readout: Readout) -> None:
    check_expressible(readout)
    check_cuttable(model)
    if readout.pooling == "cls" and not (model.identity["bidirectional"] and model.tokenizer.cls_token_id is not None):
        raise ExportError(
            f"readout {readout.name!r}: {model.name} has no CLS token. The nearest: --readout {readout.template}/last/…"
        )


def _length(model: LoadedModel, asked: int | None, evidence: Evidence | None) -> int:
    length = asked or (int(evidence.conventions["max_length"]) if evidence else DEFAULT_MAX_LENGTH)
    if length < 1:
        raise ExportError(f"max_length must be at least 1, not {length}.")
    return length if model.max_length is None else min(length, model.max_length)


def _unit(model: LoadedModel, asked: bool | None, evidence: Evidence | None) -> bool:
    if asked is not None:
        return asked
    return bool(evidence.conventions["unit_length"] if evidence else model.identity.get("normalizes"))


def _mean(
    model: LoadedModel,
    layer: int,
    readout: Readout,
    evidence: Evidence | None,
    center_on: str | Path | Sequence[str] | None,
    store: str | Path | None,
    offline: bool,
    ids_of: Any,
) -> tuple[np.ndarray, str]:
    """The mean to subtract, and over what."""
    if center_on is not None:
        from layerscope.data import load_corpus

        corpus = load_corpus(center_on, offline=offline)
        vectors = pooled_vectors(model, ids_of(list(corpus.texts)), layer, readout)
        return vectors.mean(0, dtype=np.float64), f"the {len(corpus)} texts of {corpus.name}"
    if evidence is not None:
        return evidence.mean(model, layer, readout, store)
    uncentered = replace(readout, centering="none").name
    raise ExportError(
        f"readout {readout.name!r} subtracts a mean: say over which texts (--center-on FILE or corpus), or give the evaluation "
        f"that used it (--from-run). Without centering: --readout {uncentered}"
    )


def _evidence(evidence: Evidence, draft: Draft, selected: bool, notes: list[str]) -> dict[str, Any]:
    run = evidence.run
    return {
        "run": run.path.name,
        "selected": selected,
        "scores": evidence.rows(draft.layer, draft.readout),
        "notes": notes,
        "warnings": run.manifest["warnings"],
        "conventions": run.manifest["conventions"],
        "tasks": run.manifest["tasks"],
    }
