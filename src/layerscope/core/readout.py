"""A readout: how a text becomes one vector, apart from the layer.

Its parts are a *template* (what is put around the text), a *pooling* (how token states become one
vector), whether the model's *final norm* is applied, whether the attention *sink* token is dropped,
and *centering* (whether the mean over the corpus is subtracted). A readout is written
`template/pooling/norm/sink/centering`. Nothing here needs a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from layerscope.core.options import split_names
from layerscope.core.templates import POOLINGS, SLOT, get_template, names_of
from layerscope.errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DEFAULT_READOUT", "READOUT_COLUMNS", "Readout", "readout_names"]

NORMS = ("applied", "raw")
SINKS = ("keep", "drop")
CENTERINGS = ("none", "corpus")

READOUT_COLUMNS = ["template", "pooling", "final_norm", "sink", "centering"]
"""The columns of a table that hold a readout, in the order of its name."""


@dataclass(frozen=True, order=True)
class Readout:
    """template × pooling × final norm × sink × centering. The default is the paper's.

    >>> Readout().name
    'plain/mean/applied/keep/none'
    >>> Readout.parse("one-word/last/raw")
    Readout(template='one-word', pooling='last', final_norm='raw', sink='keep', centering='none')
    """

    template: str = "plain"
    pooling: str = "mean"
    final_norm: str = "applied"
    sink: str = "keep"
    centering: str = "none"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the readout of a name; parts left out at the end keep their defaults.

        A template of the user's own may contain slashes: `{text} and/or that/mean` is the template
        `{text} and/or that`.
        """
        template, names = _split(text.strip())
        if len(names) > 4:
            raise InvalidValueError(
                f"readout {text!r} has {len(names) + 1} parts; it is "
                "template/pooling/norm/sink/centering."
            )
        return cls(template, *(names or get_template(template).poolings[:1])).check()

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Self:
        """Return the readout of one row of a table of scores, or of one stored result."""
        return cls(*(str(row[name]) for name in READOUT_COLUMNS))

    @property
    def name(self) -> str:
        """`template/pooling/norm/sink/centering`."""
        return "/".join((self.template, self.pooling, self.final_norm, self.sink, self.centering))

    @property
    def columns(self) -> dict[str, str]:
        """The readout as the columns of a table."""
        return asdict(self)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of vectors that must be stored for it: a mean without the sink follows from the
        mean and the sink's state."""
        poolings: tuple[str, ...] = (self.pooling,)
        if self.sink == "drop":
            poolings = POOLINGS.get(self.pooling).kept_without_sink
        return tuple(f"{pooling}/{self.final_norm}" for pooling in poolings)

    def check(self) -> Self:
        """Return the readout itself, or raise an error that names the valid parts."""
        template = get_template(self.template)
        for kind, name, valid in (
            ("pooling", self.pooling, POOLINGS),
            ("final norm of a readout", self.final_norm, NORMS),
            ("sink", self.sink, SINKS),
            ("centering", self.centering, CENTERINGS),
        ):
            if name not in valid:
                raise UnknownNameError(kind, name, valid)
        if self.pooling not in template.poolings:
            raise InvalidValueError(
                f"readout {self.name!r}: {template.name!r} supports pooling "
                f"{', '.join(template.poolings)}, not {self.pooling!r}."
            )
        if not self.kinds:
            raise InvalidValueError(
                f"readout {self.name!r}: {self.pooling!r} reads a single token, so sink=drop does "
                "not apply."
            )
        return self


DEFAULT_READOUT = Readout().name
"""The paper's: what the published scores are about, and what a user who changes nothing gets."""


_POOLED = {"wmean": "weighted mean", "last": "last token", "cls": "first token"}


