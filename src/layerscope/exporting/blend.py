"""The mean over several templates as a folder: the cut model, their patterns and means, and one file of plain Python.

No standard module makes several passes per text. The folder therefore holds a module of its own, which sentence-transformers
runs only where its user says `trust_remote_code=True`. It needs torch, transformers and sentence-transformers, and nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from layerscope.core.readout import Readout
from layerscope.core.runs import MARKER
from layerscope.core.templates import get_template
from layerscope.errors import ExportError, clean_name, printable
from layerscope.exporting import blend_module, verifying
from layerscope.exporting.cutting import Route, check_cuttable, write_cut
from layerscope.exporting.describing import front_lines, license_of, parameters_of, title_of
from layerscope.exporting.draft import beyond, verification_texts
from layerscope.exporting.formats.sentence_transformers import write_pipeline
from layerscope.exporting.job import Exported, check_free, published
from layerscope.exporting.loading import BLEND
from layerscope.exporting.tokenizing import settled_tokenizer
from layerscope.exporting.verifying import HALF_TOLERANCE, TOLERANCE, cosine_distances, require_sentence_transformers
from layerscope.models import LoadedModel
from layerscope.models.settings import quiet
from layerscope.store import atomic
from layerscope.version import VERSION

MODULE = "blend.py"


def module_source() -> str:
    """The file that is put into the folder, as it ships with layerscope."""
    return Path(str(blend_module.__file__)).read_text(encoding="utf-8")


def export_blend(
    model: LoadedModel,
    layer: int,
    readout: Readout,
    means: Mapping[str, np.ndarray],
    *,
    out: Path,
    encode: Callable[[Sequence[str]], np.ndarray],
    max_length: int,
    centered_on: str,
    nearest: str,
    why: str = "",
    overwrite: bool = False,
    offline: bool = False,
    also: Callable[[Path], None] = lambda folder: None,
) -> Exported:
    """Write the mean over the templates of `means` (each with the mean to subtract) at a layer, and verify it.

    `encode` gives the vectors that the folder must give back; `nearest` names what can be exported without code.
    """
    require_sentence_transformers()
    check_free(out, overwrite)
    check_cuttable(model)
    patterns = [get_template(name).pattern for name in means]
    if not getattr(model.tokenizer, "is_fast", False):
        raise ExportError(f"{model.name} has no fast tokenizer, which templates need. {nearest}")
    texts = [*verification_texts(brief=True), beyond(max_length)]
    with published(out, overwrite) as folder:
        route = write_cut(model, layer, readout.final_norm, folder)
        with quiet():
            settled_tokenizer(model, max_length).save_pretrained(folder)
        settings = {"patterns": patterns, "max_length": max_length, "index": route.index, "pad_id": int(model.pad_id)}
        atomic.write_json(folder / "blend.json", settings)
        save_file({"means": torch.tensor(np.stack(list(means.values())), dtype=torch.float32)}, folder / "blend.safetensors")
        atomic.write_text(folder / MODULE, module_source())
        write_pipeline(folder, [(BLEND, ""), ("sentence_transformers.models.Normalize", "1_Normalize")])
        verified = _verify(model, folder, texts, encode)
        facts = _facts(model, folder, layer, readout, list(means), route, max_length, centered_on, verified)
        facts |= {"license": license_of(model, model, offline), "why": why, "nearest": nearest}
        plain = atomic.plain(facts)
        atomic.write_json(folder / MARKER, plain)
        atomic.write_text(folder / "README.md", printable(_card(plain, patterns)))
        also(folder)
    return Exported(out, json.loads((out / MARKER).read_text(encoding="utf-8")))


def _verify(model: LoadedModel, folder: Path, texts: list[str], encode: Callable[[Sequence[str]], np.ndarray]) -> dict[str, Any]:
    """Reload in a fresh process, with the module as it ships with layerscope, and compare with vectors captured by layerscope."""
    with tempfile.TemporaryDirectory(prefix="layerscope-verify-") as scratch:
        job = {"folder": str(folder.resolve()), "texts": texts, "probes": [], "index": None}
        job["blend"] = str(blend_module.__file__)
        (arrays,), versions = verifying.reload([job], Path(scratch))
    if versions.pop("layerscope_loaded"):
        raise ExportError("the fresh process loaded layerscope, so the folder was not shown to work without it.")
    distances = cosine_distances(encode(texts), arrays["vectors"])
    worst = int(np.argmax(np.where(np.isfinite(distances), distances, np.inf)))
    tolerance = TOLERANCE.get(model.identity["dtype"], HALF_TOLERANCE)
    if not distances[worst] < tolerance:
        raise ExportError(
            f"the exported folder does not give back the mean over its templates: the cosine distance of {texts[worst][:50]!r} "
            f"is {distances[worst]:.1e}, more than {tolerance:.0e}."
        )
    return {"texts": len(texts), "cosine_distance": float(distances[worst]), "tolerance": tolerance, "versions": versions}


def _facts(
    model: LoadedModel, folder: Path, layer: int, readout: Readout, templates: list[str], route: Route, max_length: int,
    centered_on: str, verified: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "kind": "export",
        "layerscope": VERSION,
        "base": {**model.identity, "name": clean_name(model.name), "title": title_of(model)},
        "layer": layer,
        "readout": readout.name,
        "templates": templates,
        "blocks": {"kept": route.kept, "filler": route.filler, "of": model.n_blocks},
        "max_length": max_length,
        "unit_length": True,
        "centered_on": centered_on,
        "needs_trust": True,
        "parameters": parameters_of(folder),
        "verification": verified,
    }


def _card(facts: Mapping[str, Any], patterns: Sequence[str]) -> str:
    base, v = facts["base"], facts["verification"]
    listed = "\n".join(f"- `{pattern}`" for pattern in patterns)
    return f"""{front_lines(facts)}

# {base["title"]} at layer {facts["layer"]}, mean over {len(patterns)} prompts

Sentence embeddings from layer {facts["layer"]} of {base["n_blocks"]} of **{base["title"]}**: every text is put into each prompt,
the last token's state is read, the mean over {facts["centered_on"]} is subtracted, and the unit vectors are averaged.
{len(patterns)} passes per text. License of the base model: {facts["license"]}.

{listed}

## Use

**This folder holds code of its own** (`{MODULE}`, plain Python): no standard module makes several passes per text.
sentence-transformers runs it only where you say so. Read the file first if you did not make this folder yourself.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder", trust_remote_code=True)
vectors = model.encode(["A text.", "Another text."])
```

{facts["nearest"]} Texts are cut to {facts["max_length"]} tokens.

## Evidence

{facts["why"] or "How good this layer is was not measured here."}

## Verified

Reloaded in a fresh process without layerscope and compared with vectors captured from the whole model on {v["texts"]} texts: the
largest cosine distance is {v["cosine_distance"]:.1e} (allowed: {v["tolerance"]:.0e}).
"""
