"""An export in the making: which readouts standard modules express, what was written and is not yet
verified, and the texts it is verified on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerscope.core.heads import Head
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout
from layerscope.core.templates import SLOT, Template, get_template
from layerscope.errors import ExportError
from layerscope.exporting.cutting import Route
from layerscope.exporting.tokenizing import FramedTokenizer
from layerscope.models import LoadedModel


def why_not(readout: Readout) -> str | None:
    """Return why a readout needs custom code, or None if standard modules express it.

    >>> why_not(Readout("one-word", "last", "raw")) is None
    True
    """
    template = get_template(readout.template)
    if template.copies > 1:
        return (
            f"template {template.name!r} repeats the text {template.copies} times, and a tokenizer can add words around a text "
            "but not repeat it"
        )
    if readout.sink == "drop":
        return "leaving out the token with the largest norm is not among the standard poolings"
    if POOLINGS.get(readout.pooling).sentence_transformers is None:
        return f"{readout.pooling!r} is not among the standard poolings"
    return None


def nearest(readout: Readout) -> Readout:
    """Return the expressible readout that differs least: the sink kept, the text once instead of several
    times, a standard pooling.

    >>> nearest(Readout("echo", "mean", "raw", "drop", "corpus")).name
    'plain/mean/raw/keep/corpus'
    """
    template = readout.template if get_template(readout.template).copies == 1 else "plain"
    standard = [
        name for name in get_template(template).poolings if POOLINGS.get(name).sentence_transformers
    ]
    return replace(
        readout,
        template=template,
        pooling=readout.pooling if readout.pooling in standard else standard[0],
        sink="keep",
    )


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
    """One side of a search, `query` or `document`: its template, and what is done to its pooled
    vectors.

    sentence-transformers puts a prompt before a text and nothing after it. So what stands before
    the text in the template is the side's prompt; what follows is in the tokenizer, the same for
    both sides.
    """

    name: str
    template: str
    head: Head | None = None

    @property
    def prompt(self) -> str:
        """Return the words before a text."""
        return get_template(self.template).pattern.split(SLOT)[0]


@dataclass(frozen=True)
class Draft:
    """A written folder, and what it claims to be. One with `sides` is verified for each of them in
    turn (`side`)."""

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

    @property
    def template(self) -> Template:
        """Return the readout's template."""
        return get_template(self.readout.template)

    def as_job(self, probes: int) -> dict[str, Any]:
        """Return what the fresh process reads. Every token of the probes is compared, so the
        longest texts are not among them."""
        short = [text for text in self.texts if len(text) < 3000]
        probes = max(1, min(probes, len(short) // 3))
        return {
            "folder": str(self.folder.resolve()),  # the fresh process works elsewhere
            "texts": self.texts,
            "probes": short[:: max(1, len(short) // probes)][:probes],
            "index": self.route.index,
            "side": None if self.side is None else self.side.name,
        }


# Short and long texts, with the endings and beginnings on which tokenizers differ.
SHORT = (
    "A man is playing a guitar.",
    "The committee will meet again on Thursday at 3:30 p.m. in room 204.",
    "Is this the train to Edinburgh?",
    "no capital letter and no full stop at the end",
    "“Nothing is certain,” she said, “but the tide comes in twice a day.”",
    '"It is late," he said. "We should go."',
    "'Tis the season (or so they say)",
    "Prices rose by 4.7 % in March, 3.9 % in April and 0.2 % in May",
    "Ein Satz auf Deutsch, mit Umlauten: über, schön, größer.",
    "日本語の文章もここにあります。",
    "Emoji at the end 🙂",
    "An ellipsis ends this one...",
    "What a day!",
    "https://example.org/path?query=1&other=2",
    "  two spaces before, and one after ",
    "First line.\nSecond line.\n",
    "one",
    "7",
    "?",
    "e = m c^2; f(x) = a*x + b",
)

_PARAGRAPH = (
    "The harbour froze early that winter, and the boats that had not been hauled out stood fast until March. Fishermen walked "
    "out over the ice with sledges and saws, cut square holes, and let down their lines through them. In the evenings they "
    "mended nets by the stove and told the same stories as the year before. When the thaw came it came in one night: by morning "
    "the whole bay was moving, and the sound of it, like a crowd talking in a distant hall, could be heard three streets inland. "
)

LONG = (
    _PARAGRAPH,
    _PARAGRAPH * 3,
    "Lists are common, too: "
    + ", ".join(f"item {i} costs {i * 7 % 31}.{i % 10}0 euros" for i in range(40))
    + ".",
)


def verification_texts(brief: bool = False) -> list[str]:
    """Return built-in texts and, if it is on this machine, the start of the default corpus: news
    texts of 45 to 620 words.

    Long texts take most of the time: with `brief`, every second of the short ones.
    """
    if brief:
        return list(SHORT[::2])
    from layerscope.data import load_corpus
    from layerscope.data.catalogue import CORPORA, DEFAULT_CORPUS

    cached = CORPORA.is_cached(DEFAULT_CORPUS)
    news = list(load_corpus(DEFAULT_CORPUS, limit=4).texts) if cached else []
    return [*SHORT, *LONG, *news]


def text_longer_than(count_tokens: int) -> str:
    """Return a text that has more than so many tokens."""
    return _PARAGRAPH * (count_tokens // 60 + 2)
