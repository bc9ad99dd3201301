"""The folder that sentence-transformers loads: tokenizer, and standard modules around the cut
model.

The module files are written in the form that every version of sentence-transformers and most other
servers read. A folder is loaded with modules of known kinds alone: no code of its own runs, and it
cannot ask to be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from layerscope.core.files import is_plain_name
from layerscope.core.heads import Head
from layerscope.core.json import read_json
from layerscope.core.poolings import POOLINGS
from layerscope.errors import ExportError, LayerscopeError, one_line
from layerscope.exporting.draft import Draft, Side
from layerscope.extras import missing
from layerscope.models.settings import quiet
from layerscope.store import atomic

_OWN = "sentence_transformers.models"
_ROUTER, _ROUTES = ".Router", "router_config.json"
_ROPE_THETA = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
)  # transformers 4 has one frequency for all blocks here, under this name


def _write_modules(draft: Draft) -> None:
    folder, width = draft.folder, draft.model.width
    names = ["Transformer", "Pooling"]
    _write_transformer(draft)
    known = {
        pooling.sentence_transformers: pooling.name == draft.readout.pooling
        for pooling in POOLINGS.all().values()
    }
    pooling = {f"pooling_mode_{name}": chosen for name, chosen in known.items() if name is not None}
    atomic.write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": width, **pooling, "include_prompt": True},
    )
    if any(side.head is not None for side in draft.sides):
        names.append("Router")
        _write_router(folder / "2_Router", draft.sides)
    if draft.head is not None:
        names.append("Dense")
        _write_dense(folder / "2_Dense", draft.head)
    if draft.unit:
        names.append("Normalize")
    prompts = {side.name: side.prompt for side in draft.sides}
    write_pipeline(
        folder,
        [(f"{_OWN}.{name}", f"{i}_{name}" if i else "") for i, name in enumerate(names)],
        prompts,
    )


def write_pipeline(
    folder: Path, modules: Sequence[tuple[str, str]], prompts: Mapping[str, str] | None = None
) -> None:
    """Write which modules a folder has, each with its class and its folder, and the settings of the
    whole.

    `prompts` are put before texts, by the names of their sides; plain `encode` takes the
    documents'.
    """
    for _, path in modules:
        (folder / path).mkdir(exist_ok=True)
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (kind, path) in enumerate(modules)
    ]
    atomic.write_json(folder / "modules.json", listed)
    usual = "document" if prompts and prompts.get("document") else None
    settings: dict[str, Any] = {
        "prompts": dict(prompts or {}),
        "default_prompt_name": usual,
        "similarity_fn_name": "cosine",
    }
    atomic.write_json(
        folder / "config_sentence_transformers.json", {"__version__": _versions(), **settings}
    )


def _write_transformer(draft: Draft) -> None:
    settings: dict[str, Any] = {"max_seq_length": draft.framed.max_length, "do_lower_case": False}
    if draft.route.index is not None:
        output = ["hidden_states", draft.route.index]
        settings["modality_config"] = {"text": {"method": "forward", "method_output_name": output}}
        settings["module_output_name"] = "token_embeddings"
    atomic.write_json(draft.folder / "sentence_bert_config.json", settings)


def _write_router(folder: Path, sides: Sequence[Side]) -> None:
    """A dense layer for each side of a search; which one a text goes through, `encode_query` and
    `encode_document` say."""
    folder.mkdir()
    for side in sides:
        assert side.head is not None
        _write_dense(folder / f"{side.name}_0_Dense", side.head)
    names = {side.name: [f"{side.name}_0_Dense"] for side in sides}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    types = {name: f"{_OWN}.Dense" for some in names.values() for name in some}
    atomic.write_json(
        folder / _ROUTES, {"types": types, "structure": names, "parameters": parameters}
    )


def _write_dense(folder: Path, head: Head) -> None:
    """A head as a dense layer. Subtracting a mean is one, too: the identity as weights, and minus
    the mean as bias."""
    folder.mkdir()
    settings = {
        "in_features": len(head.mean),
        "out_features": len(head.bias),
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    atomic.write_json(folder / "config.json", settings)
    parts = {"linear.weight": head.weight, "linear.bias": head.bias}
    save_file(
        {name: torch.tensor(part, dtype=torch.float32) for name, part in parts.items()},
        folder / "model.safetensors",
    )


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
        scaled = rope.get("rope_type", "default") != "default"
        config |= {"rope_theta": rope["rope_theta"]} | ({"rope_scaling": rope} if scaled else {})
        atomic.write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        atomic.write_text(path, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = {
        "sentence_transformers": "sentence-transformers",
        "transformers": "transformers",
        "pytorch": "torch",
    }
    return {name: version(package) for name, package in names.items()}


def write_folder(draft: Draft) -> None:
    """Write the tokenizer's files and the modules beside the cut model, so that
    SentenceTransformer(path) and AutoModel.from_pretrained(path) load the folder."""
    with quiet():
        draft.framed.tokenizer.save_pretrained(draft.folder)
    _name_as_before(draft.folder)
    _write_modules(draft)


_KNOWN = re.compile(
    r"sentence_transformers(\.\w+)*\.(Transformer|Pooling|Dense|Normalize|LayerNorm|Dropout|StaticEmbedding|Router)"
)


def modules_of(folder: Path) -> list[tuple[Path, str]]:
    """Where each module lies and its type, those between which a router chooses too; an error if
    one is not of a known kind, or lies outside the folder."""
    found: list[tuple[Path, str]] = []

    def add(file: Path, kind: object, path: object, alone: bool = False) -> None:
        known = (
            isinstance(kind, str)
            and _KNOWN.fullmatch(kind) is not None
            and not (alone and kind.endswith(_ROUTER))
        )
        if not known or not (path == "" or is_plain_name(path)) or (alone and path == ""):
            raise ExportError(
                f"{file} names the module {one_line(str(kind))!r} in {one_line(str(path))!r}. Only standard "
                "modules of sentence-transformers inside the folder are loaded; code of the folder's own is not run."
            )
        found.append((file.parent / str(path), str(kind)))

    for entry in read_json(folder / "modules.json", expect=list, error=ExportError):
        add(
            folder / "modules.json",
            *((entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)),
        )
        place, kind = found[-1]
        if kind.endswith(_ROUTER):
            types = read_json(place / _ROUTES, error=ExportError).get("types")
            for path, routed in types.items() if isinstance(types, dict) else [("", None)]:
                add(place / _ROUTES, routed, path, alone=True)
    return found


def _check_module(place: Path, kind: str) -> None:
    """Refuse a module whose weights are pickled only."""
    if kind not in ("Transformer", "Dense", "LayerNorm") or (
        kind == "Transformer" and not (place / "config.json").is_file()
    ):
        return
    if not any(place.glob("*.safetensors")):
        raise ExportError(
            f"{place} holds no weights as safetensors, and others are not loaded. Save it again as safetensors."
        )


def load_folder(folder: Path, device: Any = None, dtype: Any = None) -> Any:
    """The folder as a SentenceTransformer."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise missing("encoding") from None
    found = modules_of(folder)
    for place, kind in found:
        _check_module(place, kind.rpartition(".")[2])
    if not any(kind.endswith((".Pooling", ".StaticEmbedding", _ROUTER)) for _, kind in found):
        raise ExportError(
            f"{folder / 'modules.json'} names no pooling, so that a text has no vector. Name layers= to read it."
        )
    try:
        settings = {"use_safetensors": True, **({} if dtype is None else {"dtype": dtype})}
        options: dict[str, Any] = {"model_kwargs": settings, "device": device}
        return SentenceTransformer(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except LayerscopeError:
        raise
    except Exception as error:  # of many kinds, from files that can say anything
        raise ExportError(f"{folder} could not be loaded: {one_line(str(error))}") from error
