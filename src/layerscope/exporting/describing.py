"""layerscope.json of an export: its facts, for programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from layerscope.core.conventions import LAYER
from layerscope.core.files import read_json
from layerscope.core.runs import MARKER
from layerscope.errors import ExportError, clean_name, one_line, printable
from layerscope.exporting.card import UNKNOWN, model_card
from layerscope.exporting.draft import Draft
from layerscope.exporting.servers import check_servers
from layerscope.models import LoadedModel, catalogue
from layerscope.store import atomic
from layerscope.version import VERSION


def describe(draft: Draft) -> dict[str, Any]:
    """Return the facts about an export that are known once it is written."""
    model = draft.model
    readout = draft.readout
    framed = draft.framed
    identity = model.identity
    heads = [draft.head, *(side.head for side in reversed(draft.sides))]
    head = next((head for head in heads if head is not None), None)
    modules = read_json(draft.folder / "modules.json", expect=list, error=ExportError)
    has_norm = model.anatomy.final_norm is not None
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**identity, "name": clean_name(model.name), "title": _title(model)},
        "quantization": identity.get("quantization"),
        "layer": draft.layer,
        "layer_convention": LAYER,
        "readout": readout.name,
        "final_norm": readout.final_norm if has_norm else "none",
        "blocks": {
            "kept": draft.layer,
            "filler": draft.route.filler,
            "of": identity.get("n_blocks", model.n_blocks),
        },
        "state": draft.route.expression,
        "template": {
            "name": draft.template.name,
            "pattern": draft.template.pattern,
            "joined": framed.joined,
            "appended": framed.appended,
            "exact_when_cut": framed.exact_when_cut,
        },
        "max_length": framed.max_length,
        "evaluated_max_length": draft.max_length,
        "unit_length": draft.unit,
        "centered_on": None if head is None else head.fitted_on,
        "head": None if head is None or head.matrix is None else head.matrix.shape[1],
        "sides": {
            side.name: {"template": side.template, "prompt": side.prompt} for side in draft.sides
        },
        "modules": [str(module["type"]).rsplit(".", 1)[-1] for module in modules],
        "parameters": _count_parameters(draft.folder),
    }


def write_record(folder: Path, facts: dict[str, Any]) -> None:
    """Write the model card and layerscope.json."""
    size = 0
    for file in folder.rglob("*"):
        # Each format is in a folder of its name, which is not part of the model.
        is_format = file.relative_to(folder).parts[0] in facts["formats"]
        if file.is_file() and not is_format:
            size += file.stat().st_size
    record = atomic.plain({**facts, "bytes": size, "servers": check_servers(folder)})
    atomic.write_json(folder / MARKER, record)
    atomic.write_text(folder / "README.md", printable(model_card(record)))


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
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        total += sum(math.prod(shape) for shape in shapes)
    return total


def license_of(model: LoadedModel, source: Any) -> str:
    """Return the license that the catalogue knows, else the one in the model's own card."""
    from huggingface_hub import hf_hub_download, metadata_load

    if model.identity.get("license"):
        return str(model.identity["license"])
    card = Path(source) / "README.md" if isinstance(source, str | Path) else None
    try:
        if card is not None and not card.is_file() and model.identity.get("source") == "hub":
            revision = model.identity["revision"]
            card = Path(hf_hub_download(model.name, "README.md", revision=revision))
        facts = None if card is None else metadata_load(card)
    except Exception:  # a card that is missing or cannot be read leaves the license unknown
        return UNKNOWN
    return one_line(str((facts or {}).get("license") or UNKNOWN))
