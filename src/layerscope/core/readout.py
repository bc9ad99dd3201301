"""A readout: how a text becomes one vector, apart from the layer.

Its parts are a *template* (what is put around the text), a *pooling* (how token states become one vector), whether the model's
*final norm* is applied, whether the attention *sink* token is dropped, and *centering* (whether the mean over the corpus is
subtracted). A readout is written `template/pooling/norm/sink/centering`. Nothing here needs a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from layerscope.core.formatting import split_names
from layerscope.errors import LayerscopeError, UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

Pooling = Literal["mean", "wmean", "last", "cls", "max"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
NORMS = ("applied", "raw")
SINKS = ("keep", "drop")
CENTERINGS = ("none", "corpus")

READOUT_COLUMNS = ["template", "pooling", "final_norm", "sink", "centering"]
"""The columns of a table that hold a readout, in the order of its name."""

SLOT = "{text}"
_OLD_COLUMNS = {"centring": "centering"}  # as earlier versions wrote tables and results


@dataclass(frozen=True)
class Template:
    """What is put around a text: a named pattern with `{text}` in it. `poolings` are those that make sense for it.

    `plain` reads every token of the text. A template with the text twice (`echo`) reads the second copy, which has seen the
    first; any other template (`one-word`) reads the whole sequence.
    """

    name: str
    pattern: str
    poolings: tuple[str, ...]
    citation: str = ""

    @property
    def copies(self) -> int:
        """How often the text appears."""
        return self.pattern.count(SLOT)


TEMPLATES = {
    "plain": Template("plain", SLOT, ("mean", "wmean", "last", "cls", "max")),
    "echo": Template(
        "echo",
        "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
        ("mean", "wmean", "last", "max"),
        "Springer et al. 2024",
    ),
    "one-word": Template("one-word", 'This sentence: "{text}" means in one word: "', ("last",), "Jiang et al. 2023"),
}


_DEMONSTRATIONS = (
    ("The train to the airport was canceled again.", "Travel"),
    ("Two children are kicking a ball in the park.", "Play"),
    ("How do I change the password of my account?", "Security"),
)
_ONE_WORD = 'This sentence: "{text}" means in one word: "'


def _demonstrated(count: int) -> str:
    shown = [_ONE_WORD.replace(SLOT, text) + f'{word}".\n' for text, word in _DEMONSTRATIONS[:count]]
    return "".join(shown) + _ONE_WORD


PROMPTS = {
    name: Template(name, pattern, ("last",), citation)
    for name, pattern, citation in (
        ("step-by-step", "After thinking step by step, t" + _ONE_WORD[1:], "Zhang et al. 2024"),
        (
            "knowledge",
            "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms provide "
            "additional but less central details. With this in mind, t" + _ONE_WORD[1:],
            "Zhang et al. 2024",
        ),
        ("one-demonstration", _demonstrated(1), "Jiang et al. 2023"),
        ("three-demonstrations", _demonstrated(3), "Jiang et al. 2023"),
        ("topic", 'This text: "{text}" is about one topic, in one word: "', "after Lei et al. 2024"),
        ("intent", 'This text: "{text}" What its author wants, in one word: "', "after Lei et al. 2024"),
        ("feeling", 'This text: "{text}" The feeling in it, in one word: "', "after Lei et al. 2024"),
    )
}
"""Templates besides `TEMPLATES` that are known by name: they ask for one word, in other ways. `all` does not include them."""


BLEND = "blend"
"""Instead of a template's name: the mean of the centered unit vectors under several templates, a pass for each."""


def get_template(name: str) -> Template:
    """A template by name, or the user's own pattern if it has `{text}` in it."""
    if name in TEMPLATES or name in PROMPTS:
        return TEMPLATES.get(name) or PROMPTS[name]
    if SLOT in name:
        return Template(name, name, ("mean", "wmean", "last", "max"))
    raise UnknownNameError("template", name, [*TEMPLATES, *PROMPTS], hint="Or a pattern of your own with {text} in it.")


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

        A template of the user's own may contain slashes: `{text} and/or that/mean` is the template `{text} and/or that`.
        """
        template, parts = _split(text.strip())
        if len(parts) > 4:
            raise LayerscopeError(f"readout {text!r} has {len(parts) + 1} parts; it is template/pooling/norm/sink/centering.")
        return cls(template, *(parts or get_template(template).poolings[:1])).check()

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Self:
        """The readout of one row of a table of scores, or of one stored result; also of those written by earlier versions."""
        current = {_OLD_COLUMNS.get(str(name), str(name)): value for name, value in row.items()}
        return cls(*(str(current[name]) for name in READOUT_COLUMNS))

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
        """The kinds of vectors that must be stored for it: a mean without the sink follows from the mean and the sink's state."""
        if self.sink == "keep":
            return (f"{self.pooling}/{self.final_norm}",)
        if self.pooling == "max":
            return (f"max-drop/{self.final_norm}",)
        return (f"{self.pooling}/{self.final_norm}", f"sink/{self.final_norm}")

    def check(self) -> Self:
        """The readout itself, or an error that names what is valid."""
        template = get_template(self.template)
        for kind, given, valid in (
            ("pooling", self.pooling, POOLINGS),
            ("final norm of a readout", self.final_norm, NORMS),
            ("sink", self.sink, SINKS),
            ("centering", self.centering, CENTERINGS),
        ):
            if given not in valid:
                raise UnknownNameError(kind, given, valid)
        if self.pooling not in template.poolings:
            valid_here = ", ".join(template.poolings)
            raise LayerscopeError(f"readout {self.name!r}: {template.name!r} is read by {valid_here}, not by {self.pooling!r}.")
        if self.sink == "drop" and self.pooling in ("last", "cls"):
            raise LayerscopeError(f"readout {self.name!r}: {self.pooling!r} reads one token; there is no sink to drop from it.")
        return self


