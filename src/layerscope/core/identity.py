"""The subject of a result: the identity of its model, and how states were read.

Two results compare only if these agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from layerscope.core.options import shorten

__all__ = ["SEVERAL", "ModelIdentity", "Reading", "model_key"]


def model_key(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a model's identity that decides its states."""
    return {name: identity.get(name) for name in DECISIVE}


@dataclass(frozen=True)
class ModelIdentity:
    """The facts that decide a model's states: weights, settings (configuration and tokenizer),
    code, precision, attention and adapters.

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
        """Return the identity in a loaded model's `identity`, or in a manifest's entry `model`."""
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


SEVERAL = "several"  # norm modules, one for each model of a run
LAYER = "layer k is the state after k blocks; layer 0 is the input of the first block"


@dataclass(frozen=True)
class Reading:
    """Final norm, length and tokens of what was read, as a run's manifest says it in its
    `conventions`.

    `final_norm` is `applied`, `raw` or `hf` (at the last layer only); None where the readouts of
    the run say it. `norm_module` is the class of the model's final norm; None where it has none.
    `max_length` is None for items that are not cut.

    >>> Reading("applied", 256, "RMSNorm").shows_output
    True
    """

    final_norm: str | None = None
    max_length: int | None = None
    norm_module: str | None = None
    tokens: str = "all"

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """Return the reading of a finished run, from its manifest or the `conventions` alone."""
        conventions = manifest.get("conventions", manifest)
        length = conventions.get("max_length")
        return cls(
            conventions.get("final_norm"),
            None if length is None else int(length),
            conventions.get("final_norm_module"),
            str(conventions.get("tokens", "all")),
        )

    def as_conventions(self) -> dict[str, Any]:
        """Return the entries of a manifest's `conventions`, which `of` reads back.

        A run over several models leaves out `norm_module`: each has its own.

        >>> Reading("raw", 64, "RMSNorm").as_conventions()
        {'final_norm': 'raw', 'final_norm_module': 'RMSNorm', 'max_length': 64}
        >>> Reading(None, 64, SEVERAL).as_conventions()
        {'max_length': 64}
        """
        entries: dict[str, Any] = {}
        if self.final_norm is not None:
            entries["final_norm"] = self.final_norm
        if self.norm_module != SEVERAL:
            entries["final_norm_module"] = self.norm_module
        return {**entries, "max_length": self.max_length}

    @property
    def has_norm(self) -> bool:
        """True if the model has a final norm. Without one, `applied` and `raw` are the same."""
        return self.norm_module is not None

    @property
    def shows_output(self) -> bool:
        """True if the last layer is the vector that the model was trained to give, with its final
        norm."""
        return self.final_norm != "raw" or not self.has_norm
