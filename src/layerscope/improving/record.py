"""What an improvement says about itself: what was asked for, what the choice rests on, the choice
and the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.conventions import LAYER, Reading
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout
from layerscope.improving.fitting import Fitted
from layerscope.improving.judging import Panel
from layerscope.improving.sample import Reader, Sample
from layerscope.models import LoadedModel
from layerscope.selection.choice import Choice
from layerscope.store import RunFolder
from layerscope.store.folder import config_key, is_complete
from layerscope.version import VERSION


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    templates: Sequence[str]
    budget: float | None
    seed: int
    sample: int
    judge: str | None
    labels: str | Path | None
    max_length: int
    center_on: str = "auto"
    time: float | None = None
    """Minutes for reading further texts, where that was said."""
    train: bool | Mapping[str, Any] = False
    """Whether the blocks are trained, and with which settings."""
    texts: bool = True  # whether the folder may hold any
    search: str | None = None
    """Which queries and pairs, where there are some: a fingerprint."""
    servers: Sequence[str] = ()
    """The programs that have to open the folder."""

    @property
    def trains(self) -> bool:
        """Whether the blocks are trained."""
        return self.train is not False

    def config(self, model: LoadedModel, sample: Sample) -> dict[str, Any]:
        """What tells this run from others."""
        labels = (
            None
            if self.labels is None
            else hashlib.sha256(Path(self.labels).read_bytes()).hexdigest()
        )
        texts = {"fingerprint": sample.facts["fingerprint"], "kept": self.texts}
        return {
            **asdict(self),
            "model": model_key(model.identity),
            "texts": texts,
            "labels": labels,
            "layerscope": VERSION,
        }


def is_finished(out: Path, config: dict[str, Any]) -> bool:
    """Return whether `out` holds this very run, finished."""
    manifest = RunFolder(out).manifest() if out.is_dir() else None
    return (
        manifest is not None
        and is_complete(manifest)
        and config_key(manifest.get("config") or {}) == config_key(config)
    )


def evidence_of(panel: Panel, choice: Choice) -> dict[str, Any]:
    """What the judge says of the choice and of what the user has today, and what the choice
    costs."""
    return {
        "judge": panel.name,
        "score_name": panel.score_name,
        "before": choice.before,
        "after": choice.after,
        **choice.extra,
        "today": f"layer {choice.layers} under {Readout().name}",
        "cost": f"{choice.extra['relative_cost']:.2f} × today's computation",
    }


def as_evidence(trained: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a student instead of the head that it began with: all on texts that nothing
    was fitted on."""
    return {
        "score_name": "agreement with the teacher", "before": trained["today"], "after": trained["student"],
        "interval": trained["over_today"], "found": None,
    }  # fmt: skip


def told(
    choice: Choice,
    model: LoadedModel,
    reader: Reader,
    evidence: dict[str, Any],
    notes: Sequence[str],
) -> Choice:
    """The choice with its reason in words, and what an export needs."""
    if evidence["kept_default"]:
        reason = f"{choice.reason or 'it is already the best that was found'}. Last layer, {Readout().name}."
    elif evidence.get("trained"):
        reason = f"Trained, taught by {evidence['teacher']}: {evidence['trained']['words']}."
    else:
        near = (
            f" It is the cheapest of {evidence['near']} that score practically the same."
            if evidence["near"] > 1
            else ""
        )
        score = "" if evidence["score_name"] == evidence["judge"] else f"{evidence['score_name']} "
        both = (
            f" Queries and documents are read as {evidence['search']['readout']}."
            if "search" in evidence
            else ""
        )
        reason = (
            f"Chosen from {evidence['candidates']} layers and readouts by {evidence['judge']}: {score}"
            f"{evidence['before']:.3f} → {evidence['after']:.3f} (readout {evidence['readout_gain']:+.3f}, layer "
            f"{evidence['layer_gain']:+.3f}).{near}{both}"
        )
    return replace(
        choice, model=model.name, reason=reason, warnings=tuple(notes), metric=evidence["score_name"], identity=model.identity,
        max_length=reader.max_length, unit_length=True, extra={},
    )  # fmt: skip


def left_alone(
    model: LoadedModel, readout: Readout, why: str = ""
) -> tuple[dict[str, Any], Choice]:
    """Evidence and choice where no judge is asked: an encoder keeps its readout, any model if
    `why`."""
    blocks, identity = model.n_blocks, model.identity
    evidence = {
        "judge": "none was asked", "score_name": "", "candidates": 0, "tied": 1, "kept_default": True,
        "today": f"layer {blocks} under {readout.name}", "changed_neighbors": 0.0,
    }  # fmt: skip
    reason = why or "it comes with a pipeline for sentence embeddings, which stays."
    if identity.get("untrained"):
        reason = why or (
            "its weights are as before any training, whatever its folder says: no reading of it means anything."
        )
    elif identity.get("exported"):
        reason = why or (
            f"it is an export of layerscope already ({identity['exported']}). Improve the model that it was cut from."
        )
    choice = Choice(
        blocks,
        readout.name,
        tied=(blocks,),
        rule="improve",
        layers=blocks,
        model=model.name,
        reason=reason,
        abstained=True,
    )
    return evidence, choice


def manifest_of(
    config: dict[str, Any], model: LoadedModel, reader: Reader, sample: Sample, settings: Settings, evidence: dict[str, Any],
    choice: Choice, fitted: Fitted | None,
) -> dict[str, Any]:  # fmt: skip
    """The manifest of a finished run."""
    on = (
        None
        if fitted is None
        else {"texts": fitted.texts, "of": fitted.total, "asked": settings.center_on}
    )
    return {
        "kind": "improve",
        "key": config_key(config),
        "config": config,
        "layerscope": VERSION,
        "status": "complete",
        "model": model.identity,
        "texts": {**sample.facts, "sampled": len(sample.texts), "centered_on": on},
        "judge": settings.judge,
        "evidence": evidence,
        "choice": choice.as_dict(),
        "conventions": {
            "layer": LAYER,
            "centering": "none"
            if fitted is None or evidence.get("trained")
            else f"the mean over {fitted.head.fitted_on} is subtracted",
            **Reading(
                None, reader.max_length, model.anatomy.final_norm_name
            ).as_conventions(),  # the readout names the norm
            "seed": settings.seed,
        },
        "warnings": choice.warnings,
    }
