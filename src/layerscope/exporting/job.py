"""`export`: a layer of a model as a folder that sentence-transformers and transformers load,
verified before it is published."""

from __future__ import annotations

import glob
import inspect
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.heads import Head
from layerscope.core.json import read_json
from layerscope.core.options import ModelOptions
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.runs import MARKER, folder_name, refuse_newer
from layerscope.core.templates import SLOT, get_template
from layerscope.data.corpus import refuse_missing
from layerscope.errors import ExportError, InvalidValueError, UnknownNameError
from layerscope.exporting.cutting import check_cuttable, write_cut
from layerscope.exporting.describing import describe, finish, license_of
from layerscope.exporting.draft import (
    LONG,
    SHORT,
    Draft,
    Side,
    check_expressible,
    text_longer_than,
    verification_texts,
)
from layerscope.exporting.evidence import ExportEvidence
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.formats.sentence_transformers import write_folder
from layerscope.exporting.tokenizing import frame_tokenizer
from layerscope.exporting.verifying import pooled_vectors, require_sentence_transformers, verify
from layerscope.models import LoadedModel, open_model
from layerscope.store.atomic import explained, part_of, remove_parts, sync_folder
from layerscope.store.locks import lock_beside
from layerscope.store.records import give_back, record_files, recorded_files, remove_recorded

_ASIDE = ".old"
DEFAULT_MAX_LENGTH = 256  # the evaluation's
FRAMED_MAX_LENGTH = 2048  # where cutting a text would break its frame, fewer texts are cut

Centering = Callable[[Callable[[Sequence[str]], list[list[int]]]], Head]
"""Finds what is done to pooled vectors, given how texts become token ids."""


@dataclass(frozen=True)
class Inside:
    """What other parts of layerscope ask of `export` besides: only short built-in texts to verify
    on (`brief`), how the choice was made, for the card (`why`), a function that writes further
    files before the folder appears in its place (`also`), and how queries and documents are read,
    where they are read differently (`sides`); their templates end alike."""

    brief: bool = False
    why: str = ""
    also: Callable[[Path], None] | None = None
    sides: tuple[Side, ...] = ()


@dataclass(frozen=True)
class Exported:
    """An exported folder; `facts` is what its layerscope.json holds."""

    path: Path
    facts: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Exported:
        """Read an exported folder's facts."""
        file = Path(path) / MARKER
        facts = read_json(file, error=ExportError) if file.is_file() else {}
        if facts.get("kind") != "export":
            raise ExportError(f"{path} holds no export of layerscope.")
        refuse_newer(facts, Path(path))
        return cls(Path(path), facts)

    def push(self, repo: str, public: bool = False) -> str:
        """Send the folder to the hub as `user/name`, private unless `public`, without tables and
        maps; returns its address."""
        from layerscope.exporting.pushing import pack, push

        return push(pack(self.path, repo, public))

    @property
    def layer(self) -> int:
        """The layer that is read."""
        return int(self.facts["layer"])

    @property
    def readout(self) -> str:
        """How it is read."""
        return str(self.facts["readout"])

    @property
    def cosine_distance(self) -> float:
        """The largest cosine distance to the captured vectors."""
        return float(self.facts["verification"]["cosine_distance"])


