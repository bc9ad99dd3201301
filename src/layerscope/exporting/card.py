"""The facts of an export: layerscope.json for programs, the model card (text in card.md) and the
lines of the terminal for people."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.identity import LAYER
from layerscope.core.options import describe_size
from layerscope.core.runs import MARKER
from layerscope.core.statistics import Interval
from layerscope.errors import clean_name, one_line, printable
from layerscope.exporting.draft import Draft
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import SERVERS, check_servers, opening_words
from layerscope.models import LoadedModel, catalogue
from layerscope.store import atomic
from layerscope.terminal import Console
from layerscope.version import VERSION

UNKNOWN = "unknown: check the base model's"
_TEMPLATE = Path(__file__).with_name("card.md")


def describe(draft: Draft) -> dict[str, Any]:
    """Return the facts about an export that are known once it is written."""
    model = draft.model
    framed = draft.framed
    identity = model.identity
    heads = [draft.head, *(side.head for side in reversed(draft.sides))]
    head = next((head for head in heads if head is not None), None)
    name = clean_name(model.name)
    entry = catalogue().get(model.name) if identity.get("source") == "catalogue" else None
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**identity, "name": name, "title": entry.title if entry else name},
        "layer": draft.layer,
        "layer_convention": LAYER,
        "readout": draft.readout.name,
        "blocks": {
            "kept": draft.layer,
            "filler": draft.route.filler,
            "of": identity.get("n_blocks", model.n_blocks),
        },
        "state": draft.route.expression,
        "template": {
            "pattern": draft.template.pattern,
            "joined": framed.joined,
            "exact_when_cut": framed.exact_when_cut,
        },
        "max_length": framed.max_length,
        "evaluated_max_length": draft.max_length,
        "unit_length": draft.unit,
        "centered_on": None if head is None else head.fitted_on,
        "head": None if head is None or head.matrix is None else head.matrix.shape[1],
        "prompts": {side.name: side.prompt for side in draft.sides},
        "parameters": _count_parameters(draft.folder),
        "license": draft.license,
        "evidence": draft.evidence,
        "why": draft.reason,
    }


def _count_parameters(folder: Path) -> int:
    """Return how many numbers the weights of a folder hold."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
            shapes = [tensors.get_slice(name).get_shape() for name in names]
        total += sum(math.prod(shape) for shape in shapes)
    return total


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


def license_of(model: LoadedModel, source: Any) -> str:
    """Return the license that the catalogue knows, else the one in the model's own card."""
    from huggingface_hub import ModelCard

    if model.identity.get("license"):
        return str(model.identity["license"])
    if not isinstance(source, str | Path):
        return UNKNOWN
    card = Path(source) / "README.md" if Path(source).is_dir() else source
    try:
        return one_line(str(ModelCard.load(card).data.get("license") or UNKNOWN))
    except Exception:  # a card that is missing or cannot be read leaves the license unknown
        return UNKNOWN


def model_card(facts: Mapping[str, Any]) -> str:
    """Return the text of README.md, with the metadata that the hub reads at its head.

    The hub shows the scores in it and links the base model.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    evidence = facts["evidence"] or {"scores": [], "choice": None}
    title = facts["base"]["title"]
    license_name = "unknown" if facts["license"] == UNKNOWN else str(facts["license"])
    results = [
        EvalResult(
            task_type="sentence-similarity",
            dataset_type=row["task"],
            dataset_name=row["task"],
            dataset_config=row["subset"],
            dataset_split=row["split"],
            metric_type="main_score",
            metric_value=round(row["score"], 2),
        )
        for row in evidence["scores"]
    ]
    data = ModelCardData(
        license=license_name if " " in license_name else license_name.lower(),
        base_model=title,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "layerscope"],
        model_name=f"{title} at layer {facts['layer']}" if results else None,
        eval_results=results or None,
    )
    versions = facts["verification"]["versions"]
    values = {
        **facts,
        "blocks": block_words(facts["blocks"]),
        "size": size_words(facts),
        "speed": speed_words(facts),
        "gain": _gain,
        "choice": evidence["choice"] and Choice.from_json(evidence["choice"]),
        "sections": [FORMATS.get(name).card(entry) for name, entry in facts["formats"].items()],
        "opens_in": opening_words(facts["servers"]),
        "titles": {name: server.title for name, server in SERVERS.items()},
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    card = ModelCard.from_template(data, template_path=str(_TEMPLATE), **values)
    return re.sub(r"\n{3,}", "\n\n", str(card)).strip() + "\n"


def _gain(row: Mapping[str, Any]) -> str:
    gain = Interval.from_row(row, "gain")
    return str(gain) if gain.known else f"{gain.value:+.2f}"


def block_words(blocks: Mapping[str, Any]) -> str:
    """Return the number of a model's blocks in the export.

    >>> block_words({"kept": 26, "filler": True, "of": 30})
    '26 of 30 blocks, plus one pass-through block'
    """
    filler = ", plus one pass-through block" if blocks["filler"] else ""
    return f"{blocks['kept']} of {blocks['of']} blocks{filler}"


def size_words(facts: Mapping[str, Any]) -> str:
    """Return the size of an export beside its model's."""
    size = facts["parameters"] / 1e6
    whole = facts["base"]["parameters"] / 1e6
    return f"{size:.1f} M parameters of {whole:.1f} M, {describe_size(facts['bytes'])}"


def speed_words(facts: Mapping[str, Any]) -> str:
    """Return the speed of an export beside its model's."""
    speeds = facts["verification"]["texts_per_second"]
    return (
        f"{speeds['export']:.0f} texts per second instead of {speeds['original']:.0f} "
        "(short texts, on the machine of the export)"
    )


def print_export(facts: Mapping[str, Any]) -> None:
    """Print the layer and readout, the size and speed, and the result of the verification."""
    verification = facts["verification"]
    lines = [
        f"{facts['base']['name']} at layer {facts['layer']} of {facts['base']['n_blocks']}, read "
        f"as {facts['readout']}",
        f"{block_words(facts['blocks'])} · {size_words(facts)} · texts cut to "
        f"{facts['max_length']} tokens",
        speed_words(facts),
        f"verified in a fresh process: cosine distance ≤ {verification['cosine_distance']:.1e} on "
        f"{verification['texts']} texts ({verification['cut_texts']} cut)",
        f"opens in {opening_words(facts['servers'])}",
    ]
    for name, entry in facts["formats"].items():
        lines += FORMATS.get(name).lines(entry)
    console = Console(highlight=False)
    for line in lines:
        console.print(line, markup=False)
