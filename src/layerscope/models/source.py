"""The files of a model on this machine, from a short name, a folder, a GGUF file or a hub id; and
the fingerprints of its weights and settings."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from layerscope.catalogue import MODEL_FORMS, Catalogue, Entry, is_offline
from layerscope.core.files import exists, file_sha256, is_plain_name, read_json
from layerscope.core.runs import MANIFEST, MARKER
from layerscope.data.hub import hub_explained
from layerscope.errors import (
    DownloadError,
    ModelError,
    OfflineError,
    UnknownNameError,
    one_line,
)
from layerscope.extras import check_zoo, zoo_hint

__all__ = ["MODELS", "ModelEntry", "check_name", "files_sha256", "resolve"]

Kind = Literal["catalogue", "folder", "gguf", "hub"]

HUB_IDS = {"minilm-l6": "sentence-transformers/all-MiniLM-L6-v2"}
"""Hub ids with the weights of a short name, used if no installed package registers the name."""

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+))?")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
# Subfolders hold other formats, except those of modules (1_Pooling); consolidated weights are a
# second copy of the same ones.
_IGNORED = ["[!0-9]*/*", "[0-9][!_]*/*", "consolidated*", "*.fp16.*", "*.onnx"]
# The place and the library that a model was loaded with do not change its states.
_NOT_SETTINGS = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
    "quantization_config",
)


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """A model with a short name, which another package registers with an entry point of the group
    `layerscope.models`. `summary` says how it was trained or stored."""

    kind: ClassVar[str] = "model"
    shelf: ClassVar[str] = "models"

    title: str
    parameters: int
    blocks: int
    width: int
    quantization: str | None = None

    def facts(self) -> dict[str, Any]:
        """Return the facts for the marker of its folder."""
        return {**super().facts(), "title": self.title, "quantization": self.quantization}


MODELS = Catalogue(ModelEntry, "layerscope.models")


def catalogue() -> dict[str, ModelEntry]:
    """Return every registered model by name."""
    return MODELS.all()


@dataclass(frozen=True)
class Source:
    """A model's files on this machine. `path` is the folder to load from; `gguf` names the file of
    a GGUF source; `inside` is the folder that was named, which may hold `path`."""

    kind: Kind
    name: str
    path: Path
    weights: tuple[Path, ...]
    revision: str | None = None
    gguf: str | None = None
    quantization: str | None = None
    license: str | None = None
    pickled: bool = False
    inside: Path | None = None

    @property
    def pipeline(self) -> Path | None:
        """The sentence-transformers folder that holds the model; None for another model."""
        root = self.inside or self.path
        return root if (root / "modules.json").is_file() else None

    def weights_sha256(self) -> str:
        """Return the fingerprint of the weight files, without loading the model."""
        return files_sha256(self.weights)

    def normalizes(self) -> bool:
        """Return whether the model's own pipeline scales its vectors to length 1."""
        if self.pipeline is None:
            return False
        modules = _pipeline_modules(self.pipeline)
        return any(str(module.get("type", "")).endswith(".Normalize") for module in modules)

    def exported(self) -> str | None:
        """Return what an export of layerscope was cut from, in words; None for anything else."""
        facts = _marker(self.path)
        base = facts.get("base")
        if facts.get("kind") not in ("export", "encoder") or not isinstance(base, dict):
            return None
        cut = f"read at layer {facts.get('layer')}"
        if facts["kind"] == "encoder":
            cut = f"blocks {facts.get('blocks')}"
        return one_line(f"{base.get('name')}, {cut}")


def resolve(
    spec: str | Path,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Source:
    """Find the files of a model, downloading them if that is allowed and needed."""
    text = str(spec)
    if text in catalogue() or exists(text):
        if revision is not None:
            raise ModelError(f"{text} has one version only: leave out revision={revision!r}.")
        if text in catalogue():
            return _local_source(catalogue()[text].fetch(), text, "catalogue", False)
        path = Path(text).expanduser()
        name = one_line(Path(os.path.abspath(path)).name)
        return _local_source(path, name, "folder", allow_pickle)
    if text in HUB_IDS:
        try:
            return resolve(HUB_IDS[text], revision=revision)
        except (OfflineError, DownloadError) as error:
            raise type(error)(f"{error} {zoo_hint(text)}") from error
    repo, named = _hub_id(spec)
    if revision and named and revision != named:
        raise ModelError(f"two revisions were given: {text!r} and revision={revision!r}.")
    folder, commit = hub_snapshot(
        repo, revision or named, pickles=allow_pickle, code=trust_remote_code
    )
    return _local_source(folder, repo, "hub", allow_pickle, commit)


def check_name(spec: str | Path) -> None:
    """Raise an error for a name that no model can have: no catalogue name, nothing on this machine,
    no hub id. Nothing is downloaded."""
    if str(spec) not in (*catalogue(), *HUB_IDS) and not exists(spec):
        _hub_id(spec)


def _hub_id(spec: str | Path) -> tuple[str, str | None]:
    """Return the repository and the revision, if any, that a name asks for."""
    text = str(spec)
    check_zoo("model", text)
    match = _HUB_ID.fullmatch(text)
    is_path = isinstance(spec, Path) or text.startswith((".", "~", "/"))
    if match is not None and not is_path:
        return match["repo"], match["revision"]
    if is_path or "/" in text or text.endswith(".gguf"):
        raise ModelError(
            f"no such file or folder: {text}. Catalogue names: {', '.join(catalogue())}. "
            f"{MODEL_FORMS}"
        )
    raise UnknownNameError("model", text, catalogue(), MODEL_FORMS)


def _local_source(
    root: Path, name: str, kind: Kind, allow_pickle: bool, revision: str | None = None
) -> Source:
    if root.is_file():
        if root.suffix != ".gguf":
            raise ModelError(f"{root} is a single file, and no .gguf file. {MODEL_FORMS}")
        return _gguf_source(root, root.stem)
    path = _transformer_folder(root)
    weights = sorted(path.glob("*.safetensors"))
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) > 1 and not weights:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelError(
            f"{path} holds {len(gguf_files)} GGUF files ({names}). Give the path of one of them."
        )
    if gguf_files and not weights:
        return _gguf_source(gguf_files[0], name, revision)
    config = read_config(path)
    facts = _marker(path)
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    return Source(
        kind=kind,
        name=name,
        path=path,
        weights=tuple(weights or _pickled_weights(path, allow_pickle)),
        revision=facts.get("version") if kind == "catalogue" else revision,
        quantization=facts.get("quantization") or (method if isinstance(method, str) else None),
        license=facts.get("license"),
        pickled=not weights,
        inside=root,
    )


