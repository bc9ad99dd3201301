"""What is written and printed about an export: layerscope.json for programs, README.md for people,
and the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.conventions import LAYER
from layerscope.core.formatting import describe_size
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.runs import MARKER
from layerscope.core.statistics import Interval
from layerscope.errors import clean_name, one_line, printable
from layerscope.exporting.draft import Draft
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import check_servers, opening_section, opening_words
from layerscope.exporting.verifying import Verification
from layerscope.models import LoadedModel, catalogue
from layerscope.selection import Choice
from layerscope.store import atomic
from layerscope.terminal import Console
from layerscope.version import VERSION


def describe(draft: Draft, verification: Verification) -> dict[str, Any]:
    """Everything about an export that a reader or a program may want."""
    model, readout, route = draft.model, draft.readout, draft.route
    template = draft.template
    has_norm = model.anatomy.final_norm is not None
    identity = model.identity
    head = draft.head or next((side.head for side in reversed(draft.sides)), None)
    modules = json.loads((draft.folder / "modules.json").read_text(encoding="utf-8"))
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**identity, "name": clean_name(model.name), "title": title_of(model)},
        "quantization": identity.get("quantization"),
        "layer": draft.layer,
        "layer_convention": LAYER,
        "readout": readout.name,
        "final_norm": readout.final_norm if has_norm else "none",
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
        "parameters": parameters_of(draft.folder),
        "verification": verification.as_dict(),
    }


def finish(draft: Draft, facts: dict[str, Any]) -> None:
    """Write the model card and layerscope.json."""
    extra = set(
        facts.get("formats", {})
    )  # each in a folder of its name, which is not part of the model
    files = [file for file in draft.folder.rglob("*") if file.is_file()]
    facts["bytes"] = sum(
        file.stat().st_size
        for file in files
        if file.relative_to(draft.folder).parts[0] not in extra
    )
    facts["servers"] = check_servers(draft.folder)
    plain = atomic.plain(facts)
    atomic.write_json(draft.folder / MARKER, plain)
    atomic.write_text(draft.folder / "README.md", printable(model_card(plain)))


def title_of(model: LoadedModel) -> str:
    """What the model is called by those who made it."""
    known = catalogue().get(model.name) if model.identity.get("source") == "catalogue" else None
    return known.title if known else clean_name(model.name)


def parameters_of(folder: Path) -> int:
    """How many numbers the weights of a folder hold."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            total += sum(
                int(np.prod(tensors.get_slice(name).get_shape()))
                for name in tensors.keys()  # noqa: SIM118
            )
    return total


def model_card(facts: Mapping[str, Any]) -> str:
    """README.md from what layerscope.json holds."""
    base = facts["base"]
    weights = (base.get("trained") or {}).get("base") or base["weights_sha256"]
    parts = [
        front_lines(facts),
        *_title(facts),
        *_use(facts),
        "## Evidence",
        *_evidence(facts),
        *(FORMATS.get(name).card(written) for name, written in facts.get("formats", {}).items()),
        "## Where it opens",
        *opening_section(facts["servers"]),
        "## Verified",
        *_verified(facts["verification"]),
        _cut_words(facts),
        f"Weights of the base: sha256 `{weights}`. Every convention is in `layerscope.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_lines(facts: Mapping[str, Any]) -> str:
    """The lines at the head of a model card that the hub reads."""
    from huggingface_hub import ModelCardData

    name = "unknown" if facts["license"] == UNKNOWN else str(facts["license"])
    data = ModelCardData(
        license=name if " " in name else name.lower(),
        base_model=facts["base"]["title"],
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "layerscope"],
    )
    return f"---\n{data.to_yaml(line_break=None)}\n---"


