"""A model on its way to workers: by name, so that each loads it, or as an object, sent once."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import LoadedModel, open_model
from layerscope.models.settings import pick_device

_SAME = ("weights_sha256", "settings_sha256", "family", "architecture", "dtype", "bidirectional", "adapters")
_ROOM = 1.5 * 2**30  # beside the weights: libraries, states of a batch, a shard


@dataclass
class ModelRecipe:
    """How a worker gets the model that the driver has. `spec` is what the user gave, or the model itself as bytes."""

    spec: str | Path | bytes
    options: dict[str, Any]
    offline: bool
    identity: dict[str, Any]

    @property
    def memory(self) -> int:
        """About what one copy takes, while it is loaded at least."""
        size = {"float16": 2, "bfloat16": 2, "float64": 8}.get(str(self.identity.get("dtype")), 4)
        return int(1.2 * size * (self.identity.get("parameters") or 0) + _ROOM)

    def open(self) -> LoadedModel:
        """The model, in a worker; an error where it is not the one the driver has."""
        if isinstance(self.spec, bytes):
            model: LoadedModel = pickle.loads(self.spec)  # noqa: S301 - made by the driver of this very run
            model.module.to(pick_device(self.options.get("device")))
            return model
        try:
            model = open_model(self.spec, None, self.offline, self.options)
        except ModelError as error:
            if isinstance(self.spec, Path):
                raise ModelError(f"{error} A model's folder must lie under the same path on every machine.") from error
            raise
        differs = [name for name in _SAME if model.identity.get(name) != self.identity.get(name)]
        if differs:
            raise ModelError(
                f"{model.name} is not the same model here as where the run was started: {differs[0]} is "
                f"{model.identity.get(differs[0])!r}, not {self.identity.get(differs[0])!r}. Put the same files on every machine."
            )
        return model


def make_recipe(given: Any, loaded: LoadedModel, offline: bool, options: dict[str, Any]) -> ModelRecipe:
    """What workers need to get the model that the user gave."""
    if str(options.get("device") or "").startswith("cuda:"):
        raise LayerscopeError(
            f"device {options['device']!r}: a worker sees only the GPUs that it was given. Use cuda, or leave it out."
        )
    if isinstance(given, (str, Path)):
        path = Path(given).expanduser()
        spec: str | Path = path.resolve() if path.exists() else given
        return ModelRecipe(spec, options, offline, loaded.identity)
    return ModelRecipe(_pickled(loaded), options, offline, loaded.identity)


def driver_options(given: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How the driver itself loads the model, which only tokenizes and plans with it: on its CPU, whatever workers do."""
    if not isinstance(given, (str, Path)):
        return options
    return {**{k: v for k, v in options.items() if k != "device_map"}, "device": "cpu"}


def _pickled(model: LoadedModel) -> bytes:
    """A model that exists only here, as bytes, on the CPU."""
    from ray import cloudpickle

    if len({p.device for p in model.module.parameters()}) > 1:
        raise LayerscopeError(
            f"{model.name} is spread over devices and cannot be sent to workers. Give its name or folder instead."
        )
    try:
        whole = model if model.device.type == "cpu" else copy.deepcopy(model)
        whole.module.to("cpu")
        return bytes(cloudpickle.dumps(whole))
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise LayerscopeError(
            f"{model.name} was given as an object that cannot be sent to workers ({error}). Save it with save_pretrained and "
            "give the folder."
        ) from error