DEFAULT_READOUT = Readout().name
"""The paper's: what the published scores are about, and what a user who changes nothing gets."""


def how_read(readout: str, reference: str = DEFAULT_READOUT) -> str:
    """A way of reading texts, given by its full name, told by what differs from the reference.

    >>> how_read("one-word/last/raw/keep/corpus")
    'read with the one-word template (last pooling, no final norm, centered)'
    >>> how_read("plain/last/raw/keep/none")
    'read by last pooling, no final norm'
    """
    given, other = (Readout(*name.rsplit("/", 4)) for name in (readout, reference))
    how = f"{given.pooling} pooling, {'no final norm' if given.final_norm == 'raw' else 'final norm applied'}"
    how += (", sink dropped" if given.sink == "drop" else "") + (", centered" if given.centering == "corpus" else "")
    if given.template == other.template:
        return f"read by {how}"
    name = "mean over several templates" if given.template == BLEND else f"{given.template} template"
    return f"read with the {name} ({how})"


def _split(text: str) -> tuple[str, list[str]]:
    """The template and the parts after it. Only the user's own patterns, which hold `{text}`, may contain slashes."""
    if SLOT not in text:
        template, *parts = text.split("/")
        return template, parts
    valid = (POOLINGS, NORMS, SINKS, CENTERINGS)
    for count in range(1, 5):
        template, *parts = text.rsplit("/", count)
        if len(parts) == count and SLOT in template and all(part in known for part, known in zip(parts, valid, strict=False)):
            return template, parts
    for pooling in POOLINGS:  # no valid ending: what follows the last pooling is wrong, which `check` explains
        template, slash, rest = text.rpartition(f"/{pooling}")
        if slash and SLOT in template and (not rest or rest.startswith("/")):
            return template, [pooling, *(part for part in rest.split("/") if part)]
    return text, []


def rename_old_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The table with today's names for the columns of a readout."""
    return table.rename(columns=_OLD_COLUMNS)


def readouts_of(table: pd.DataFrame) -> list[Readout]:
    """The readout of each row."""
    return [Readout(*map(str, parts)) for parts in table[READOUT_COLUMNS].itertuples(index=False, name=None)]


def readout_names(table: pd.DataFrame) -> list[str]:
    """The readout of each row, as one name."""
    return [readout.name for readout in readouts_of(table)]


def all_readouts(templates: Iterable[str] = tuple(TEMPLATES), has_cls: bool = False, has_norm: bool = True) -> list[Readout]:
    """The grid that makes sense for a model: CLS only where it exists; without a final norm `applied` and `raw` are the same."""
    grid = []
    for template in templates:
        for pooling, norm, sink, centering in product(get_template(template).poolings, NORMS, SINKS, CENTERINGS):
            if (pooling == "cls" and not has_cls) or (norm == "raw" and not has_norm):
                continue
            if sink == "drop" and pooling in ("last", "cls"):
                continue
            grid.append(Readout(template, pooling, norm, sink, centering))
    return grid


def parse_readouts(text: str | Sequence[str] | None, has_cls: bool, has_norm: bool) -> list[Readout]:
    """Readouts from what the user gave: nothing (the default), `all`, a template's name with `all`, or a list of names."""
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
    if not readouts:
        raise LayerscopeError("no readouts given. Valid: default, all, TEMPLATE/all, or template/pooling/norm/sink/centering.")
    return list(dict.fromkeys(readouts))


def _check_cls(readout: Readout, has_cls: bool) -> Readout:
    if readout.pooling == "cls" and not has_cls:
        valid = ", ".join(pooling for pooling in get_template(readout.template).poolings if pooling != "cls")
        raise LayerscopeError(f"readout {readout.name!r}: this model has no CLS token. Poolings that it has: {valid}.")
    return readout


def kinds_of(readouts: Iterable[Readout]) -> list[str]:
    """Everything that must be stored for these readouts, each once."""
    return list(dict.fromkeys(kind for readout in readouts for kind in readout.kinds))
