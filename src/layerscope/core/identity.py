"""Which model a result is about, and when two results are about the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from layerscope.core.formatting import shorten

__all__ = ["ModelIdentity", "model_key"]


def model_key(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's identity belongs into the key of anything computed with it."""
    return {name: identity.get(name) for name in DECISIVE}


@dataclass(frozen=True)
class ModelIdentity:
    """What decides a model's states: weights, settings (configuration and tokenizer), code,
    precision, attention and adapters.

    A field that is None is not known. Two identities are the same when no field that both know
    differs.

    >>> one = ModelIdentity("a", weights_sha256="12", dtype="float32")
    >>> one.same_as(ModelIdentity("another name", weights_sha256="12"))
    True
    >>> one.difference(ModelIdentity("a", weights_sha256="12", dtype="float16"))
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
        """From a loaded model's `identity`, or the `model` entry of a manifest."""
        known = model_key(facts)
        if known["adapters"] is not None:
            # adapters are told apart by their weights; where they came from does not matter
            known["adapters"] = tuple(
                str(one.get("sha256", one) if isinstance(one, Mapping) else one)
                for one in known["adapters"]
            )
        return cls(str(facts.get("name", "")), **known)

    def difference(self, other: ModelIdentity) -> str | None:
        """What tells the two models apart, in words; None where they are the same."""
        for name in DECISIVE:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None and mine != theirs:
                return f"{name} ({shorten(str(mine), 16)} and {shorten(str(theirs), 16)})"
        return None

    def same_as(self, other: ModelIdentity) -> bool:
        """Whether the two compute the same states from the same text."""
        return self.difference(other) is None


# Everything besides the text that decides a state. The names are those of the manifest's `model`
# entry.
DECISIVE = tuple(field.name for field in fields(ModelIdentity) if field.name != "name")
