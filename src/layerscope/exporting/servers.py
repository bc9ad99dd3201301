"""The programs that open an exported folder, by rules that read the folder's files.

The rules follow the programs' own sources: text-embeddings-inference (`backends/candle/src/lib.rs`,
`router/src/lib.rs`), vLLM (`model_executor/models/registry.py`, `transformers_utils/config.py`) and
llama.cpp's conversion. To add a program, write a function that returns the problems of a folder,
and add it to `SERVERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.core.readout import Readout
from layerscope.core.templates import POOLINGS
from layerscope.errors import ExportError, UnknownNameError
from layerscope.exporting.cutting import needs_filler
from layerscope.exporting.pipeline import MODULES, modules_of
from layerscope.models import LoadedModel

_CANDLE_ANYWHERE = (
    *("bert", "camembert", "distilbert", "modernbert", "mpnet", "nomic_bert", "roberta"),
    "xlm-roberta",
)
_CANDLE_CUDA = ("gemma3_text", "llama", "mistral", "new", "qwen2", "qwen3")
_VLLM = (
    *("BertModel", "Gemma2Model", "Gemma3TextModel", "GteModel", "LlamaModel", "MistralModel"),
    *("ModernBertModel", "NomicBertModel", "Qwen2Model", "RobertaModel", "XLMRobertaModel"),
)
_GGUF = ("Gemma3TextModel", "LlamaModel", "MistralModel")
_POOLINGS = ("pooling_mode_cls_token", "pooling_mode_lasttoken", "pooling_mode_mean_tokens")
"""The settings of a Pooling module that every server reads."""
_NO_GGUF = "there is no GGUF file: write it with `layerscope export --format gguf`"
_NO_GRAPH = "there is no onnx/model.onnx: write it with `layerscope export --format onnx`"
_NORM = "it always applies the final norm: export a readout with the norm `applied`"
_ROUTER = "it does not read a Router: improve without queries"
_POOLING = "it pools by `cls`, `mean` or `last` only: export a readout with one of these"


@dataclass(frozen=True)
class FolderFacts:
    """The facts that a program reads in a sentence-transformers folder before the weights."""

    config: dict[str, Any]
    modules: tuple[str, ...]
    has_known_pooling: bool
    inner_state: bool
    has_graph: bool = False
    has_gguf: bool = False

    @property
    def architecture(self) -> str:
        """The class that the configuration names first."""
        classes = self.config.get("architectures")
        return str(classes[0]) if isinstance(classes, list) and classes else "none"

    def count(self, module: str) -> int:
        """Return the number of modules of a kind."""
        return sum(name.rpartition(".")[2] == module for name in self.modules)


def read_facts(folder: Path) -> FolderFacts:
    """Read a folder's configuration files."""
    modules = modules_of(folder)
    places = {kind.rpartition(".")[2]: place for place, kind in modules}
    transformer = places.get("Transformer", folder)
    pooling: dict[str, Any] = {}
    if "Pooling" in places:
        pooling = read_json(places["Pooling"] / "config.json", error=ExportError)
    settings = transformer / "sentence_bert_config.json"
    output: Any = read_json(settings, error=ExportError) if settings.is_file() else {}
    for name in ("modality_config", "text", "method_output_name"):
        output = output.get(name) if isinstance(output, dict) else None
    return FolderFacts(
        config=read_json(transformer / "config.json", error=ExportError),
        modules=tuple(kind for _, kind in modules),
        has_known_pooling=any(pooling.get(name) is True for name in _POOLINGS),
        inner_state=isinstance(output, list) and output[:1] == ["hidden_states"],
        has_graph=(folder / "onnx" / "model.onnx").is_file(),
        has_gguf=any((folder / "gguf").glob("*.gguf")),
    )


def facts_of(model: LoadedModel, readout: Readout, head: bool = False) -> FolderFacts:
    """Return the facts of the folder of a readout, with or without a head, whatever the layer."""
    names = ["Transformer", "Pooling"]
    if head or readout.centering != "none":
        names.append("Dense")
    config: Any = model.module.config
    pooling = POOLINGS.get(readout.pooling).sentence_transformers
    return FolderFacts(
        config={**config.to_dict(), "architectures": [type(model.module).__name__]},
        modules=tuple(f"{MODULES}.{name}" for name in names),
        has_known_pooling=f"pooling_mode_{pooling}" in _POOLINGS,
        inner_state=needs_filler(model, readout.final_norm),
    )


def _sentence_transformers(facts: FolderFacts) -> list[str]:
    return []


def _onnx_runtime(facts: FolderFacts) -> list[str]:
    return [] if facts.has_graph else [_NO_GRAPH]


