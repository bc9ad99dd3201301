"""layerscope.json of an export: every fact about it, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.conventions import LAYER
from layerscope.core.runs import MARKER
from layerscope.errors import clean_name, one_line, printable
from layerscope.exporting.card import model_card
from layerscope.exporting.draft import Draft
from layerscope.exporting.servers import check_servers
from layerscope.exporting.verifying import Verification
from layerscope.exporting.words import UNKNOWN
from layerscope.models import LoadedModel, catalogue
from layerscope.store import atomic
from layerscope.version import VERSION


def describe(draft: Draft, verification: Verification) -> dict[str, Any]:
    """Return everything about an export that a reader or a program may want."""
    model, readout, route = draft.model, draft.readout, draft.route
    identity, template = model.identity, draft.template
    heads = [draft.head, *(side.head for side in reversed(draft.sides))]
    head = next((head for head in heads if head is not None), None)
    modules = json.loads((draft.folder / "modules.json").read_text(encoding="utf-8"))
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**identity, "name": clean_name(model.name), "title": _title(model)},
        "quantization": identity.get("quantization"),
        "layer": draft.layer,
        "layer_convention": LAYER,
        "readout": readout.name,
        "final_norm": "none" if model.anatomy.final_norm is None else readout.final_norm,
        "blocks": {
            "kept": route.kept,
            "filler": route.filler,
            "of": identity.get("n_blocks", model.n_blocks),
        },
        "state": route.expression,
        "template": {
            "name": template.name,
            "pattern": template.pattern,
            "joined": draft.framed.joined,
            "appended": draft.framed.appended,
            "exact_when_cut": draft.framed.exact_when_cut,
        },
        "max_length": draft.framed.max_length,
        "evaluated_max_length": draft.max_length,
        "unit_length": draft.unit,
        "centered_on": None if head is None else head.fitted_on,
        "head": None if head is None or head.matrix is None else head.matrix.shape[1],
        "sides": {
            side.name: {"template": side.template, "prompt": side.prompt} for side in draft.sides
        },
        "modules": [str(module["type"]).rsplit(".", 1)[-1] for module in modules],
        "parameters": _count_parameters(draft.folder),
        "verification": verification.as_dict(),
    }


def finish(draft: Draft, facts: dict[str, Any]) -> None:
    """Write the model card and layerscope.json."""
    formats = set(facts["formats"])  # each in a folder of its name, which is not part of the model
    facts["bytes"] = sum(
        file.stat().st_size
        for file in draft.folder.rglob("*")
        if file.is_file() and file.relative_to(draft.folder).parts[0] not in formats
    )
    facts["servers"] = check_servers(draft.folder)
    plain = atomic.plain(facts)
    atomic.write_json(draft.folder / MARKER, plain)
    atomic.write_text(draft.folder / "README.md", printable(model_card(plain)))


def _title(model: LoadedModel) -> str:
    """Return the name that a model's makers gave it."""
    entry = catalogue().get(model.name) if model.identity.get("source") == "catalogue" else None
    return entry.title if entry else clean_name(model.name)


def _count_parameters(folder: Path) -> int:
    """Return how many numbers the weights of a folder hold."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
            total += sum(int(np.prod(tensors.get_slice(name).get_shape())) for name in names)
    return total


def license_of(model: LoadedModel, source: Any) -> str:
    """Return the license that the catalogue knows, else the one in the card beside the weights or
    on the hub."""
    known = model.identity.get("license")
    if known:
        return str(known)
    if not isinstance(source, (str, Path)):
        return UNKNOWN
    card = Path(source) / "README.md"
    if card.is_file():
        return license_in(card)
    if model.identity.get("source") != "hub":
        return UNKNOWN
    from huggingface_hub import hf_hub_download

    revision = model.identity.get("revision")
    try:
        downloaded = hf_hub_download(model.name, "README.md", revision=revision)
    except Exception:  # a missing card only leaves the license unknown
        return UNKNOWN
    return license_in(Path(downloaded))


def license_in(card: Path) -> str:
    """Return the license that the head of a model card names."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        facts = metadata_load(card) or {}
    except (YAMLError, ValueError):
        return UNKNOWN
    return one_line(str(facts.get("license") or UNKNOWN))