def _title(facts: Mapping[str, Any]) -> list[str]:
    base, layer = facts["base"], facts["layer"]
    lines = [
        f"# {base['title']} at layer {layer}",
        f"Sentence embeddings from layer {layer} of {base['n_blocks']} of **{base['title']}** ({base['architecture']}), "
        f"read as `{facts['readout']}`: {_blocks(facts['blocks'])}. {size_in_words(facts)}, {describe_size(facts['bytes'])}.",
        f"License of the base model: {facts['license']}.",
    ]
    if facts["head"]:
        fitted = (
            "trained with the blocks"
            if base.get("trained")
            else f"fitted on {facts['centered_on']}"
        )
        lines.append(f"A linear map to {facts['head']} numbers is applied ({fitted}).")
    elif facts["centered_on"]:
        lines.append(f"The mean over {facts['centered_on']} is subtracted.")
    if base.get("trained"):
        trained = base["trained"]
        lines.append(
            f"The blocks were trained on {trained['texts']:,} texts ({trained['steps']:,} steps)."
        )
    if base.get("quantization"):
        lines.append(f"Its weights were quantized ({base['quantization']}) in their source.")
    return lines


def size_in_words(facts: Mapping[str, Any]) -> str:
    """How large an export is beside the model that it was cut from; if it is not smaller, why
    not."""
    own, whole = facts["parameters"] / 1e6, facts["base"]["parameters"] / 1e6
    if own < whole:
        return f"{own:.1f} M parameters instead of {whole:.1f} M"
    why = "every block is needed"
    if facts["blocks"]["filler"]:
        why = "a block of zeros takes the place of the next one"
    return f"{own:.1f} M parameters, no fewer than the whole model ({why})"


def _use(facts: Mapping[str, Any]) -> list[str]:
    template, sides = facts["template"], facts.get("sides")
    call = 'vectors = model.encode(["A text.", "Another text."])'
    lines = []
    if sides:
        call = 'documents, query = model.encode_document(["A text.", "Another text."]), model.encode_query("A question?")'
        prompts = ", ".join(
            f"{name}: `{' '.join(side['prompt'].split())}`" for name, side in sides.items()
        )
        each = " and its own head or mean" if facts["centered_on"] else ""
        lines.append(
            f"Queries and documents are read differently: each side has a prompt ({prompts}){each}. "
            "Plain `encode` is for documents."
        )
    elif template["pattern"] != "{text}":
        lines.append(
            f"The tokenizer itself puts every text into `{template['pattern']}`: give plain texts. An empty text, or one that "
            "spells a special token of the tokenizer, is not framed as others are."
        )
        if not template["exact_when_cut"]:
            lines.append(
                f"A text too long for {facts['max_length']} tokens loses `{template['joined']}`, the part of the template that "
                "joins its end; the rest of the template is never cut."
            )
    state = f"Texts are cut to {facts['max_length']} tokens. With plain transformers: `AutoModel`, `{facts['state']}`."
    if facts["state"] != "last_hidden_state":
        state += (
            " sentence-transformers reads that state through `modality_config` (tested with 6.2)."
        )
    code = [
        "```python",
        "from sentence_transformers import SentenceTransformer\n",
        'model = SentenceTransformer("path/to/this/folder")',
        call,
        "```",
    ]
    return ["## Use", "\n".join(code), *lines, state]


def _evidence(facts: Mapping[str, Any]) -> list[str]:
    evidence = facts.get("evidence")
    if not evidence:
        return [facts.get("why") or _UNMEASURED]
    choice, rows = evidence["choice"], evidence["scores"]
    lines = [_scores(facts["layer"], rows) if rows else _UNMEASURED]
    if choice is not None:
        lines.append(
            f"Chosen by layerscope (rule `{choice['rule']}`): {Choice.from_json(choice).headline()} {choice['reason']}"
        )
        if rows:
            lines.append(
                "The choice was made on these very tasks, so the scores above are on the high side."
            )
    return [*lines, *evidence["notes"]]


_UNMEASURED = (
    "No scores were given when this folder was made: how good this layer is was not measured here."
)