def _tei_start(facts: FolderFacts) -> list[str]:
    """Return the problems of text-embeddings-inference before it chooses a backend."""
    problems = [] if facts.has_known_pooling else [_POOLING]
    if facts.config.get("max_position_embeddings") is None:
        problems.append("config.json has no max_position_embeddings, which it needs")
    if facts.count("Router"):
        problems.append(_ROUTER)
    return problems


def _tei_weights(facts: FolderFacts, model_types: Sequence[str]) -> list[str]:
    """Return the problems of text-embeddings-inference with the weights themselves."""
    problems = []
    model_type = facts.config.get("model_type")
    if model_type not in model_types:
        problems.append(f"it has no model of the type {model_type!r} there")
    if facts.inner_state:
        problems.append(_NORM)
    for name in facts.modules:
        if name.endswith(".Dense") and name != f"{MODULES}.Dense":
            problems.append(f"it skips a Dense module that is called {name!r}")
    return problems


def _tei_cpu(facts: FolderFacts) -> list[str]:
    weights = [] if facts.has_graph else _tei_weights(facts, _CANDLE_ANYWHERE)
    return _tei_start(facts) + weights + ([_NO_GRAPH] if weights else [])


def _tei_gpu(facts: FolderFacts) -> list[str]:
    return _tei_start(facts) + _tei_weights(facts, (*_CANDLE_ANYWHERE, *_CANDLE_CUDA))


def _vllm(facts: FolderFacts) -> list[str]:
    problems = []
    if facts.architecture not in _VLLM:
        problems.append(f"it has no embedding model {facts.architecture!r}")
    if not facts.has_known_pooling:
        problems.append(_POOLING)
    if facts.inner_state:
        problems.append(_NORM)
    if facts.count("Dense") > 1:
        problems.append("it reads only the first Dense module")
    if facts.count("Router"):
        problems.append(_ROUTER)
    return problems


def _llama_cpp(facts: FolderFacts) -> list[str]:
    if facts.has_gguf:
        return []
    problems = []
    if facts.architecture not in _GGUF:
        problems.append(f"layerscope writes GGUF files of {', '.join(_GGUF)} only")
    if facts.count("Dense") or facts.count("Router"):
        problems.append("a GGUF file holds no Dense module: export without a head or centering")
    if facts.inner_state:
        problems.append(_NORM)
    if not facts.has_known_pooling:
        problems.append(_POOLING)
    return problems or [_NO_GGUF]


@dataclass(frozen=True)
class Server:
    """A program that serves embeddings; `problems` returns what keeps it from opening a folder."""

    title: str
    problems: Callable[[FolderFacts], list[str]]


SERVERS = {
    "sentence-transformers": Server("sentence-transformers", _sentence_transformers),
    "onnx": Server("ONNX Runtime and transformers.js", _onnx_runtime),
    "tei": Server("text-embeddings-inference on a CPU", _tei_cpu),
    "tei-gpu": Server("text-embeddings-inference on a GPU", _tei_gpu),
    "vllm": Server("vLLM", _vllm),
    "llama.cpp": Server("llama.cpp and Ollama", _llama_cpp),
}


def check_servers(folder: Path, names: Sequence[str] = tuple(SERVERS)) -> dict[str, list[str]]:
    """Return, for each program, what keeps it from opening a folder; nothing where it opens.

        check_servers(Path("exports/small"), ["tei", "vllm"])

    By the programs' sources: no program is started.
    """
    check_names(names)
    facts = read_facts(folder)
    return {name: SERVERS[name].problems(facts) for name in names}


def check_names(names: Sequence[str]) -> None:
    """Raise if a name is no server's."""
    for name in names:
        if name not in SERVERS:
            raise UnknownNameError("server", name, SERVERS)


def plan_formats(facts: FolderFacts, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what keeps programs from opening a folder, and the formats that the others need."""
    obstacles = []
    formats = set()
    for name in names:
        server = SERVERS[name]
        problems = server.problems(facts)
        if problems == [_NO_GGUF]:
            formats.add("gguf")
        elif problems and not server.problems(replace(facts, has_graph=True)):
            formats.add("onnx")
        else:
            obstacles += [f"{server.title}: {problem}" for problem in problems]
    return obstacles, sorted(formats)


def opening_words(problems_by_server: Mapping[str, Sequence[str]]) -> str:
    """Return which programs open a folder.

    >>> opening_words({"onnx": ["there is no onnx/model.onnx"], "vllm": []})
    'vLLM'
    """
    opening = [SERVERS[name].title for name, found in problems_by_server.items() if not found]
    return ", ".join(opening)
