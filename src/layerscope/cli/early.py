"""What can be refused before torch and models are loaded: the commonest mistakes are told within a
second.

The functions of the library check the same again, and more. What cannot be told without loading is
left to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from layerscope.cache import cache_dir
from layerscope.catalogue import MODEL_FORMS, MODEL_NAMES, ZOO_MODELS
from layerscope.core.files import exists
from layerscope.core.runs import no_run
from layerscope.errors import (
    ExportError,
    LayerscopeError,
    ModelError,
    RunFolderError,
    UnknownNameError,
)

_LOADING = (
    "improve",
    "profile",
    "evaluate",
    "probe",
    "export",
    "embed",
    "search",
    "compare",
)  # others name models of the atlas
_PREVIEW = 20 * 2**20  # bytes: of larger files nothing is read twice
# The registry of metrics imports torch; a test keeps these the same.
METRIC_NAMES = (
    "alpha_req", "anisotropy", "curvature", "dataset_entropy", "dime", "effective_rank", "entropy_rank",
    "infonce", "infonce_mi", "intrinsic_dimension", "lidar", "lidar_rank", "nesum", "prompt_entropy",
    "rankme", "sink_first", "sink_ratio", "state_norm",
)  # fmt: skip


def check_arguments(command: str, values: Mapping[str, Any]) -> None:
    """Look at what was typed, by the names of its parameters."""
    for name, check in _CHECKS.items():
        if values.get(name) not in (None, [], ""):
            check(values[name], {**values, "command": command})


def _model(given: Any, values: Mapping[str, Any]) -> None:
    text = str(given)
    if values["command"] not in _LOADING or text in (*MODEL_NAMES, *ZOO_MODELS) or exists(text):
        return
    plugins = {point.name for point in entry_points(group="layerscope.models")} - {"zoo"}
    if plugins or (
        "/" in text and not text.startswith((".", "~", "/")) and not text.endswith(".gguf")
    ):
        return
    names = sorted((*MODEL_NAMES, *ZOO_MODELS))
    if "/" in text or text.endswith(".gguf"):
        raise ModelError(
            f"no such file or folder: {text}. Catalogue names: {', '.join(names)}. {MODEL_FORMS}"
        )
    raise UnknownNameError("model", text, names, MODEL_FORMS)


def _models(given: Any, values: Mapping[str, Any]) -> None:
    for one in given:
        _model(one, values)


def _data(given: Any, values: Mapping[str, Any]) -> None:
    from layerscope.data.corpus import preview, refuse_missing

    file = Path(str(given)).expanduser()
    if values["command"] not in ("improve", "embed", "search", "compare") and not values.get(
        "column"
    ):
        refuse_missing(given)  # other commands read images, too
    elif not file.is_file() or file.stat().st_size <= _PREVIEW:
        preview(given, values.get("column"), values.get("encoding"))


def _labels(
    given: Any, values: Mapping[str, Any], what: str = "labeled examples as .csv, .tsv or .jsonl"
) -> None:
    if values["command"] in ("improve", "compare") and not exists(str(given)):
        raise LayerscopeError(f"there is no file {given}. Give {what}.")


def _out(given: Any, values: Mapping[str, Any]) -> None:
    if (
        values["command"] not in ("improve", "export")
        or values.get("overwrite")
        or not exists(Path(given))
    ):
        return
    if not given.is_dir():
        raise ExportError(f"{given} is a file; an export needs a folder. Choose another out=.")
    inside = {file.name for file in given.iterdir()}
    if inside and not (
        values["command"] == "improve" and "manifest.json" in inside
    ):  # which may be this very run
        raise ExportError(
            f"{given} exists and is not empty. Choose another out=, or overwrite=True to replace what is there."
        )


def _layer(given: Any, values: Mapping[str, Any]) -> None:
    blocks, layer = blocks_of(str(values["model"])), str(given).removeprefix("-")
    if blocks is not None and layer.isdigit() and int(layer) > blocks + str(given).startswith("-"):
        raise ExportError(
            f"layer {given} does not exist: {values['model']} has layers 0 to {blocks} (or -1 for the last)."
        )


def _layers(given: Any, values: Mapping[str, Any]) -> None:
    for one in given if isinstance(given, list) and "model" in values else ():
        _layer(one, values)


def blocks_of(model: str) -> int | None:
    """How many blocks a model on this machine has, by its configuration; None where that does not
    say."""
    folders = [
        Path(model).expanduser(),
        *sorted((cache_dir() / "models").glob(f"{model}-[0-9]*") if "/" not in model else []),
    ]
    for folder in folders:
        try:
            told = json.loads((folder / "config.json").read_text(encoding="utf-8")).get(
                "num_hidden_layers"
            )
        except (OSError, ValueError, AttributeError):
            continue
        return told if isinstance(told, int) else None
    return None


def _readout(given: Any, values: Mapping[str, Any]) -> None:
    from layerscope.core.readout import Readout

    for name in [given] if isinstance(given, str) else given:
        if name != "default" and "all" not in name.split("/"):
            Readout.parse(name)


def _templates(given: Any, values: Mapping[str, Any]) -> None:
    from layerscope.core.templates import get_template

    for name in given:
        get_template(name)


def _metrics(given: Any, values: Mapping[str, Any]) -> None:
    if values["command"] == "profile" and not entry_points(group="layerscope.metrics"):
        for name in given:
            if name not in (*METRIC_NAMES, "all", "paper"):
                raise UnknownNameError(
                    "metric", name, METRIC_NAMES, "`layerscope metrics` lists them."
                )


def _push(given: Any, values: Mapping[str, Any]) -> None:
    from layerscope.exporting.pushing import check_address, check_token

    if values.get("offline"):
        raise ExportError("push= sends to the hub, and offline= forbids it. Give one of them.")
    if not values.get("yes") and not sys.stdin.isatty():
        raise ExportError(
            "push= asks before it sends, and nobody can answer here. To send without a question: yes=True."
        )
    check_address(str(given))
    check_token()


def _layout(given: Any, values: Mapping[str, Any]) -> None:
    if given != "pca":
        from layerscope.maps.layout import check_layout

        check_layout(given)


def _log(given: Any, values: Mapping[str, Any]) -> None:
    from layerscope.loggers import LOGGERS

    for name in given:
        LOGGERS.get(name)


def _runs(given: Any, values: Mapping[str, Any]) -> None:
    if values.get("labels") is not None:
        return  # one of them is a model
    for run in given:
        if not exists(run) and str(run) not in MODEL_NAMES and not str(run).endswith(".gguf"):
            raise RunFolderError(no_run(Path(run)))


_CHECKS: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "model": _model,
    "models": _models,
    "data": _data,
    "queries": lambda given, values: _data(given, {**values, "column": None}),
    "labels": _labels,
    "pairs": lambda given, values: _labels(
        given, values, "pairs as .csv, .tsv or .jsonl with the columns query and document"
    ),
    "readout": _readout,
    "readouts": _readout,
    "templates": _templates,
    "layer": _layer,
    "layers": _layers,
    "out": _out,
    "layout": _layout,
    "log": _log,
    "push": _push,
    "metrics": _metrics,
    "runs": _runs,
}
