"""Which programs open an exported folder, by rules that read the folder's files.

The rules follow the programs' own sources: text-embeddings-inference (`backends/candle/src/lib.rs`,
`router/src/lib.rs`), vLLM (`model_executor/models/registry.py`, `transformers_utils/config.py`) and
llama.cpp's conversion. To add a program, write a function that returns what is in the way, and add
it to `SERVERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.json import read_json
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout
from layerscope.errors import ExportError, UnknownNameError
from layerscope.exporting.cutting import needs_filler
from layerscope.exporting.formats.sentence_transformers import modules_of
from layerscope.models import LoadedModel

_MODULES = "sentence_transformers.models"
_CANDLE_ANYWHERE = ("bert", "camembert", "distilbert", "modernbert", "mpnet", "nomic_bert",
                    "roberta", "xlm-roberta")  # fmt: skip
_CANDLE_CUDA = ("gemma3_text", "llama", "mistral", "new", "qwen2", "qwen3")
_VLLM = ("BertModel", "Gemma2Model", "Gemma3TextModel", "GteModel", "LlamaModel", "MistralModel",
         "ModernBertModel", "NomicBertModel", "Qwen2Model", "RobertaModel",
         "XLMRobertaModel")  # fmt: skip
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
"""The settings of a Pooling module that every server reads, and what they mean."""
_GGUF = ("Gemma3TextModel", "LlamaModel", "MistralModel")
_NO_GGUF = "there is no GGUF file: write it with `layerscope export --format gguf`"
_WRITE_GRAPH = "write a graph with `layerscope export --format onnx`"
_APPLIED = "export a readout with the norm `applied`"


@dataclass(frozen=True)
class FolderFacts:
    """What a program reads in a sentence-transformers folder before it loads the weights."""

    config: dict[str, Any]
    modules: tuple[str, ...]
    poolings: frozenset[str]
    inner_state: bool
    has_graph: bool
    has_gguf: bool

    @property
    def architecture(self) -> str:
        """The class that the configuration names first."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else "none"

    @property
    def model_type(self) -> str:
        """The name of the architecture in transformers."""
        return str(self.config.get("model_type"))

    def count(self, module: str) -> int:
        """Return how many modules of a kind the folder has."""
        return sum(name.rpartition(".")[2] == module for name in self.modules)


def read_facts(folder: Path) -> FolderFacts:
    """Read a folder's configuration files."""
    found = modules_of(folder)
    places = {kind.rpartition(".")[2]: place for place, kind in found}
    inside = places.get("Transformer", folder)
    pooling: dict[str, Any] = {}
    if "Pooling" in places:
        pooling = read_json(places["Pooling"] / "config.json", error=ExportError)
    flags = {name for name, value in pooling.items() if value is True}
    settings = inside / "sentence_bert_config.json"
    output: Any = read_json(settings, error=ExportError) if settings.is_file() else {}
    for name in ("modality_config", "text", "method_output_name"):
        output = output.get(name) if isinstance(output, dict) else None
    return FolderFacts(
        config=read_json(inside / "config.json", error=ExportError),
        modules=tuple(kind for _, kind in found),
        poolings=frozenset(_POOLINGS[name] for name in flags if name in _POOLINGS),
        inner_state=isinstance(output, list) and output[:1] == ["hidden_states"],
        has_graph=(folder / "onnx" / "model.onnx").is_file(),
        has_gguf=any((folder / "gguf").glob("*.gguf")),
    )


def facts_of(model: LoadedModel, readout: Readout) -> FolderFacts:
    """Return what the folder of a readout would hold, whatever the layer."""
    pooling = f"pooling_mode_{POOLINGS.get(readout.pooling).sentence_transformers}"
    dense = ["Dense"] if readout.centering != "none" else []
    config: Any = model.module.config
    return FolderFacts(
        config={**config.to_dict(), "architectures": [type(model.module).__name__]},
        modules=tuple(f"{_MODULES}.{name}" for name in ("Transformer", "Pooling", *dense)),
        poolings=frozenset(_POOLINGS[name] for name in [pooling] if name in _POOLINGS),
        inner_state=needs_filler(model, readout.final_norm),
        has_graph=False,
        has_gguf=False,
    )


def _pooling(facts: FolderFacts) -> list[str]:
    if facts.poolings:
        return []
    return ["it pools by `cls`, `mean` or `last` only: export a readout with one of these"]


def _sentence_transformers(facts: FolderFacts) -> list[str]:
    return []


def _onnx_runtime(facts: FolderFacts) -> list[str]:
    return [] if facts.has_graph else [f"there is no onnx/model.onnx: {_WRITE_GRAPH}"]


def _tei_start(facts: FolderFacts) -> list[str]:
    """Return what stops text-embeddings-inference before it chooses a backend."""
    problems = _pooling(facts)
    if facts.config.get("max_position_embeddings") is None:
        problems.append("config.json has no max_position_embeddings, which it needs")
    if facts.count("Router"):
        problems.append("it does not read a Router: improve without queries")
    return problems