def _pickled_weights(path: Path, allow_pickle: bool) -> list[Path]:
    weights = sorted(file for pattern in _PICKLES for file in path.glob(pattern))
    if not weights:
        raise ModelError(
            f"{path} holds no weights: no *.safetensors and no .gguf file. Of the hub, pickled "
            f"weights are fetched with allow_pickle=True. {MODEL_FORMS}"
        )
    if not allow_pickle:
        raise ModelError(
            f"{path} holds pickled weights only ({weights[0].name}), and unpickling can run code. "
            "Convert them to safetensors, or pass allow_pickle=True if you trust their origin."
        )
    return weights


def _gguf_source(file: Path, name: str, revision: str | None = None) -> Source:
    # By convention the file name says how the weights were quantized.
    match = re.search(r"(?<![A-Za-z])(I?Q\d\w*|B?F16|F32)(?![A-Za-z])", file.stem, re.IGNORECASE)
    quantization = match[1].upper() if match else "GGUF"
    return Source(
        "gguf", name, file.parent, (file,), revision, gguf=file.name, quantization=quantization
    )


def _transformer_folder(path: Path) -> Path:
    """Return the folder of the transformer: older sentence-transformers folders keep it in a
    subfolder that modules.json names."""
    if (path / "config.json").is_file() or not (path / "modules.json").is_file():
        return path
    name = next((module.get("path", "") for module in _pipeline_modules(path)), "")
    # a plain name is a subfolder, not a way out
    if is_plain_name(name) and (path / name / "config.json").is_file():
        return path / name
    return path


def _pipeline_modules(root: Path) -> list[dict[str, Any]]:
    """Return the modules of a sentence-transformers folder."""
    modules = read_json(root / "modules.json", expect=list, error=ModelError)
    return [module for module in modules if isinstance(module, dict)]


def _marker(path: Path) -> dict[str, Any]:
    file = path / MARKER
    facts: dict[str, Any] = read_json(file, error=ModelError) if file.is_file() else {}
    return facts


def read_config(path: Path) -> dict[str, Any]:
    """Return the folder's config.json."""
    file = path / "config.json"
    if not file.is_file():
        hint = MODEL_FORMS
        if (path / "adapter_config.json").is_file():
            hint = f"It is an adapter: load its base model and pass adapters=[{str(path)!r}]."
        elif (path / MANIFEST).is_file():
            hint = f"It is the folder of a run: open it with load_run({str(path)!r})."
        raise ModelError(f"{path} is not a model folder: it holds no config.json. {hint}")
    config: dict[str, Any] = read_json(file, error=ModelError)
    if not isinstance(config.get("model_type", ""), str):
        raise ModelError(f"{file} names a model_type that is not text: {config['model_type']!r}.")
    return config


def hub_snapshot(
    repo: str, revision: str | None, *, pickles: bool = False, code: bool = False
) -> tuple[Path, str]:
    """Return the local folder of a hub repository and its commit."""
    from huggingface_hub import snapshot_download

    patterns = [*_FILES, *(["*.bin"] if pickles else []), *(["*.py"] if code else [])]
    with hub_explained("model", repo, revision, f"{repo}@{revision}" if revision else repo):
        folder = snapshot_download(
            repo,
            revision=revision,
            local_files_only=is_offline(),
            allow_patterns=patterns,
            ignore_patterns=_IGNORED,
        )
    return Path(folder), Path(folder).name


def files_sha256(paths: Iterable[Path]) -> str:
    """Return one sha256 over several files, by name and content; of a single file, its own."""
    ordered = sorted(paths)
    if len(ordered) == 1:
        return file_sha256(ordered[0])
    digest = hashlib.sha256()
    for path in ordered:
        digest.update(f"{path.name}\0{file_sha256(path)}\n".encode())
    return digest.hexdigest()


def module_sha256(module: nn.Module) -> str:
    """Return one sha256 over the names, types, shapes and bytes of a module's state."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}\0{value!r}\n".encode())
            continue
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
        flat = value.detach().to("cpu").contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()


def settings_sha256(module: nn.Module, tokenizer: object) -> str:
    """Return one sha256 over what decides a state besides the weights: the model's configuration
    and its tokenizer or processor."""
    config = getattr(module, "config", None)
    facts = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    for name in _NOT_SETTINGS:
        facts.pop(name, None)
    if not hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "to_dict"):  # a processor
        text = json.dumps([facts, tokenizer.to_dict()], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        words = json.dumps(sorted(getattr(tokenizer, "get_vocab", dict)().items()))
    else:
        words = backend.to_str()
    text = json.dumps(facts, sort_keys=True, default=str) + "\0" + words
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
