"""The folder that sentence-transformers loads: tokenizer and standard modules around the cut model.

The module files are written in the form that every version of sentence-transformers and most other
servers read. A folder is loaded with modules of known kinds alone: no code of its own runs, and it
cannot ask to be trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from layerscope.core.files import is_plain_name, read_json
from layerscope.core.heads import Head
from layerscope.core.templates import POOLINGS, SLOT, get_template
from layerscope.errors import ExportError, LayerscopeError, one_line
from layerscope.exporting.cutting import check_cuttable, write_cut
from layerscope.exporting.draft import (
    LONG,
    SHORT,
    Draft,
    ExportRequest,
    FramedTokenizer,
    check_expressible,
    frame_tokenizer,
    text_longer_than,
)
from layerscope.exporting.verifying import pooled_vectors
from layerscope.extras import missing
from layerscope.models.settings import quiet
from layerscope.store import atomic

MODULES = "sentence_transformers.models"
_ROUTES = "router_config.json"
_ROPE_THETA = ("llama", "mistral", "qwen2", "qwen3")
"""Models that have one frequency for all blocks in transformers 4, under this name."""
_LONGEST = 2048  # tokens of a folder whose template would be cut
_KNOWN = re.compile(
    r"sentence_transformers(\.\w+)*\."
    r"(Transformer|Pooling|Dense|Normalize|LayerNorm|Dropout|StaticEmbedding|Router)"
)


def write_draft(request: ExportRequest, folder: Path) -> Draft:
    """Write a sentence-transformers folder that is not verified yet."""
    model = request.model
    readout = request.readout
    check_expressible(readout)
    check_cuttable(model)
    framed, texts = _frame(request)
    head = request.head
    if head is None and readout.centering != "none" and not request.sides:
        assert request.center_on is not None
        mean_texts, words = request.center_on
        pooled = pooled_vectors(model, framed.ids(mean_texts), request.layer, readout)
        head = Head(pooled.mean(0, dtype=np.float64), None, words)
    route = write_cut(model, request.layer, readout.final_norm, folder)
    changes = {"texts": tuple(texts), "head": head, "folder": folder}
    draft = Draft(**{**vars(request), **changes}, route=route, framed=framed)
    _write_modules(draft)
    return draft


def _frame(request: ExportRequest) -> tuple[FramedTokenizer, list[str]]:
    """Return the tokenizer of a folder, and the texts to verify it on.

    A text that is cut under a template loses the template's end, and with it much of its meaning.
    With `longer`, such a folder reads longer texts than were evaluated.
    """
    model = request.model
    length = request.max_length
    template = get_template(request.readout.template)
    distinct = dict.fromkeys([*request.texts, text_longer_than(length)])
    texts = [text for text in distinct if text.strip()]
    # Token ids are compared on more texts than vectors are: that takes no time.
    compared = list(dict.fromkeys([*SHORT, LONG[0], *texts]))
    if request.sides:  # a side's prompt stands before the text, the tokenizer adds what follows
        template = replace(template, pattern=SLOT + template.pattern.split(SLOT)[1])
        compared = [side.prompt + text for side in request.sides for text in compared]
    framed = frame_tokenizer(model, template, length, compared)
    if request.longer and not framed.exact_when_cut:
        limit = min(model.max_length or _LONGEST, _LONGEST)
        framed = framed.with_length(max(length, limit))
        texts.append(text_longer_than(framed.max_length))
    return framed, texts


def _write_modules(draft: Draft) -> None:
    """Write the tokenizer and the modules beside the cut model.

    SentenceTransformer(path) and AutoModel.from_pretrained(path) then load the folder.
    """
    folder = draft.folder
    with quiet():
        draft.framed.tokenizer.save_pretrained(folder)
    _name_as_before(folder)
    settings: dict[str, Any] = {"max_seq_length": draft.framed.max_length, "do_lower_case": False}
    if draft.route.index is not None:
        output = ["hidden_states", draft.route.index]
        settings["modality_config"] = {"text": {"method": "forward", "method_output_name": output}}
        settings["module_output_name"] = "token_embeddings"
    atomic.write_json(folder / "sentence_bert_config.json", settings)
    settings = {"word_embedding_dimension": draft.model.width, "include_prompt": True}
    for pooling in POOLINGS.all().values():
        if pooling.sentence_transformers is not None:
            is_chosen = pooling.name == draft.readout.pooling
            settings[f"pooling_mode_{pooling.sentence_transformers}"] = is_chosen
    atomic.write_json(folder / "1_Pooling" / "config.json", settings)
    names = ["Transformer", "Pooling"]
    side_heads = {side.name: side.head for side in draft.sides if side.head is not None}
    if side_heads:
        names.append("Router")
        _write_router(folder / "2_Router", side_heads)
    if draft.head is not None:
        names.append("Dense")
        _write_dense(folder / "2_Dense", draft.head)
    if draft.unit:
        names.append("Normalize")
    modules = [(f"{MODULES}.{name}", f"{i}_{name}" if i else "") for i, name in enumerate(names)]
    write_pipeline(folder, modules, {side.name: side.prompt for side in draft.sides})


def write_pipeline(
    folder: Path, modules: Sequence[tuple[str, str]], prompts: Mapping[str, str] | None = None
) -> None:
    """Write a folder's modules, each with its class and its folder, and the settings of the whole.

    `prompts` are put before texts, by the names of their sides; plain `encode` takes the
    documents'.
    """
    entries = []
    for i, (kind, path) in enumerate(modules):
        (folder / path).mkdir(exist_ok=True)
        entries.append({"idx": i, "name": str(i), "path": path, "type": kind})
    atomic.write_json(folder / "modules.json", entries)
    versions = {
        "sentence_transformers": version("sentence-transformers"),
        "transformers": version("transformers"),
        "pytorch": version("torch"),
    }
    settings = {
        "__version__": versions,
        "prompts": dict(prompts or {}),
        "default_prompt_name": "document" if prompts and prompts.get("document") else None,
        "similarity_fn_name": "cosine",
    }
    atomic.write_json(folder / "config_sentence_transformers.json", settings)


def _write_router(folder: Path, heads: Mapping[str, Head]) -> None:
    """Write a dense layer for each side of a search.

    `encode_query` and `encode_document` say which one a text goes through.
    """
    folder.mkdir()
    paths = {side: f"{side}_0_Dense" for side in heads}
    for side, head in heads.items():
        _write_dense(folder / paths[side], head)
    routes = {
        "types": dict.fromkeys(paths.values(), f"{MODULES}.Dense"),
        "structure": {side: [path] for side, path in paths.items()},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    atomic.write_json(folder / _ROUTES, routes)


def _write_dense(folder: Path, head: Head) -> None:
    """Write a head as a dense layer.

    Subtracting a mean is one, too: the identity as weights, and minus the mean as bias.
    """
    folder.mkdir()
    settings = {
        "in_features": len(head.mean),
        "out_features": len(head.bias),
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    atomic.write_json(folder / "config.json", settings)
    tensors = {
        "linear.weight": torch.tensor(head.weight, dtype=torch.float32),
        "linear.bias": torch.tensor(head.bias, dtype=torch.float32),
    }
    save_file(tensors, folder / "model.safetensors")


def _name_as_before(folder: Path) -> None:
    """Name the rotary frequencies and the tokenizer's class also as programs with transformers 4
    look for them.

    They know neither `rope_parameters` nor `TokenizersBackend`. Without `rope_theta` they take a
    default value, and the vectors are wrong without a warning. So the tokenizer of a model whose
    frequencies have other names there keeps a class that such a program refuses. transformers 5
    reads both names alike.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {}
    if rope and config["model_type"] not in (*_ROPE_THETA, "gemma3_text"):
        return
    if config["model_type"] == "gemma3_text":
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        config["rope_theta"] = rope["rope_theta"]
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = rope
        atomic.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        atomic.write_text(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def modules_of(folder: Path) -> list[tuple[Path, str]]:
    """Return where each module lies and its type, also of those between which a router chooses.

    Raises an error if a module is not of a known kind, or lies outside the folder.
    """
    file = folder / "modules.json"
    modules = []
    for entry in read_json(file, expect=list, error=ExportError):
        facts = entry if isinstance(entry, dict) else {}
        place = _check_module(file, facts.get("type"), facts.get("path"))
        modules.append((place, str(facts["type"])))
        if str(facts["type"]).endswith(".Router"):
            routes = read_json(place / _ROUTES, error=ExportError).get("types")
            for path, kind in routes.items() if isinstance(routes, dict) else [("", None)]:
                if str(kind).endswith(".Router"):  # nobody would check its own routes
                    kind = f"{kind} in a router"
                modules.append((_check_module(place / _ROUTES, kind, path or None), str(kind)))
    return modules


def _check_module(file: Path, kind: object, path: object) -> Path:
    """Return the folder of a module that a file names; raise unless both are harmless."""
    is_known = isinstance(kind, str) and _KNOWN.fullmatch(kind)
    if is_known and (path == "" or is_plain_name(path)):
        return file.parent / str(path)
    raise ExportError(
        f"{file} names the module {one_line(str(kind))!r} in {one_line(str(path))!r}. Only "
        "standard modules of sentence-transformers inside the folder are loaded; code of the "
        "folder's own is not run."
    )


def load_folder(folder: Path, device: Any = None, dtype: Any = None) -> Any:
    """Return the folder as a SentenceTransformer."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise missing("encoding") from None
    modules = [(place, kind.rpartition(".")[2]) for place, kind in modules_of(folder)]
    for place, kind in modules:
        has_weights = kind in ("Dense", "LayerNorm")
        if kind == "Transformer":
            has_weights = (place / "config.json").is_file()
        if has_weights and not any(place.glob("*.safetensors")):
            raise ExportError(
                f"{place} holds no weights as safetensors, and others are not loaded. Save it "
                "again as safetensors."
            )
    if not {"Pooling", "StaticEmbedding", "Router"} & {kind for _, kind in modules}:
        raise ExportError(
            f"{folder / 'modules.json'} names no pooling, so that a text has no vector. Name "
            "layers= to read it."
        )
    settings = {"use_safetensors": True}
    if dtype is not None:
        settings["dtype"] = dtype
    try:
        return SentenceTransformer(
            str(folder),
            device=device,
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs=settings,
        )
    except LayerscopeError:
        raise
    except Exception as error:  # of many kinds, from files that can say anything
        raise ExportError(f"{folder} could not be loaded: {one_line(str(error))}") from error
