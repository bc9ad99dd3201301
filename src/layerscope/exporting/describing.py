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
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.runs import MARKER
from layerscope.core.statistics import Interval
from layerscope.errors import clean_name, one_line, printable
from layerscope.exporting.draft import Draft
from layerscope.exporting.formats import FORMATS
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
    parts = [
        front_lines(facts),
        _title(facts),
        _use(facts),
        _evidence(facts),
        *(FORMATS.get(name).card(written) for name, written in facts.get("formats", {}).items()),
        _verified(facts),
        _conventions(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_lines(facts: Mapping[str, Any]) -> str:
    """The lines at the head of a model card that the hub reads."""
    from huggingface_hub import ModelCardData

    name = str(facts["license"])
    if name == UNKNOWN:
        name = "unknown"
    data = ModelCardData(
        license=name if " " in name else name.lower(),
        base_model=facts["base"]["title"],
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "layerscope"],
    )
    return f"---\n{data.to_yaml(line_break=None)}\n---"


def _title(facts: Mapping[str, Any]) -> str:
    base, blocks = facts["base"], facts["blocks"]
    norm = {
        "applied": "with the final norm",
        "raw": "without the final norm",
        "none": "which has no final norm",
    }[facts["final_norm"]]
    lines = [
        f"# {base['title']} at layer {facts['layer']}",
        "",
        f"Sentence embeddings from layer {facts['layer']} of {base['n_blocks']} of **{base['title']}** ({base['architecture']}),",
        f"{norm}, read as `{facts['readout']}`. {_kept(blocks)}",
        f"{size_in_words(facts)}, {describe_size(facts['bytes'])}.",
    ]
    if blocks["filler"]:
        lines.append(
            "One pass-through block of zeros follows them: without it the layer could only be read with the final norm."
        )
    lines += ["", f"License of the base model: {facts['license']}."]
    if base.get("trained"):
        trained = base["trained"]
        lines.append(
            f"The blocks were trained on {trained['texts']:,} texts ({trained['steps']:,} steps)."
        )
    if base.get("quantization"):
        lines.append(f"Its weights were quantized ({base['quantization']}) in their source.")
    return "\n".join(lines)


def _kept(blocks: Mapping[str, Any]) -> str:
    gone = blocks["of"] - blocks["kept"]
    if not gone:
        return f"All {blocks['of']} blocks are kept:"
    return f"The first {blocks['kept']} blocks are kept, {'the last one is' if gone == 1 else f'the other {gone} are'} removed:"


def size_in_words(facts: Mapping[str, Any]) -> str:
    """How large an export is beside the model that it was cut from; if it is not smaller, why
    not."""
    own, whole = facts["parameters"] / 1e6, facts["base"]["parameters"] / 1e6
    if facts["parameters"] < facts["base"]["parameters"]:
        return f"{own:.1f} M parameters instead of {whole:.1f} M"
    why = "every block is needed"
    if facts["blocks"]["filler"]:
        why = "a block of zeros takes the place of the next one; an earlier layer, or one read with the final norm, is smaller"
    return f"{own:.1f} M parameters, no fewer than the whole model ({why})"


def _use(facts: Mapping[str, Any]) -> str:
    lines = [
        "## Use", "", "```python", "from sentence_transformers import SentenceTransformer", "",
        'model = SentenceTransformer("path/to/this/folder")',
        'vectors = model.encode(["A text.", "Another text."])', "```",
    ]  # fmt: skip
    template, sides = facts["template"], facts.get("sides")
    if sides:
        lines[-2] = (
            'documents, query = model.encode_document(["A text.", "Another text."]), model.encode_query("A question?")'
        )
        lines += [
            "",
            "Queries and documents are read differently: each has a prompt in `config_sentence_transformers.json`",
        ]
        each = ", and is centered on the mean of its own side" if facts["centered_on"] else ""
        prompts = ", ".join(
            f"{name}: `{' '.join(side['prompt'].split())}`" for name, side in sides.items()
        )
        lines.append(f"({prompts}){each}. Plain `encode` is for documents.")
    elif template["pattern"] != "{text}":
        lines += [
            "",
            f"The tokenizer itself puts every text into `{template['pattern']}`: give plain texts.",
        ]
        if not template["exact_when_cut"]:
            lines += [
                f"A text too long for {facts['max_length']} tokens loses `{template['joined']}`, the part of the template that",
                "joins its end; the rest of the template is never cut.",
            ]
        lines += [
            "An empty text, or one that spells a special token of the tokenizer, is not framed as others are."
        ]
    lines += [
        "",
        f"Texts are cut to {facts['max_length']} tokens. With plain transformers: `AutoModel`, `{facts['state']}`.",
    ]
    if facts["state"] != "last_hidden_state":
        lines += [
            "sentence-transformers reads that state through `modality_config` (tested with 6.2)."
        ]
    return "\n".join(lines)


def _evidence(facts: Mapping[str, Any]) -> str:
    evidence = facts.get("evidence")
    if not evidence and facts.get("why"):
        return f"## Evidence\n\n{facts['why']}"
    if not evidence:
        return "## Evidence\n\nNo run was given when this folder was made: how good this layer is was not measured here."
    choice, rows = evidence["choice"], evidence["scores"]
    lines = ["## Evidence"]
    if rows:
        lines += ["", *_scores(facts["layer"], rows)]
    else:
        lines += [
            "",
            "No scores were given when this folder was made: how good this layer is was not measured here.",
        ]
    if choice is not None:
        lines += [
            "",
            f"Chosen by layerscope (rule `{choice['rule']}`): {Choice.from_json(choice).headline()} {choice['reason']}",
        ]
    if choice is not None and rows:
        lines += [
            "",
            "The choice was made on these very tasks, so the scores above are on the high side.",
        ]
    return "\n".join([*lines, *(f"\n{note}" for note in evidence["notes"])])


def _scores(layer: int, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row per task. What the layer gains and what the readout gains are separate columns."""
    head = [
        "task",
        "items",
        f"layer {layer}",
        "last layer, same readout",
        "gain of the layer (95 % interval)",
    ]
    usual = any(row["default_last"] is not None for row in rows)
    if usual:
        head += [f"last layer, {DEFAULT_READOUT}", "gain of the readout"]
    lines = [
        "MTEB main scores × 100, measured with layerscope on the base model:",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for row in rows:
        task = f"{row['task']} ({row['split']})"
        cells = [
            task,
            row["items"] or "",
            f"**{row['score']:.2f}**",
            f"{row['last']:.2f}",
            _gain(row),
        ]
        if usual:
            known = row["default_last"] is not None
            cells += (
                [f"{row['default_last']:.2f}", f"{row['gain_readout']:+.2f}"] if known else ["", ""]
            )
        lines.append(_row(cells))
    return lines


def _gain(row: Mapping[str, Any]) -> str:
    found = Interval.from_row(row, "gain")
    return str(found) if found.known else f"{found.value:+.2f}"


def _verified(facts: Mapping[str, Any]) -> str:
    v = facts["verification"]
    with_versions = ", ".join(f"{name} {version}" for name, version in v["versions"].items())
    lines = [
        "## Verified",
        "",
        f"Reloaded in a fresh process without layerscope ({with_versions}) and compared with the states captured from the",
        f"whole model on {v['texts']} texts, {v['cut_texts']} of them too long for {facts['evaluated_max_length']} tokens:",
        f"the largest cosine distance is {v['cosine_distance']:.1e} (allowed: {v['tolerance']:.0e}). Token states through",
        f"`AutoModel` differ by at most {v['state_error']:.1e} of their length.",
    ]
    if told := _cut_words(facts):
        lines.append(
            f"{told[:1].upper()}{told[1:]}: they are up to {v['cut_distance']:.1e} away from what an evaluation gives them."
        )
    return "\n".join(lines)


def _cut_words(facts: Mapping[str, Any]) -> str:
    """How texts that an evaluation cuts are read otherwise here; empty where they are not."""
    v = facts["verification"]
    if v["cut_distance"] is None or v["cut_distance"] <= v["tolerance"]:
        return ""
    evaluated, now = facts["evaluated_max_length"], facts["max_length"]
    read = (
        f"are read up to {now} tokens here"
        if now > evaluated
        else "lose a token at the template's end here"
    )
    return f"texts too long for the {evaluated} tokens of an evaluation {read}"


def _conventions(facts: Mapping[str, Any]) -> str:
    base = facts["base"]
    weights = (base.get("trained") or {}).get("base") or base["weights_sha256"]
    centered = (
        f"the mean over {facts['centered_on']} is subtracted" if facts["centered_on"] else "none"
    )
    if facts.get("head") and base.get("trained"):
        centered = (
            f"none; a linear map to {facts['head']} numbers, trained with the blocks, is applied"
        )
    elif facts.get("head"):
        centered += (
            f", then a linear map to {facts['head']} numbers, fitted on the same texts, is applied"
        )
    lines = [
        "## Conventions",
        "",
        f"- {facts['layer_convention'][0].upper()}{facts['layer_convention'][1:]}. Here: {facts['layer']} of {base['n_blocks']}.",
        f"- Modules: {' → '.join(facts['modules'])}. Pooling: {Readout.parse(facts['readout']).pooling}. Centering: {centered}.",
        f"- Scaled to length 1: {'yes' if facts['unit_length'] else 'no'}. Weights: {base['dtype']}.",
        f"- Weights of the base: sha256 `{weights}`. All details: `layerscope.json`.",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


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
    console.print(
        f"{' → '.join(facts['modules'])} · state: {facts['state']} · license: {facts['license']}",
        markup=False,
    )
    evidence = facts.get("evidence") or {"scores": [], "notes": []}
    for row in evidence["scores"]:
        text = f"{row['task']}: {row['score']:.2f}; layer {_gain(row)} over the last one ({row['last']:.2f})"
        if row["default_last"] is not None:
            text += f"; readout {row['gain_readout']:+.2f} over {DEFAULT_READOUT} ({row['default_last']:.2f})"
        console.print(text)
    for name, written in facts.get("formats", {}).items():
        for line in FORMATS.get(name).lines(written):
            console.print(line, markup=False)
    console.print(
        f"[green]verified[/] in a fresh process: cosine distance ≤ {v['cosine_distance']:.1e} on {v['texts']} texts "
        f"({v['cut_texts']} cut), AutoModel's states within {v['state_error']:.1e}"
    )
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