def row_words(readout: str) -> tuple[str, str]:
    """Return the two labels of a candidate in a chart: what is read, and how.

    Its name is that of a readout, or ends with `head`.

    >>> row_words("one-word/last/raw/keep/corpus")
    ('one-word prompt', 'centered, no norm')
    >>> row_words("plain/mean/applied/keep/none"), row_words("plain/mean/applied/keep/head")
    (('plain text', 'mean'), ('plain text', 'head'))
    """
    template, pooling, norm, sink, ending = readout.rsplit("/", 4)
    is_plain = template == "plain"
    text = f"{template} prompt"
    if is_plain:
        text = "plain text"
    elif SLOT in template:
        text = "your prompt"
    if ending == "head":
        return text, ending
    words = []
    if is_plain or pooling != "last":
        words.append(_POOLED.get(pooling, pooling))
    if ending == "corpus":
        words.append("centered")
    if norm == "raw":
        words.append("no norm")
    if sink == "drop":
        words.append("no sink")
    return text, ", ".join(words)


def describe_readout(readout: str) -> str:
    """Return a readout, given by its full name, in words.

    >>> describe_readout("one-word/last/raw/keep/corpus")
    'one-word prompt, centered, no norm'
    """
    return ", ".join(filter(None, row_words(readout)))


def _split(text: str) -> tuple[str, list[str]]:
    """Return the template and the parts after it. Only patterns of the user may hold slashes."""
    if SLOT not in text:
        template, *names = text.split("/")
        return template, names
    for count in range(1, text.count("/") + 1):
        template, *names = text.rsplit("/", count)
        if names[0] in POOLINGS and SLOT in template:
            return template, names
    return text, []


def readouts_of(table: pd.DataFrame) -> list[Readout]:
    """Return the readout of each row."""
    return [
        Readout(*map(str, row)) for row in table[READOUT_COLUMNS].itertuples(index=False, name=None)
    ]


def readout_names(table: pd.DataFrame) -> list[str]:
    """Return the readout of each row, as one name."""
    return [readout.name for readout in readouts_of(table)]


def all_readouts(
    templates: Iterable[str] | None = None, has_cls: bool = False, has_norm: bool = True
) -> list[Readout]:
    """Return the readouts that make sense for a model: CLS only if it has such a token, and `raw`
    only if it has a final norm."""
    grid = []
    norms = NORMS if has_norm else ("applied",)
    for template in names_of("in_all") if templates is None else templates:
        poolings = get_template(template).poolings
        for pooling, norm, sink, centering in product(poolings, norms, SINKS, CENTERINGS):
            readout = Readout(template, pooling, norm, sink, centering)
            if readout.kinds and (has_cls or not POOLINGS.get(pooling).needs_cls):
                grid.append(readout)
    return grid


def parse_readouts(
    text: str | Sequence[str] | None, has_cls: bool, has_norm: bool
) -> list[Readout]:
    """Return the readouts that a user names: none (the default), `all`, `TEMPLATE/all`, or a list
    of names."""
    if text is None:
        return [Readout()]
    readouts: list[Readout] = []
    for item in split_names(text) if isinstance(text, str) else text:
        name = item.strip()
        if name == "default":
            readouts.append(Readout())
        elif name == "all":
            readouts += all_readouts(has_cls=has_cls, has_norm=has_norm)
        elif name.endswith("/all"):
            readouts += all_readouts([name.removesuffix("/all")], has_cls, has_norm)
        else:
            readouts.append(_check_cls(Readout.parse(name), has_cls))
    if not readouts:
        raise InvalidValueError(
            "no readouts given. Valid: default, all, TEMPLATE/all, or "
            "template/pooling/norm/sink/centering."
        )
    return list(dict.fromkeys(readouts))


def _check_cls(readout: Readout, has_cls: bool) -> Readout:
    if POOLINGS.get(readout.pooling).needs_cls and not has_cls:
        valid = ", ".join(
            name
            for name in get_template(readout.template).poolings
            if not POOLINGS.get(name).needs_cls
        )
        raise InvalidValueError(
            f"readout {readout.name!r}: this model has no CLS token. Poolings that it has: {valid}."
        )
    return readout


def kinds_of(readouts: Iterable[Readout]) -> list[str]:
    """Return everything that must be stored for these readouts, each once."""
    return list(dict.fromkeys(kind for readout in readouts for kind in readout.kinds))
