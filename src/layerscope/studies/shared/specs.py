"""Models of a study: where each has settings of its own, they are written behind its name.

`org/base?bidirectional=true&adapter=org/lora&label=LLM2Vec` is the model `org/base` with these settings; the others of the study
keep theirs. Settings are those of `layerscope.load`, with `adapter` for one adapter (repeatable), and `label`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.models import LoadedModel, catalogue, load, open_model
from layerscope.models.adapters import locate
from layerscope.models.fingerprint import files_sha256
from layerscope.models.source import resolve
from layerscope.studies.base import Request


@dataclass(frozen=True)
class Spec:
    """One model of a study: what to load, with which settings of its own, and what to call it."""

    model: str | Path | LoadedModel
    label: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, request: Request) -> LoadedModel:
        """Load it."""
        return open_model(self.model, None, request.offline, {**request.model_options, **self.options})

    @property
    def on_hub(self) -> bool:
        """Whether it is a hub id (with its revision), and neither a catalogue name nor something on this machine."""
        if isinstance(self.model, LoadedModel) or str(self.model) in catalogue():
            return False
        return not Path(str(self.model)).expanduser().exists()

    def identity(self, request: Request) -> dict[str, Any]:
        """What tells it from other models, without loading it; a hub model is known by its name, without a download."""
        if isinstance(self.model, LoadedModel):
            known = {
                k: self.model.identity.get(k) for k in ("name", "weights_sha256", "settings_sha256", "dtype", "bidirectional")
            }
            return {**known, "label": self.label}
        settings = {**request.model_options, **self.options}
        adapters = settings.pop("adapters", ())
        plain = {k: str(v) for k, v in settings.items() if k not in ("device", "device_map") and v not in (None, False)}
        known = {"label": self.label, "options": plain}
        if self.on_hub:
            return {**known, "hub": str(self.model), "adapters": [str(a) for a in adapters]}
        allowed = {k: settings[k] for k in ("revision", "allow_pickle", "trust_remote_code") if settings.get(k)}
        source = resolve(self.model, request.offline, **allowed)
        known |= {"weights_sha256": source.weights_sha256(), "settings_sha256": source.settings_files_sha256()}
        return {**known, "adapters": [files_sha256(locate(a, request.offline).glob("*")) for a in adapters]}


def read_specs(models: list[str | Path | LoadedModel]) -> list[Spec]:
    """The models of a request, each with a name of its own.

    >>> [spec.label for spec in read_specs(["a/b", "a/b?bidirectional=true", "a/b"])]
    ['a/b', 'a/b bidirectional', 'a/b (2)']
    """
    found = [_read(model) for model in models]
    seen: dict[str, int] = {}
    out = []
    for spec in found:
        seen[spec.label] = seen.get(spec.label, 0) + 1
        label = spec.label if seen[spec.label] == 1 else f"{spec.label} ({seen[spec.label]})"
        out.append(Spec(spec.model, label, spec.options))
    return out


def _read(given: str | Path | LoadedModel) -> Spec:
    if isinstance(given, LoadedModel):
        return Spec(given, given.name)
    if isinstance(given, Path) or "?" not in given or Path(given).exists():
        return Spec(given, _short(given))
    name, _, query = given.partition("?")
    options: dict[str, Any] = {}
    label = None
    known = set(inspect.signature(load).parameters) - {"spec", "offline", "adapters"} | {"adapter", "label"}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            raise UnknownNameError(f"setting in {given!r}", key, known)
        if key == "label":
            label = value
        elif key == "adapter":
            options["adapters"] = (*options.get("adapters", ()), value)
        elif key in ("bidirectional", "trust_remote_code", "allow_pickle"):
            if value.lower() not in ("", "true", "false"):
                raise LayerscopeError(f"{key} in {given!r} is true or false, not {value!r}.")
            options[key] = value.lower() != "false"
        else:
            options[key] = value
    extra = "".join(f" {k}" if v is True else f" {k}={v}" for k, v in options.items() if k != "adapters" and v is not False)
    extra += "".join(f" + {_short(adapter)}" for adapter in options.get("adapters", ()))
    return Spec(name, label or _short(name) + extra, options)


def _short(model: str | Path) -> str:
    """A folder by its name, anything else as it was written."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() and str(model) not in catalogue() else str(model)
