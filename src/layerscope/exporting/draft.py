"""The request for an export, the written folder, and the texts on which the folder is verified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.core.heads import Head
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout
from layerscope.core.templates import SLOT, Template, get_template
from layerscope.errors import ExportError
from layerscope.exporting.cutting import Route
from layerscope.exporting.tokenizing import FramedTokenizer
from layerscope.models import LoadedModel

DEFAULT_MAX_LENGTH = 256


def why_not(readout: Readout) -> str | None:
    """Return why a readout needs custom code, or None if standard modules express it.

    >>> why_not(Readout("one-word", "last", "raw")) is None
    True
    """
    template = get_template(readout.template)
    if template.copies > 1:
        return (
            f"template {template.name!r} repeats the text {template.copies} times, and a "
            "tokenizer can add words around a text but not repeat it"
        )
    if readout.sink == "drop":
        return "leaving out the token with the largest norm is not among the standard poolings"
    if POOLINGS.get(readout.pooling).sentence_transformers is None:
        return f"{readout.pooling!r} is not among the standard poolings"
    return None


def nearest(readout: Readout) -> Readout:
    """Return the expressible readout that differs least.

    >>> nearest(Readout("echo", "mean", "raw", "drop", "corpus")).name
    'plain/mean/raw/keep/corpus'
    """
    template = readout.template if get_template(readout.template).copies == 1 else "plain"
    poolings = get_template(template).poolings
    standard = [name for name in poolings if POOLINGS.get(name).sentence_transformers]
    pooling = readout.pooling if readout.pooling in standard else standard[0]
    return replace(readout, template=template, pooling=pooling, sink="keep")


def check_expressible(readout: Readout) -> None:
    """Raise for a readout that needs custom code, and name the nearest that does not."""
    reason = why_not(readout)
    if reason is not None:
        raise ExportError(
            f"readout {readout.name!r} cannot be exported without custom code: {reason}. "
            f"The nearest that can: readout='{nearest(readout).name}'"
        )


@dataclass(frozen=True)
class Side:
    """A side of a search, `query` or `document`: its template and the head of its vectors.

    sentence-transformers puts a prompt before a text and nothing after it. So the words before the
    text are the side's prompt. The words after it are in the tokenizer, the same for both sides.
    """

    name: str
    template: str
    head: Head | None = None

    @property
    def prompt(self) -> str:
        """The words before a text."""
        return get_template(self.template).pattern.split(SLOT)[0]


@dataclass(frozen=True)
class ExportRequest:
    """A layer of a model and its readout, with what stands beside them in the folder.

    - `max_length`: the tokens to which texts are cut. With `longer`, a folder whose template would
      be cut may read longer texts.
    - `unit`: vectors are scaled to length 1.
    - `head`: what is applied to pooled vectors. `center_on`: the texts whose mean is subtracted
      instead, and words for them.
    - `texts`: the texts to verify on.
    - `sides`: how queries and documents are read, if that differs. Their templates end alike.
    - `reason`, `evidence`: how the choice was made, for the card and layerscope.json.
    """

    model: LoadedModel
    layer: int
    readout: Readout
    texts: tuple[str, ...]
    max_length: int = DEFAULT_MAX_LENGTH
    longer: bool = False
    unit: bool = False
    head: Head | None = None
    center_on: tuple[list[str], str] | None = None
    sides: tuple[Side, ...] = ()
    license: str = ""
    reason: str = ""
    evidence: dict[str, Any] | None = None


@dataclass(frozen=True)
class Draft:
    """A written folder that is not verified yet.

    One with `sides` is verified for each of them in turn; `side` is then the one at hand.
    """

    folder: Path
    model: LoadedModel
    layer: int
    readout: Readout
    route: Route
    framed: FramedTokenizer
    max_length: int
    unit: bool
    head: Head | None
    texts: list[str]
    sides: tuple[Side, ...] = ()
    side: Side | None = None

    @property
    def template(self) -> Template:
        """The readout's template."""
        return get_template(self.readout.template)

    def by_side(self) -> list[Draft]:
        """Return the draft as each side reads it, or the draft itself if it has no sides."""
        drafts = []
        for side in self.sides:
            readout = replace(self.readout, template=side.template)
            drafts.append(replace(self, side=side, readout=readout, head=side.head))
        return drafts or [self]

    def ids(self) -> list[list[int]]:
        """Return the token ids of the texts, as `encode` will make them."""
        prompt = "" if self.side is None else self.side.prompt
        return self.framed.ids([prompt + text for text in self.texts])


_TEXTS = read_json(Path(__file__).with_name("verification_texts.json"))
SHORT: list[str] = _TEXTS["short"]
"""Texts with the endings and beginnings on which tokenizers differ."""
LONG: list[str] = _TEXTS["long"]


def verification_texts(brief: bool = False) -> list[str]:
    """Return the built-in texts; with `brief`, every second of the short ones.

    Long texts take most of the time.
    """
    return list(SHORT[::2]) if brief else [*SHORT, *LONG]


def text_longer_than(count: int) -> str:
    """Return a text of more than `count` tokens."""
    return LONG[0] * (count // 60 + 2)
