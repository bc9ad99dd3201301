"""The model card of an exported folder: where it was cut, the evidence, how it was checked, how to use it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from layerscope.core.readout import Readout
from layerscope.exporting.telling.licence import UNKNOWN


def model_card(facts: Mapping[str, Any]) -> str:
    """README.md from what layerscope.json holds."""
    parts = [
        _front(facts),
        _title(facts),
        _use(facts),
        _evidence(facts),
        _speed(facts),
        _onnx(facts),
        _verified(facts),
        _conventions(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(facts: Mapping[str, Any]) -> str:
    licence = facts["licence"]
    lines = ["---"]
    lines.append("license: " + ("unknown" if licence == UNKNOWN else _quoted(licence.lower() if " " not in licence else licence)))
    lines += [
        f"base_model: {_quoted(facts['base']['title'])}",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
    ]
    lines += ["tags:", "- sentence-transformers", "- feature-extraction", "- layerscope", "---"]
    return "\n".join(lines)


def _title(facts: Mapping[str, Any]) -> str:
    base, blocks = facts["base"], facts["blocks"]
    norm = {"applied": "with the final norm", "raw": "without the final norm", "none": "which has no final norm"}[
        facts["final_norm"]
    ]
    size = f"{facts['parameters'] / 1e6:.1f} M parameters instead of {base['parameters'] / 1e6:.1f} M"
    lines = [
        f"# {base['title']} at layer {facts['layer']}",
        "",
        f"Sentence embeddings from layer {facts['layer']} of {base['n_blocks']} of **{base['title']}** ({base['architecture']}),",
        f"{norm}, read as `{facts['readout']}`. The first {blocks['kept']} blocks are kept, the others and any head are gone:",
        f"{size}, {facts['bytes'] / 2**20:.0f} MB.",
    ]
    if blocks["filler"]:
        lines.append("One more block, of zeros, follows them: without it the layer could only be read with the final norm.")
    lines += ["", f"Licence of the base model: {facts['licence']}."]
    if base.get("quantisation"):
        lines.append(f"Its weights were quantised ({base['quantisation']}) in their source.")
    return "\n".join(lines)


def _use(facts: Mapping[str, Any]) -> str:
    lines = [
        "## Use", "", "```python", "from sentence_transformers import SentenceTransformer", "",
        'model = SentenceTransformer("path/to/this/folder")',
        'vectors = model.encode(["A text.", "Another text."])', "```",
    ]  # fmt: skip
    template = facts["template"]
    if template["pattern"] != "{text}":
        lines += ["", f"The tokenizer itself puts every text into `{template['pattern']}`: give plain texts."]
        if not template["exact_when_cut"]:
            lines += [
                f"A text too long for {facts['max_length']} tokens loses `{template['joined']}`, the part of the template that",
                "joins its end; the rest of the template is never cut.",
            ]
        lines += ["An empty text, or one that spells a special token of the tokenizer, is not framed as others are."]
    lines += ["", f"Texts are cut to {facts['max_length']} tokens. With plain transformers: `AutoModel`, `{facts['state']}`."]
    if facts["state"] != "last_hidden_state":
        lines += ["sentence-transformers reads that state through `modality_config` (tested with 6.2)."]
    return "\n".join(lines)


def _evidence(facts: Mapping[str, Any]) -> str:
    evidence = facts.get("evidence")
    if not evidence:
        return "## Evidence\n\nNo evaluation was given when this folder was made: how good this layer is was not measured here."
    rows = evidence["scores"]
    head = ["task", "items", f"layer {facts['layer']}", "last layer, same readout", "gain (95 % interval)"]
    usual = any(row["default_last"] is not None for row in rows)
    if usual:
        head.append("last layer, mean")
    lines = [
        "## Evidence",
        "",
        "MTEB main scores × 100, measured with layerscope on the base model:",
        "",
        _row(head),
        _row(["---"] * len(head)),
    ]
    for row in rows:
        cells = [
            f"{row['task']} ({row['split']})",
            row["items"] or "",
            f"**{row['score']:.2f}**",
            f"{row['last']:.2f}",
            _gain(row),
        ]
        if usual:
            cells.append("" if row["default_last"] is None else f"{row['default_last']:.2f}")
        lines.append(_row(cells))
    if evidence["selected"]:
        lines += ["", "The layer was chosen as the best on these very tasks, so its score there is on the high side."]
    return "\n".join([*lines, *(f"\n{note}" for note in evidence["notes"])])


def _gain(row: Mapping[str, Any]) -> str:
    if row["ci_low"] is None or not math.isfinite(row["ci_low"]):
        return f"{row['gain']:+.2f}"
    return f"{row['gain']:+.2f} ({row['ci_low']:+.2f} to {row['ci_high']:+.2f})"


def _speed(facts: Mapping[str, Any]) -> str:
    bench = facts.get("bench")
    if not bench:
        return ""
    head = ["", "this folder", bench["against"], "ratio"]
    lines = [
        "## Speed",
        "",
        f"Measured side by side on {bench['machine']}, {bench['threads']} threads:",
        "",
        _row(head),
        _row(["---"] * 4),
    ]
    lines += [_row(row) for row in bench["table"]]
    return "\n".join(lines)


def _onnx(facts: Mapping[str, Any]) -> str:
    graphs: Sequence[Mapping[str, Any]] = facts.get("onnx") or []
    if not graphs:
        return ""
    lines = [
        "## ONNX",
        "",
        "Inputs `input_ids` and `attention_mask`; outputs `sentence_embedding` (pooled, finished) and `token_embeddings`.",
        "",
    ]
    lines += [_row(["file", "MB", "largest cosine distance to torch", "mean", "texts/s (torch)"]), _row(["---"] * 5)]
    for g in graphs:
        speed = f"{g['texts_per_s']:.1f} ({g['torch_texts_per_s']:.1f})"
        distances = [f"{g['cosine_distance']:.1e}", f"{g['mean_cosine_distance']:.1e}"]
        lines.append(_row([g["file"], f"{g['bytes'] / 2**20:.0f}", *distances, speed]))
    return "\n".join(lines)


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
    if v["cut_distance"] is not None and v["cut_distance"] > v["tolerance"]:
        evaluated, now = facts["evaluated_max_length"], facts["max_length"]
        told = f"are read up to {now} tokens here" if now > evaluated else "lose a token at the template's end here"
        lines.append(
            f"Texts too long for the {evaluated} tokens of an evaluation {told}: they are up to {v['cut_distance']:.1e} away"
        )
        lines.append("from what an evaluation gives them.")
    return "\n".join(lines)


def _conventions(facts: Mapping[str, Any]) -> str:
    base = facts["base"]
    centred = f"the mean over {facts['centred_on']} is subtracted" if facts["centred_on"] else "none"
    lines = [
        "## Conventions",
        "",
        f"- {facts['layer_convention'][0].upper()}{facts['layer_convention'][1:]}. Here: {facts['layer']} of {base['n_blocks']}.",
        f"- Modules: {' → '.join(facts['modules'])}. Pooling: {Readout.parse(facts['readout']).pooling}. Centering: {centred}.",
        f"- Scaled to length 1: {'yes' if facts['unit_length'] else 'no'}. Weights: {base['dtype']}.",
        f"- Weights of the base: sha256 `{base['weights_sha256']}`. All details: `layerscope.json`.",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _quoted(text: str) -> str:
    plain = all(c.isalnum() or c in "._-/" for c in text) and text
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
