"""The folder that sentence-transformers loads: tokenizer, and standard modules around the cut model.

The module files are written in the form that every version of sentence-transformers and most other
servers read. A folder is loaded with modules of known kinds alone: no code of its own runs, and it
cannot ask to be trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from layerscope.core.files import is_plain_name, read_json
from layerscope.core.heads import Head
from layerscope.core.poolings import POOLINGS
from layerscope.errors import ExportError, LayerscopeError, one_line
from layerscope.exporting.draft import Draft, Side
from layerscope.extras import missing
from layerscope.models.settings import quiet
from layerscope.store import atomic

MODULES = "sentence_transformers.models"
_ROUTES = "router_config.json"
_ROPE_THETA = ("llama", "mistral", "qwen2", "qwen3")
"""Models that have one frequency for all blocks in transformers 4, under this name."""
_KNOWN = re.compile(
    r"sentence_transformers(\.\w+)*\."
    r"(Transformer|Pooling|Dense|Normalize|LayerNorm|Dropout|StaticEmbedding|Router)"
)


def write_folder(draft: Draft) -> None:
    """Write the tokenizer and the modules beside the cut model.

    SentenceTransformer(path) and AutoModel.from_pretrained(path) then load the folder.
    """
    folder = draft.folder
    with quiet():
        draft.framed.tokenizer.save_pretrained(folder)
    _name_as_before(folder)
    _write_transformer(draft)
    settings: dict[str, Any] = {"word_embedding_dimension": draft.model.width}
    for pooling in POOLINGS.all().values():
        if pooling.sentence_transformers is not None:
            is_chosen = pooling.name == draft.readout.pooling
            settings[f"pooling_mode_{pooling.sentence_transformers}"] = is_chosen
    atomic.write_json(folder / "1_Pooling" / "config.json", {**settings, "include_prompt": True})
    names = ["Transformer", "Pooling"]
    if any(side.head is not None for side in draft.sides):
        names.append("Router")
        _write_router(folder / "2_Router", draft.sides)
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


def _write_transformer(draft: Draft) -> None:
    settings: dict[str, Any] = {"max_seq_length": draft.framed.max_length, "do_lower_case": False}
    if draft.route.index is not None:
        output = ["hidden_states", draft.route.index]
        settings["modality_config"] = {"text": {"method": "forward", "method_output_name": output}}
        settings["module_output_name"] = "token_embeddings"
    atomic.write_json(draft.folder / "sentence_bert_config.json", settings)


def _write_router(folder: Path, sides: Sequence[Side]) -> None:
    """Write a dense layer for each side of a search.

    `encode_query` and `encode_document` say which one a text goes through.
    """
    folder.mkdir()
    types = {}
    structure = {}
    for side in sides:
        assert side.head is not None
        path = f"{side.name}_0_Dense"
        _write_dense(folder / path, side.head)
        types[path] = f"{MODULES}.Dense"
        structure[side.name] = [path]
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    routes = {"types": types, "structure": structure, "parameters": parameters}
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
        path = facts.get("path")
        kind = _known_type(file, facts.get("type"), path, path == "" or is_plain_name(path))
        place = folder / str(path)
        modules.append((place, kind))
        if kind.endswith(".Router"):
            routes = read_json(place / _ROUTES, error=ExportError).get("types")
            for route, routed in routes.items() if isinstance(routes, dict) else [("", None)]:
                is_inside = is_plain_name(route) and not str(routed).endswith(".Router")
                routed_kind = _known_type(place / _ROUTES, routed, route, is_inside)
                modules.append((place / route, routed_kind))
    return modules


def _known_type(file: Path, kind: object, path: object, is_inside: bool) -> str:
    if isinstance(kind, str) and _KNOWN.fullmatch(kind) and is_inside:
        return kind
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
    kinds = set()
    for place, module in modules_of(folder):
        kind = module.rpartition(".")[2]
        kinds.add(kind)
        has_weights = kind in ("Dense", "LayerNorm")
        if kind == "Transformer":
            has_weights = (place / "config.json").is_file()
        if has_weights and not any(place.glob("*.safetensors")):
            raise ExportError(
                f"{place} holds no weights as safetensors, and others are not loaded. Save it "
                "again as safetensors."
            )
    if not kinds & {"Pooling", "StaticEmbedding", "Router"}:
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
