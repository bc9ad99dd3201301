"""What is told of an export: layerscope.json for programs, README.md for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.exporting import publish
from layerscope.exporting.checking.verify import Verification
from layerscope.exporting.draft import Draft
from layerscope.exporting.telling.card import model_card
from layerscope.models import LoadedModel, catalogue
from layerscope.store import atomic
from layerscope.version import VERSION


def describe(draft: Draft, verification: Verification) -> dict[str, Any]:
    """Everything about an export that a reader or a program may want."""
    model, readout, route = draft.model, draft.readout, draft.route
    template = draft.template
    has_norm = model.anatomy.final_norm is not None
    identity = model.identity
    modules = json.loads((draft.folder / "modules.json").read_text(encoding="utf-8"))
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**identity, "name": model.name, "title": _title(model)},
        "quantisation": identity.get("quantisation"),
        "layer": draft.layer,
        "layer_convention": "layer k is the state after k blocks; layer 0 is the input of the first block",
        "readout": readout.name,
        "final_norm": readout.final_norm if has_norm else "none",
        "blocks": {"kept": route.kept, "filler": route.filler, "of": model.n_blocks},
        "state": route.said,
        "template": {
            "name": template.name,
            "pattern": template.pattern,
            "joined": draft.baked.joined,
            "appended": draft.baked.appended,
            "exact_when_cut": draft.baked.exact_when_cut,
        },
        "max_length": draft.baked.max_length,
        "evaluated_max_length": draft.max_length,
        "unit_length": draft.unit,
        "centred_on": draft.centred_on,
        "modules": [str(module["type"]).rsplit(".", 1)[-1] for module in modules],
        "parameters": _parameters(draft.folder),
        "verification": verification.as_dict(),
    }


def finish(draft: Draft, facts: dict[str, Any]) -> None:
    """Write the model card and layerscope.json."""
    facts["bytes"] = sum(file.stat().st_size for file in draft.folder.rglob("*") if file.is_file() and file.suffix != ".onnx")
    plain = atomic.plain(facts)
    atomic.write_json(draft.folder / publish.MARKER, plain)
    atomic.write_text(draft.folder / "README.md", model_card(plain))


def _title(model: LoadedModel) -> str:
    """What the model is called by those who made it."""
    known = catalogue().get(model.name) if model.identity.get("source") == "catalogue" else None
    return known.title if known else model.name


def _parameters(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as held:
            total += sum(int(np.prod(held.get_slice(name).get_shape())) for name in held.keys())  # noqa: SIM118 - not a dict
    return total