def export(
    model: Any,
    layer: int | None = None,
    *,
    readout: str | Readout | None = None,
    out: str | Path | None = None,
    choice: Any = None,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    center_on: str | Path | Sequence[str] | None = None,
    column: str | None = None,
    head: Head | None = None,
    max_length: int | None = None,
    normalize: bool | None = None,
    formats: Sequence[str] = (),
    store: str | Path | None = None,
    overwrite: bool = False,
    offline: bool = False,
    **options: Any,
) -> Exported:
    """Cut a model at `layer`, save it with `readout` as a sentence-transformers folder, and verify
    that folder.

    - `choice`: what chooses the layer and readout if they are not given: the folder of a profile or
      an evaluation, a file that
      `layerscope select --json` wrote, or a `Choice`. It also gives the evidence in the model card.
      From an evaluation come the
      maximum length, the scaling and the mean for centering as well.
    - `center_on`: other texts to center on: a file (and its `column`), a corpus, or texts. `head`:
      what is applied to the pooled
      vectors, if it is already known: a mean to subtract, or a linear map that `improve` fitted.
    - `texts`: texts to verify on, besides the built-in ones.
    - `normalize`: scale vectors to length 1. None: as in the run, or in the model's own pipeline.
    - `out`: the folder to write; by default `exports/` and the model's name. An earlier export
      there is replaced only with
      `overwrite`.
    - `formats`: formats to write besides that folder, such as `onnx`.

    Options of the model (dtype, device, revision, adapters, …) are plain keywords. The folder has the model's precision: `dtype="bfloat16"` makes it
    smaller.
    """
    inside = options.pop("inside", None) or Inside()
    loading = ModelOptions.take(options).given()
    if options:
        valid = {*ModelOptions.names(), *inspect.signature(export).parameters} - {"options"}
        raise UnknownNameError("option of export", next(iter(options)), valid)
    require_sentence_transformers()
    extra = _check_formats(formats)
    place = default_place(model) if out is None else Path(out)
    check_free(place, overwrite)
    wanted = _readout(readout)
    if column is not None and center_on is None:
        raise ExportError("column= names a column of the center_on= file: give that file too.")
    refuse_missing(center_on)
    loaded = open_model(model, tokenizer, offline, loading)
    evidence = None if choice is None else ExportEvidence.load(choice)
    chosen = None if layer is None else _layer(loaded, layer)
    answer = None
    notes: list[str] = []
    if evidence is not None:
        evidence.check(loaded)
        chosen, wanted, answer, notes = evidence.choose(chosen, wanted)
    elif chosen is None:
        raise ExportError(
            f"say which layer= (0 to {loaded.n_blocks}), or give choice= with the folder of a run."
        )
    plan = wanted or Readout()
    _check(loaded, plan)
    if plan.centering == HEAD and not inside.sides and (head is None or head.matrix is None):
        raise ExportError(
            f"readout {plan.name!r} goes through a head, which `improve` fits and exports; or give it (head=)."
        )
    if center_on is not None and plan.centering != "corpus":
        raise ExportError(
            f"center_on= gives texts to center on, and the readout {plan.name} does not center. Leave it out, or give "
            f"readout={replace(plan, centering='corpus').name!r}"
        )
    for name in extra:
        FORMATS.get(name).check_choice(loaded, chosen, plan)
    length = _length(loaded, max_length, evidence)
    unit = _unit(loaded, normalize, evidence)
    with published(place, overwrite) as folder:
        draft = prepare(
            loaded, chosen, plan, folder, texts=texts, brief=inside.brief, max_length=length,
            extend=max_length is None, unit=unit, sides=inside.sides,
            center=lambda ids_of: head or _mean(loaded, chosen, plan, evidence, (center_on, column), store, offline, ids_of),
        )  # fmt: skip
        facts = {
            **describe(draft, verify([draft])[0]),
            "license": license_of(loaded, model, offline),
            "evidence": None
            if evidence is None
            else evidence.facts(draft.layer, draft.readout, answer, notes),
            "why": inside.why,
            "formats": {name: FORMATS.get(name).write(draft) for name in extra},
        }
        finish(draft, facts)
        if inside.also is not None:
            inside.also(folder)
    return Exported(place, json.loads((place / MARKER).read_text(encoding="utf-8")))


def default_place(model: Any) -> Path:
    """Where an export goes when the user names no folder.

    >>> default_place("org/name").as_posix()
    'exports/name'
    """
    name = model if isinstance(model, (str, Path)) else getattr(model, "name", type(model).__name__)
    return Path("exports") / folder_name(str(name))


def prepare(
    model: LoadedModel,
    layer: int,
    readout: Readout,
    folder: Path,
    *,
    texts: Sequence[str] | None = None,
    brief: bool = False,
    max_length: int = DEFAULT_MAX_LENGTH,
    extend: bool = False,
    unit: bool = False,
    center: Centering | None = None,
    sides: tuple[Side, ...] = (),
) -> Draft:
    """Write a folder and say what it claims to be, in the order in which it can be refused; nothing
    is verified yet.

    `extend`: a text cut under a template that joins it loses the joint, and with it much of its
    meaning. Such a folder then reads longer texts than were evaluated.
    """
    check_cuttable(model)
    template = get_template(readout.template)
    every = [*verification_texts(brief=brief), text_longer_than(max_length), *(texts or ())]
    probes = [text for text in dict.fromkeys(every) if text.strip()]
    # of more texts than are read: comparing token ids takes no time
    compared = list(dict.fromkeys([*SHORT, LONG[0], *probes]))
    if sides:  # each puts its own words before a text, and the tokenizer what follows it
        template = replace(template, pattern=SLOT + template.pattern.split(SLOT)[1])
        compared = [side.prompt + text for side in sides for text in compared]
    framed = frame_tokenizer(model, template, max_length, compared)
    if extend and not framed.exact_when_cut:
        framed = framed.longer(
            max(max_length, min(model.max_length or FRAMED_MAX_LENGTH, FRAMED_MAX_LENGTH))
        )
        probes.append(
            text_longer_than(framed.max_length)
        )  # a text that this folder, too, has to cut
    head = None
    if readout.centering != "none" and not sides:
        assert center is not None
        head = center(framed.ids)
    route = write_cut(model, layer, readout.final_norm, folder)
    draft = Draft(
        folder, model, layer, readout, route, framed, max_length, unit, head, probes, sides
    )
    write_folder(draft)
    return draft


def _check_formats(names: Sequence[str]) -> list[str]:
    """The formats besides the folder, each asked whether it can be written."""
    extra = list(dict.fromkeys(names))
    for name in extra:
        FORMATS.get(name).check()
    return extra


def _readout(given: str | Readout | None) -> Readout | None:
    if given is None:
        return None
    readout = given.check() if isinstance(given, Readout) else Readout.parse(given)
    check_expressible(readout)
    return readout


