"""A readout: how a text becomes one vector, apart from the layer. The grid of all of them comes from one pass per template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from layerscope.capture.pooling import POOLINGS
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.evaluation.templates import SLOT, TEMPLATES, get_template

NORMS = ("applied", "raw")
SINKS = ("keep", "drop")
CENTRINGS = ("none", "corpus")


@dataclass(frozen=True, order=True)
class Readout:
    """template × pooling × final norm × sink × centring. The default is the paper's."""

    template: str = "plain"
    pooling: str = "mean"
    final_norm: str = "applied"
    sink: str = "keep"
    centring: str = "none"

    @property
    def name(self) -> str:
        """`template/pooling/norm/sink/centring`.

        >>> Readout().name
        'plain/mean/applied/keep/none'
        """
        return "/".join((self.template, self.pooling, self.final_norm, self.sink, self.centring))

    @property
    def kinds(self) -> tuple[str, ...]:
        """What must be stored for it: a mean without the sink follows from the mean and the sink's state."""
        if self.sink == "keep":
            return (f"{self.pooling}/{self.final_norm}",)
        if self.pooling == "max":
            return (f"max-drop/{self.final_norm}",)
        return (f"{self.pooling}/{self.final_norm}", f"sink/{self.final_norm}")


def check_readout(readout: Readout) -> Readout:
    """The readout itself; an error that names what is valid where a part of it is not."""
    template = get_template(readout.template)
    for kind, given, valid in (
        ("pooling", readout.pooling, POOLINGS),
        ("final norm of a readout", readout.final_norm, NORMS),
        ("sink", readout.sink, SINKS),
        ("centring", readout.centring, CENTRINGS),
    ):
        if given not in valid:
            raise UnknownNameError(kind, given, valid)
    if readout.pooling not in template.poolings:
        valid_here = ", ".join(template.poolings)
        raise LayerscopeError(f"readout {readout.name!r}: {template.name!r} is read by {valid_here}, not by {readout.pooling!r}.")
    if readout.sink == "drop" and readout.pooling in ("last", "cls"):
        raise LayerscopeError(f"readout {readout.name!r}: {readout.pooling!r} reads one token; there is no sink to drop from it.")
    return readout


def parse_readout(text: str) -> Readout:
    """A readout from `template/pooling/norm/sink/centring`; parts left out at the end keep their defaults.

    >>> parse_readout("one-word/last/raw").name
    'one-word/last/raw/keep/none'
    """
    template, parts = _split_template(text.strip())
    if len(parts) > 4:
        raise LayerscopeError(f"readout {text!r} has {len(parts) + 1} parts; it is template/pooling/norm/sink/centring.")
    defaults = Readout()
    if not parts:
        parts = [get_template(template).poolings[0]]
    rest = (defaults.final_norm, defaults.sink, defaults.centring)[len(parts) - 1 :]
    return check_readout(Readout(template, *parts, *rest))


def _split_template(text: str) -> tuple[str, list[str]]:
    """A pattern of the user's own may contain slashes: what follows its last `{text}` and a known pooling is the rest."""
    if SLOT not in text:
        template, *parts = text.split("/")
        return template, parts
    for pooling in POOLINGS:
        before, found, after = text.rpartition(f"/{pooling}")
        if found and SLOT in before and (not after or after.startswith("/")):
            return before, [pooling, *(part for part in after.split("/") if part)]
    return text, []


def all_readouts(templates: Iterable[str] = tuple(TEMPLATES), has_cls: bool = False, has_norm: bool = True) -> list[Readout]:
    """The grid that makes sense for a model: CLS only where it exists; without a final norm `applied` and `raw` are the same."""
    grid = []
    for template in templates:
        for pooling, norm, sink, centring in product(get_template(template).poolings, NORMS, SINKS, CENTRINGS):
            if (pooling == "cls" and not has_cls) or (norm == "raw" and not has_norm):
                continue
            if sink == "drop" and pooling in ("last", "cls"):
                continue
            grid.append(Readout(template, pooling, norm, sink, centring))
    return grid


def parse_readouts(text: str | Sequence[str] | None, has_cls: bool, has_norm: bool) -> list[Readout]:
    """Readouts from what the user gave: nothing (the default), `all`, a template's name with `all`, or a list of names."""
    if text is None:
        return [Readout()]
    given = [part for part in text.split(",") if part.strip()] if isinstance(text, str) else list(text)
    found: list[Readout] = []
    for part in given:
        name = part.strip()
        if name == "default":
            found.append(Readout())
        elif name == "all":
            found += all_readouts(has_cls=has_cls, has_norm=has_norm)
        elif name.endswith("/all"):
            found += all_readouts([name.removesuffix("/all")], has_cls, has_norm)
        else:
            found.append(_with_cls(parse_readout(name), has_cls))
    if not found:
        raise LayerscopeError("no readouts given. Valid: default, all, TEMPLATE/all, or template/pooling/norm/sink/centring.")
    return list(dict.fromkeys(found))


def _with_cls(readout: Readout, has_cls: bool) -> Readout:
    if readout.pooling == "cls" and not has_cls:
        valid = ", ".join(pooling for pooling in get_template(readout.template).poolings if pooling != "cls")
        raise LayerscopeError(f"readout {readout.name!r}: this model has no CLS token. Poolings that it has: {valid}.")
    return readout


def kinds_of(readouts: Iterable[Readout]) -> list[str]:
    """Everything that must be stored for these readouts, each once."""
    return list(dict.fromkeys(kind for readout in readouts for kind in readout.kinds))