def _scores(layer: int, rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per task. What the layer gains and what the readout gains are separate columns."""
    head = ["task", "items", f"layer {layer}", "last layer, same readout", "gain of the layer (95 %)",
            f"last layer, {DEFAULT_READOUT}", "gain of the readout"]  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [f"{row['task']} ({row['split']})", row["items"] or "", f"**{row['score']:.2f}**"]
        cells += [f"{row['last']:.2f}", _gain(row), "", ""]
        if row["default_last"] is not None:
            cells[-2:] = [f"{row['default_last']:.2f}", f"{row['gain_readout']:+.2f}"]
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
    return f"MTEB main scores × 100, measured with layerscope on the base model:\n\n{table}"


def _gain(row: Mapping[str, Any]) -> str:
    gain = Interval.from_row(row, "gain")
    return str(gain) if gain.known else f"{gain.value:+.2f}"


def _verified(v: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in v["versions"].items())
    return [
        f"Reloaded in a fresh process without layerscope ({versions}) and compared with the states of the whole model on "
        f"{v['texts']} texts, {v['cut_texts']} of them cut: the largest cosine distance is {v['cosine_distance']:.1e} (allowed: "
        f"{v['tolerance']:.0e}), and token states through `AutoModel` differ by at most {v['state_error']:.1e} of their length."
    ]


def _cut_words(facts: Mapping[str, Any]) -> str:
    """How texts that an evaluation cuts are read otherwise here; empty where they are not."""
    v, evaluated, now = facts["verification"], facts["evaluated_max_length"], facts["max_length"]
    if v["cut_distance"] is None or v["cut_distance"] <= v["tolerance"]:
        return ""
    read = f"are read up to {now} tokens" if now > evaluated else "lose a token of the template"
    return f"Texts too long for the {evaluated} tokens of an evaluation {read} here."


UNKNOWN = "unknown: check the base model's"


def license_of(model: LoadedModel, spec: Any, offline: bool) -> str:
    """As the catalogue says it, or the card beside the weights, or on the hub the card of the
    repository."""
    text = model.identity.get("license")
    if text:
        return str(text)
    if not isinstance(spec, (str, Path)):
        return UNKNOWN
    card = Path(spec) / "README.md"
    if card.is_file():
        return license_in(card)
    if model.identity.get("source") != "hub":
        return UNKNOWN
    from huggingface_hub import hf_hub_download

    revision = model.identity.get("revision")
    try:
        found = hf_hub_download(
            model.name, "README.md", revision=revision, local_files_only=offline
        )
    except Exception:  # a card is a courtesy: without it the license is given as unknown
        return UNKNOWN
    return license_in(Path(found))


def license_in(card: Path) -> str:
    """The license that the head of a model card names."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        facts = metadata_load(card) or {}
    except (YAMLError, ValueError):
        return UNKNOWN
    return one_line(str(facts.get("license") or UNKNOWN))


def print_export(facts: Mapping[str, Any]) -> None:
    """Where it was cut, what it scored, and how it was checked."""
    console = Console(highlight=False)
    base, blocks, v = facts["base"], facts["blocks"], facts["verification"]
    console.print(
        f"[bold]{base['name']}[/] at layer {facts['layer']} of {base['n_blocks']}, read as {facts['readout']}"
    )
    console.print(
        f"{_blocks(blocks)} · {size_in_words(facts)} · {describe_size(facts['bytes'])} · "
        f"texts cut to {facts['max_length']} tokens"
    )
    evidence = facts.get("evidence") or {"scores": [], "notes": []}
    for name, written in facts.get("formats", {}).items():
        for line in FORMATS.get(name).lines(written):
            console.print(line, markup=False)
    console.print(
        f"[green]verified[/] in a fresh process: cosine distance ≤ {v['cosine_distance']:.1e} on {v['texts']} texts "
        f"({v['cut_texts']} cut), AutoModel's states within {v['state_error']:.1e}"
    )
    console.print(f"opens in {opening_words(facts['servers'])}", markup=False)
    for note in filter(None, [_cut_words(facts), *evidence["notes"]]):
        console.print(f"[yellow]note[/] {note}")


def _blocks(blocks: Mapping[str, Any]) -> str:
    """How much of the model is kept.

    >>> _blocks({"kept": 26, "filler": True, "of": 30})
    '26 of 30 blocks, plus one pass-through block'
    """
    return f"{blocks['kept']} of {blocks['of']} blocks" + (
        ", plus one pass-through block" if blocks["filler"] else ""
    )
