"""The words about an export: the model card (text in card.md) and the lines of the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.formatting import describe_size
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.statistics import Interval
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import opening_section, opening_words
from layerscope.terminal import Console

UNKNOWN = "unknown: check the base model's"
_TEMPLATE = Path(__file__).with_name("card.md")


def model_card(facts: Mapping[str, Any]) -> str:
    """Return the text of README.md, with the metadata that the hub reads at its head."""
    from huggingface_hub import ModelCard

    evidence = facts["evidence"]
    choice = evidence and evidence["choice"]
    versions = facts["verification"]["versions"]
    values = {
        **facts,
        "blocks": block_words(facts["blocks"]),
        "size": size_words(facts),
        "bytes": describe_size(facts["bytes"]),
        "default_readout": DEFAULT_READOUT,
        "gain": _gain,
        "choice": choice and Choice.from_json(choice),
        "sections": [FORMATS.get(name).card(entry) for name, entry in facts["formats"].items()],
        "opening": opening_section(facts["servers"]),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "speed": speed_words(facts),
    }
    card = ModelCard.from_template(_metadata(facts), template_path=str(_TEMPLATE), **values)
    return re.sub(r"\n{3,}", "\n\n", str(card)).strip() + "\n"


def _metadata(facts: Mapping[str, Any]) -> Any:
    """Return the metadata of the card: the hub shows its scores and links its base model."""
    from huggingface_hub import EvalResult, ModelCardData

    license_name = "unknown" if facts["license"] == UNKNOWN else str(facts["license"])
    title = facts["base"]["title"]
    evidence = facts["evidence"] or {"scores": []}
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
    return ModelCardData(
        license=license_name if " " in license_name else license_name.lower(),
        base_model=title,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "layerscope"],
        model_name=f"{title} at layer {facts['layer']}" if results else None,
        eval_results=results or None,
    )


def _gain(row: Mapping[str, Any]) -> str:
    gain = Interval.from_row(row, "gain")
    return str(gain) if gain.known else f"{gain.value:+.2f}"


def size_words(facts: Mapping[str, Any]) -> str:
    """Return the size of an export beside its model, and the reason if it is not smaller."""
    size = facts["parameters"] / 1e6
    whole = facts["base"]["parameters"] / 1e6
    if size < whole:
        return f"{size:.1f} M parameters instead of {whole:.1f} M"
    reason = "every block is needed"
    if facts["blocks"]["filler"]:
        reason = "a block of zeros takes the place of the next one"
    return f"{size:.1f} M parameters, no fewer than the whole model ({reason})"


def block_words(blocks: Mapping[str, Any]) -> str:
    """Return the number of a model's blocks in the export.

    >>> block_words({"kept": 26, "filler": True, "of": 30})
    '26 of 30 blocks, plus one pass-through block'
    """
    filler = ", plus one pass-through block" if blocks["filler"] else ""
    return f"{blocks['kept']} of {blocks['of']} blocks{filler}"


def speed_words(facts: Mapping[str, Any]) -> str:
    """Return the speed of an export beside its model's."""
    speeds = facts["verification"]["texts_per_second"]
    return (
        f"{speeds['export']:.0f} texts per second instead of {speeds['original']:.0f} "
        "(short texts, on the machine of the export)"
    )


def print_export(facts: Mapping[str, Any]) -> None:
    """Print the layer and readout, the size and speed, and the result of the verification."""
    console = Console(highlight=False)
    base = facts["base"]
    verification = facts["verification"]
    console.print(
        f"[bold]{base['name']}[/] at layer {facts['layer']} of {base['n_blocks']}, read as "
        f"{facts['readout']}"
    )
    console.print(
        f"{block_words(facts['blocks'])} · {size_words(facts)} · {describe_size(facts['bytes'])} · "
        f"texts cut to {facts['max_length']} tokens"
    )
    for name, entry in facts["formats"].items():
        for line in FORMATS.get(name).lines(entry):
            console.print(line, markup=False)
    console.print(
        f"[green]verified[/] in a fresh process: cosine distance ≤ "
        f"{verification['cosine_distance']:.1e} on {verification['texts']} texts "
        f"({verification['cut_texts']} cut), AutoModel's states within "
        f"{verification['state_error']:.1e}"
    )
    console.print(speed_words(facts), markup=False)
    console.print(f"opens in {opening_words(facts['servers'])}", markup=False)
    notes = list((facts["evidence"] or {}).get("notes", []))
    if facts["max_length"] > facts["evaluated_max_length"]:
        notes.append(
            f"Texts too long for the {facts['evaluated_max_length']} tokens of an evaluation are "
            f"read up to {facts['max_length']} tokens here."
        )
    for note in notes:
        console.print(f"[yellow]note[/] {note}")
