"""The final norm and the length with which states were read. Two results compare only if these
agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["SEVERAL", "Reading"]

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
