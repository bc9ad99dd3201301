"""A readout: how a text becomes one vector, apart from the layer.

Its parts are a *template* (what is put around the text), a *pooling* (how token states become one
vector), whether the model's
*final norm* is applied, whether the attention *sink* token is dropped, and *centering* (whether the mean over the corpus is
subtracted, or a head applied). A readout is written `template/pooling/norm/sink/centering`. Nothing
here needs a model.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from layerscope.core.formatting import split_names
from layerscope.core.poolings import POOLINGS
from layerscope.core.templates import SLOT, get_template, names_of
from layerscope.errors import InvalidValueError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DEFAULT_READOUT", "READOUT_COLUMNS", "Readout", "readout_names"]

NORMS = ("applied", "raw")
SINKS = ("keep", "drop")
CENTERINGS = ("none", "corpus")
HEAD = "head"
"""Instead of a centering: a linear map that `improve` fits, which centers as well."""

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
        """A readout from its name; parts left out at the end keep their defaults.

        A template of the user's own may contain slashes: `{text} and/or that/mean` is the template
        `{text} and/or that`.
        """
        template, parts = _split(text.strip())
        if len(parts) > 4:
            raise InvalidValueError(
                f"readout {text!r} has {len(parts) + 1} parts; it is template/pooling/norm/sink/centering."
            )
        return cls(template, *(parts or get_template(template).poolings[:1])).check()

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Self:
        """The readout of one row of a table of scores, or of one stored result."""
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
        kept = (
            (self.pooling,) if self.sink == "keep" else POOLINGS.get(self.pooling).kept_without_sink
        )
        return tuple(f"{what}/{self.final_norm}" for what in kept)

    def check(self) -> Self:
        """The readout itself, or an error that names what is valid."""
        template = get_template(self.template)
        for kind, given, valid in (
            ("pooling", self.pooling, POOLINGS),
            ("final norm of a readout", self.final_norm, NORMS),
            ("sink", self.sink, SINKS),
            ("centering", self.centering, (*CENTERINGS, HEAD)),
        ):
            if given not in valid:
                raise UnknownNameError(kind, given, valid)
        if self.pooling not in template.poolings:
            here = ", ".join(template.poolings)
            raise InvalidValueError(
                f"readout {self.name!r}: {template.name!r} supports pooling {here}, not {self.pooling!r}."
            )
        if not self.kinds:
            raise InvalidValueError(
                f"readout {self.name!r}: {self.pooling!r} reads a single token, so sink=drop does not apply."
            )
        return self


DEFAULT_READOUT = Readout().name
"""The paper's: what the published scores are about, and what a user who changes nothing gets."""


_POOLED = {"wmean": "weighted mean", "last": "last token", "cls": "first token"}


def row_words(readout: str) -> tuple[str, str]:
    """What a chart calls a readout, given by its full name: what is read, and what more there is to
    say of it.

    >>> row_words("one-word/last/raw/keep/corpus")
    ('one-word prompt', 'centered, no norm')
    >>> row_words("plain/mean/applied/keep/none"), row_words("plain/mean/applied/keep/head")
    (('plain text', 'mean'), ('plain text', 'head'))
    """
    given = Readout(*readout.rsplit("/", 4))
    plain = given.template == "plain"
    read = (
        "plain text"
        if plain
        else "your prompt"
        if SLOT in given.template
        else f"{given.template} prompt"
    )
    if given.centering == HEAD:
        return read, HEAD
    how = [_POOLED.get(given.pooling, given.pooling)] if plain or given.pooling != "last" else []
    how += ["centered"] * (given.centering == "corpus") + ["no norm"] * (given.final_norm == "raw")
    return read, ", ".join(how + ["no sink"] * (given.sink == "drop"))


def describe_readout(readout: str) -> str:
    """Return a readout, given by its full name, in words.

    >>> describe_readout("one-word/last/raw/keep/corpus")
    'one-word prompt, centered, no norm'
    """
    return ", ".join(filter(None, row_words(readout)))


def _split(text: str) -> tuple[str, list[str]]:
    """The template and the parts after it. Only the user's own patterns, which hold `{text}`, may
    contain slashes."""
    if SLOT not in text:
        template, *parts = text.split("/")
        return template, parts
    valid: tuple[Container[str], ...] = (POOLINGS, NORMS, SINKS, (*CENTERINGS, HEAD))
    for count in range(1, 5):
        template, *parts = text.rsplit("/", count)
        if (
            len(parts) == count
            and SLOT in template
            and all(part in known for part, known in zip(parts, valid, strict=False))
        ):
            return template, parts
    for pooling in (
        POOLINGS
    ):  # no valid ending: what follows the last pooling is wrong, which `check` explains
        template, slash, rest = text.rpartition(f"/{pooling}")
        if slash and SLOT in template and (not rest or rest.startswith("/")):
            return template, [pooling, *(part for part in rest.split("/") if part)]
    return text, []


def readouts_of(table: pd.DataFrame) -> list[Readout]:
    """The readout of each row."""
    return [
        Readout(*map(str, parts))
        for parts in table[READOUT_COLUMNS].itertuples(index=False, name=None)
    ]


def readout_names(table: pd.DataFrame) -> list[str]:
    """The readout of each row, as one name."""
    return [readout.name for readout in readouts_of(table)]


def all_readouts(
    templates: Iterable[str] | None = None, has_cls: bool = False, has_norm: bool = True
) -> list[Readout]:
    """The grid that makes sense for a model: CLS only where it exists; without a final norm
    `applied` and `raw` are the same."""
    grid = []
    for template in names_of("in_all") if templates is None else templates:
        for pooling, norm, sink, centering in product(
            get_template(template).poolings, NORMS, SINKS, CENTERINGS
        ):
            if (POOLINGS.get(pooling).needs_cls and not has_cls) or (
                norm == "raw" and not has_norm
            ):
                continue
            readout = Readout(template, pooling, norm, sink, centering)
            grid += [readout] if readout.kinds else []
    return grid


def parse_readouts(
    text: str | Sequence[str] | None, has_cls: bool, has_norm: bool
) -> list[Readout]:
    """Readouts from what the user gave: nothing (the default), `all`, a template's name with `all`,
    or a list of names."""
    if text is None:
        return [Readout()]
    given = split_names(text) if isinstance(text, str) else list(text)
    readouts: list[Readout] = []
    for part in given:
        name = part.strip()
        if name == "default":
            readouts.append(Readout())
        elif name == "all":
            readouts += all_readouts(has_cls=has_cls, has_norm=has_norm)
        elif name.endswith("/all"):
            readouts += all_readouts([name.removesuffix("/all")], has_cls, has_norm)
        else:
            readouts.append(_check_cls(Readout.parse(name), has_cls))
    if any(readout.centering == HEAD for readout in readouts):
        raise InvalidValueError(
            "a head is fitted by `improve`; score the folder that it writes. Here: centering none or corpus."
        )
    if not readouts:
        raise InvalidValueError(
            "no readouts given. Valid: default, all, TEMPLATE/all, or template/pooling/norm/sink/centering."
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
    """Everything that must be stored for these readouts, each once."""
    return list(dict.fromkeys(kind for readout in readouts for kind in readout.kinds))