def _tei_weights(facts: FolderFacts, known: Sequence[str]) -> list[str]:
    """Return what keeps text-embeddings-inference from reading the weights themselves."""
    problems = []
    if facts.model_type not in known:
        problems.append(f"it has no model of the type {facts.model_type!r} there")
    if facts.inner_state:
        problems.append(f"it reads the last state, which is after the final norm: {_APPLIED}")
    for name in facts.modules:
        if name.endswith(".Dense") and name != f"{_MODULES}.Dense":
            problems.append(f"it skips a Dense module that is called {name!r}")
    return problems


def _tei_cpu(facts: FolderFacts) -> list[str]:
    problems = _tei_start(facts)
    if not facts.has_graph:
        weights = _tei_weights(facts, _CANDLE_ANYWHERE)
        problems += [f"{problem}; or {_WRITE_GRAPH}" for problem in weights]
    return problems


def _tei_gpu(facts: FolderFacts) -> list[str]:
    return _tei_start(facts) + _tei_weights(facts, (*_CANDLE_ANYWHERE, *_CANDLE_CUDA))


def _vllm(facts: FolderFacts) -> list[str]:
    problems = []
    if facts.architecture not in _VLLM:
        problems.append(f"it has no embedding model {facts.architecture!r}")
    problems += _pooling(facts)
    if facts.inner_state:
        problems.append(f"it applies the final norm without a warning: {_APPLIED}")
    if facts.count("Dense") > 1:
        problems.append("it reads only the first Dense module")
    if facts.count("Router"):
        problems.append("it does not read a Router: improve without queries")
    return problems


def _llama_cpp(facts: FolderFacts) -> list[str]:
    if facts.has_gguf:
        return []
    problems = []
    if facts.architecture not in _GGUF:
        problems.append(f"layerscope writes GGUF files of {', '.join(_GGUF)} only")
    if facts.count("Dense") or facts.count("Router"):
        problems.append(
            "a GGUF file holds no Dense module: export a readout without a head or centering"
        )
    if facts.inner_state:
        problems.append(f"it always applies the final norm: {_APPLIED}")
    problems += _pooling(facts)
    return problems or [_NO_GGUF]


@dataclass(frozen=True)
class Server:
    """A program that serves embeddings; `problems` returns what keeps it from opening a folder."""

    name: str
    title: str
    problems: Callable[[FolderFacts], list[str]]


SERVERS = {
    server.name: server
    for server in (
        Server("sentence-transformers", "sentence-transformers", _sentence_transformers),
        Server("onnx", "ONNX Runtime and transformers.js", _onnx_runtime),
        Server("tei", "text-embeddings-inference on a CPU", _tei_cpu),
        Server("tei-gpu", "text-embeddings-inference on a GPU", _tei_gpu),
        Server("vllm", "vLLM", _vllm),
        Server("llama.cpp", "llama.cpp and Ollama", _llama_cpp),
    )
}


def check_servers(folder: Path, names: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return, for each program, what keeps it from opening a folder; nothing where it opens.

        check_servers(Path("exports/small"), ["tei", "vllm"])

    By the programs' sources: no program is started.
    """
    wanted = list(SERVERS) if names is None else list(names)
    check_names(wanted)
    facts = read_facts(folder)
    return {name: SERVERS[name].problems(facts) for name in wanted}


def check_names(names: Sequence[str]) -> None:
    """Raise if a name is no server's."""
    for name in names:
        if name not in SERVERS:
            raise UnknownNameError("server", name, SERVERS)


def plan_formats(facts: FolderFacts, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what keeps programs from opening a folder, and the formats that have to be written
    beside it for those that it does not keep."""
    problems, formats = [], set()
    for name in names:
        found = SERVERS[name].problems(facts)
        if found == [_NO_GGUF]:
            formats.add("gguf")
        elif found and not SERVERS[name].problems(replace(facts, has_graph=True)):
            formats.add("onnx")
        else:
            problems += [f"{SERVERS[name].title}: {problem}" for problem in found]
    return problems, sorted(formats)


def _opening(problems: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(SERVERS[name].title for name, found in problems.items() if not found)


def opening_words(problems: Mapping[str, Sequence[str]]) -> str:
    """Return which programs open a folder, for a line beside "opens in".

    >>> opening_words({"onnx": ["there is no onnx/model.onnx"], "vllm": []})
    'vLLM (by their sources; `layerscope verify --for all`)'
    """
    return f"{_opening(problems)} (by their sources; `layerscope verify --for all`)"


def opening_section(problems: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the paragraphs of a model card on where a folder opens, and what is in the way
    elsewhere."""
    rest = [
        f"- {SERVERS[name].title}: {'; '.join(found)}" for name, found in problems.items() if found
    ]
    first = f"By their sources, without starting them: {_opening(problems)}."
    return [first, "Not in:\n\n" + "\n".join(rest)] if rest else [first]
