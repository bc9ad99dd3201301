"""The identity of the model of a result, and the test of whether two are the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from layerscope.core.formatting import shorten

__all__ = ["ModelIdentity", "model_key"]


def model_key(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a model's identity that decides its states."""
    return {name: identity.get(name) for name in DECISIVE}


@dataclass(frozen=True)
class ModelIdentity:
    """The facts that decide a model's states: weights, settings (configuration and tokenizer), code,
    precision, attention and adapters.

    A field that is None is not known. Two identities are the same when no field that both know
    differs.

    >>> model = ModelIdentity("a", weights_sha256="12", dtype="float32")
    >>> model.same_as(ModelIdentity("another name", weights_sha256="12"))
    True
    >>> model.difference(ModelIdentity("a", weights_sha256="12", dtype="float16"))
    'dtype (float32 and float16)'
    """

    name: str
    weights_sha256: str | None = None
    settings_sha256: str | None = None
    family: str | None = None
    architecture: str | None = None
    dtype: str | None = None
    bidirectional: bool | None = None
    adapters: tuple[str, ...] | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the identity in a loaded model's `identity`, or in the `model` entry of a manifest."""
        values = model_key(facts)
        if values["adapters"] is not None:
            # adapters differ by their weights; where they came from does not matter
            values["adapters"] = tuple(
                str(adapter.get("sha256", adapter) if isinstance(adapter, Mapping) else adapter)
                for adapter in values["adapters"]
            )
        return cls(str(facts.get("name", "")), **values)

    def difference(self, second: ModelIdentity) -> str | None:
        """Return the first difference of two models, in words; None if they are the same."""
        for name in DECISIVE:
            values = [getattr(self, name), getattr(second, name)]
            if None not in values and values[0] != values[1]:
                return f"{name} ({shorten(str(values[0]), 16)} and {shorten(str(values[1]), 16)})"
        return None

    def same_as(self, second: ModelIdentity) -> bool:
        """Return whether the two compute the same states from the same text."""
        return self.difference(second) is None


# Everything besides the text that decides a state. The names are those of the manifest's `model`
# entry.
DECISIVE = tuple(field.name for field in fields(ModelIdentity) if field.name != "name")