def _layer(model: LoadedModel, layer: int) -> int:
    chosen = layer if layer >= 0 else model.n_blocks + 1 + layer
    if not 0 <= chosen <= model.n_blocks:
        raise ExportError(
            f"layer {layer} does not exist: {model.name} has layers 0 to {model.n_blocks} (or -1 for the last)."
        )
    return chosen


def _check(model: LoadedModel, readout: Readout) -> None:
    check_expressible(readout)
    check_cuttable(model)
    if POOLINGS.get(readout.pooling).needs_cls and not model.has_class_token:
        raise ExportError(
            f"readout {readout.name!r}: {model.name} has no CLS token. The nearest: readout='{readout.template}/last/…'"
        )


def _length(model: LoadedModel, asked: int | None, evidence: ExportEvidence | None) -> int:
    length = (
        asked if asked is not None else (evidence and evidence.max_length) or DEFAULT_MAX_LENGTH
    )
    if length < 1:
        raise InvalidValueError(f"max_length must be at least 1, not {length}.")
    return length if model.max_length is None else min(length, model.max_length)


def _unit(model: LoadedModel, asked: bool | None, evidence: ExportEvidence | None) -> bool:
    if asked is not None:
        return asked
    measured = None if evidence is None else evidence.unit_length
    return bool(model.identity.get("normalizes") if measured is None else measured)


def _mean(
    model: LoadedModel,
    layer: int,
    readout: Readout,
    evidence: ExportEvidence | None,
    center_on: tuple[str | Path | Sequence[str] | None, str | None],
    store: str | Path | None,
    offline: bool,
    ids_of: Any,
) -> Head:
    """The mean to subtract. `center_on` are the texts to center on, where some were named, and
    their column."""
    named, column = center_on
    if named is not None:
        from layerscope.data import load_corpus

        corpus = load_corpus(named, column=column, offline=offline)
        vectors = pooled_vectors(model, ids_of(list(corpus.texts)), layer, readout)
        commit = corpus.source.get("commit")
        at = f" at commit {commit[:12]}" if commit else ""
        return Head(
            vectors.mean(0, dtype=np.float64), None, f"the {len(corpus)} texts of {corpus.name}{at}"
        )
    if evidence is not None and (known := evidence.center_texts()) is not None:
        return Head(
            pooled_vectors(model, ids_of(known[0]), layer, readout).mean(0, dtype=np.float64),
            None,
            known[1],
        )
    if evidence is not None:
        return evidence.mean(model, layer, readout, store)
    uncentered = replace(readout, centering="none").name
    raise ExportError(
        f"readout {readout.name!r} subtracts a mean: say over which texts (center_on=, a file or corpus), or give the evaluation "
        f"that used it (choice=). Without centering: readout='{uncentered}'"
    )


# --- a folder that appears complete and verified, or not at all ---


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse to replace anything but an earlier export, and that only when asked."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportError(f"{out} is a file; an export needs a folder. Choose another out=.")
    if out.samefile(
        Path()
    ):  # its place is taken by another folder, and whoever stands in it would be nowhere
        raise ExportError(
            f"out={str(out)!r} is the current folder. Name a folder in it, such as out='better'."
        )
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise ExportError(
            f"{out} exists and is not empty. Choose another out=, or overwrite=True to replace an earlier export."
        )
    if out / "modules.json" not in recorded_files(out):
        raise ExportError(
            f"{out} holds no export of layerscope that says which files are its own, and only those are replaced. "
            "Choose another out=."
        )


@contextmanager
def published(out: Path, overwrite: bool) -> Iterator[Path]:
    """A scratch folder beside `out` that takes its place at the end.

    One process at a time: another one is refused. Files in `out` that no export recorded writing
    are kept.
    """
    out = out.resolve()  # of a link, what it points to is replaced
    with lock_beside(out, "exporting"):
        with explained(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            for earlier in out.parent.glob(f".{glob.escape(out.name)}{_ASIDE}.*.part"):
                if (
                    out.exists()
                ):  # an export was killed after it took the place of this one, or before
                    give_back(remove_recorded(earlier), earlier, out)
                else:
                    os.rename(earlier, out)
            remove_parts(out.parent, of=(f".{out.name}",))  # of exports that were killed
            check_free(out, overwrite)  # another process may have written it meanwhile
            scratch = part_of(out)
            scratch.mkdir()
        try:
            with explained(out):
                yield scratch
                record_files(scratch)
                _replace(scratch, out)
        except ExportError as error:
            raise ExportError(f"{error} Nothing was written to {out}.") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _replace(scratch: Path, out: Path) -> None:
    for file in scratch.rglob("*.safetensors"):
        file.chmod(
            (scratch / "modules.json").stat().st_mode
        )  # written for one user only, unlike the rest
    aside = part_of(out.with_name(out.name + _ASIDE))
    if out.exists():
        os.rename(out, aside)
    os.rename(scratch, out)
    sync_folder(out.parent)
    give_back(remove_recorded(aside), aside, out)
