"""Sentences about an export, for its model card and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerscope.core.formatting import describe_size
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import opening_words
from layerscope.terminal import Console

UNKNOWN = "unknown: check the base model's"
UNMEASURED = (
    "No scores were given when this folder was made: how good this layer is was not measured here."
)


def size_words(facts: Mapping[str, Any]) -> str:
    """Return how large an export is beside its model, and the reason if it is not smaller."""
    own = facts["parameters"] / 1e6
    whole = facts["base"]["parameters"] / 1e6
    if own < whole:
        return f"{own:.1f} M parameters instead of {whole:.1f} M"
    reason = "every block is needed"
    if facts["blocks"]["filler"]:
        reason = "a block of zeros takes the place of the next one"
    return f"{own:.1f} M parameters, no fewer than the whole model ({reason})"


def block_words(blocks: Mapping[str, Any]) -> str:
    """Return how many of a model's blocks the export has.

    >>> block_words({"kept": 26, "filler": True, "of": 30})
    '26 of 30 blocks, plus one pass-through block'
    """
    filler = ", plus one pass-through block" if blocks["filler"] else ""
    return f"{blocks['kept']} of {blocks['of']} blocks{filler}"


def cut_words(facts: Mapping[str, Any]) -> str:
    """Return how texts that an evaluation cuts are read differently here; nothing if they are
    not."""
    verification = facts["verification"]
    evaluated, length = facts["evaluated_max_length"], facts["max_length"]
    distance = verification["cut_distance"]
    if distance is None or distance <= verification["tolerance"]:
        return ""
    how = "lose a token of the template"
    if length > evaluated:
        how = f"are read up to {length} tokens"
    return f"Texts too long for the {evaluated} tokens of an evaluation {how} here."


def print_export(facts: Mapping[str, Any]) -> None:
    """Print where the model was cut, what it scored, and how it was checked."""
    console = Console(highlight=False)
    base, checked = facts["base"], facts["verification"]
    console.print(
        f"[bold]{base['name']}[/] at layer {facts['layer']} of {base['n_blocks']}, read as "
        f"{facts['readout']}"
    )
    console.print(
        f"{block_words(facts['blocks'])} · {size_words(facts)} · {describe_size(facts['bytes'])} · "
        f"texts cut to {facts['max_length']} tokens"
    )
    for name, written in facts.get("formats", {}).items():
        for line in FORMATS.get(name).lines(written):
            console.print(line, markup=False)
    console.print(
        f"[green]verified[/] in a fresh process: cosine distance ≤ "
        f"{checked['cosine_distance']:.1e} on {checked['texts']} texts ({checked['cut_texts']} "
        f"cut), AutoModel's states within {checked['state_error']:.1e}"
    )
    console.print(f"opens in {opening_words(facts['servers'])}", markup=False)
    notes = (facts.get("evidence") or {}).get("notes", [])
    for note in filter(None, [cut_words(facts), *notes]):
        console.print(f"[yellow]note[/] {note}")
