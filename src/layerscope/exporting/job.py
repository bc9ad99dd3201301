"""`export`: a layer of a model as a folder that sentence-transformers and transformers load,
verified before it is published."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.heads import Head
from layerscope.core.json import read_json
from layerscope.core.options import ModelOptions
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.runs import MARKER, refuse_newer
from layerscope.core.templates import SLOT, get_template
from layerscope.data.corpus import refuse_missing
from layerscope.errors import ExportError, InvalidValueError, UnknownNameError
from layerscope.exporting.cutting import check_cuttable, write_cut
from layerscope.exporting.describing import describe, finish, license_of
from layerscope.exporting.draft import (
    LONG,
    SHORT,
    Draft,
    check_expressible,
    text_longer_than,
    verification_texts,
)
from layerscope.exporting.evidence import ExportEvidence
from layerscope.exporting.folder import check_free, default_place, published
from layerscope.exporting.formats import parse_formats
from layerscope.exporting.formats.sentence_transformers import write_folder
from layerscope.exporting.request import DEFAULT_MAX_LENGTH, ExportRequest
from layerscope.exporting.tokenizing import FramedTokenizer, frame_tokenizer
from layerscope.exporting.verifying import pooled_vectors, require_sentence_transformers, verify
from layerscope.models import LoadedModel, open_model

_FRAMED_MAX_LENGTH = 2048  # where cutting a text would break its frame, fewer texts are cut


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
        maps. Return its address."""
        from layerscope.exporting.pushing import pack, push

        return push(pack(self.path, repo, public))

    @property
    def layer(self) -> int:
        """The layer that is read."""
        return int(self.facts["layer"])

    @property
    def readout(self) -> str:
        """The readout's name."""
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
    texts: Sequence[str] = (),
    center_on: str | Path | Sequence[str] | None = None,
    column: str | None = None,
    head: Head | None = None,
    max_length: int | None = None,
    normalize: bool | None = None,
    formats: Sequence[str] = (),
    store: str | Path | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Exported:
    """Cut a model at `layer`, save it with `readout` as a sentence-transformers folder, and verify
    that folder.

    - `choice`: what chooses the layer and readout if they are not given: the folder of a profile or
      an evaluation, a file that `layerscope select --json` wrote, or a `Choice`. It also gives the
      evidence in the model card. From an evaluation come the maximum length, the scaling and the
      mean for centering as well.
    - `center_on`: other texts to center on: a file (and its `column`), a corpus, or texts.
    - `head`: what is applied to the pooled vectors, if it is already known: a mean to subtract, or
      a linear map that `improve` fitted.
    - `texts`: texts to verify on, besides the built-in ones.
    - `normalize`: scale vectors to length 1. None: as in the run, or in the model's own pipeline.
    - `out`: the folder to write; by default `exports/` and the model's name. An earlier export
      there is replaced only with `overwrite`.
    - `formats`: formats to write besides that folder, such as `onnx`.

    Options of the model (dtype, device, revision, adapters, …) are plain keywords. The folder has
    the model's precision: `dtype="bfloat16"` makes it smaller.
    """
    loading = ModelOptions.take(options).given()
    if options:
        valid = {*ModelOptions.names(), *inspect.signature(export).parameters} - {"options"}
        raise UnknownNameError("option of export", next(iter(options)), valid)
    require_sentence_transformers()
    chosen_formats = parse_formats(formats)
    place = default_place(model) if out is None else Path(out)
    check_free(place, overwrite)
    asked_readout = _parse_readout(readout)
    if column is not None and center_on is None:
        raise ExportError("column= names a column of the center_on= file: give that file too.")
    refuse_missing(center_on)
    loaded = open_model(model, tokenizer, loading)
    evidence = None if choice is None else ExportEvidence.load(choice)
    answer = None
    notes: list[str] = []
    if evidence is not None:
        evidence.check(loaded)
        chosen_layer = None if layer is None else _check_layer(loaded, layer)
        chosen_layer, asked_readout, answer, notes = evidence.choose(chosen_layer, asked_readout)
    elif layer is not None:
        chosen_layer = _check_layer(loaded, layer)
    else:
        raise ExportError(
            f"say which layer= (0 to {loaded.n_blocks}), or give choice= with the folder of a run."
        )
    plan = asked_readout or Readout()
    _check_readout(loaded, plan)
    if plan.centering == HEAD and (head is None or head.matrix is None):
        raise ExportError(
            f"readout {plan.name!r} goes through a head, which `improve` fits and exports; or give "
            "it (head=)."
        )
    if center_on is not None and plan.centering != "corpus":
        raise ExportError(
            f"center_on= gives texts to center on, and the readout {plan.name} does not center. "
            f"Leave it out, or give readout={replace(plan, centering='corpus').name!r}"
        )
    mean_texts = None
    if plan.centering == "corpus" and head is None:
        mean_texts = _mean_texts(plan, evidence, center_on, column)
        if mean_texts is None and evidence is not None:
            head = evidence.mean(loaded, chosen_layer, plan, store)
    about = None if evidence is None else evidence.facts(chosen_layer, plan, answer, notes)
    request = ExportRequest(
        loaded,
        chosen_layer,
        plan,
        texts=(*verification_texts(), *texts),
        max_length=_length(loaded, max_length, evidence),
        longer=max_length is None,
        unit=_unit(loaded, normalize, evidence),
        head=head,
        center_on=mean_texts,
        formats=chosen_formats,
        license=license_of(loaded, model),
        evidence=about,
    )
    return write_export(request, place, overwrite)


def write_export(
    request: ExportRequest,
    place: Path,
    overwrite: bool = False,
    also: Callable[[Path], None] | None = None,
) -> Exported:
    """Write and verify a folder. `also` writes further files before it appears in its place."""
    for chosen in request.formats:
        chosen.check_choice(request.model, request.layer, request.readout)
    with published(place, overwrite) as folder:
        draft = write_draft(request, folder)
        facts = {
            **describe(draft, verify([draft])[0]),
            "license": request.license,
            "evidence": request.evidence,
            "why": request.why,
            "formats": {chosen.name: chosen.write(draft) for chosen in request.formats},
        }
        finish(draft, facts)
        if also is not None:
            also(folder)
    return Exported.load(place)


def write_draft(request: ExportRequest, folder: Path) -> Draft:
    """Write a folder and return what it claims to be; nothing is verified yet."""
    model, readout = request.model, request.readout
    check_expressible(readout)
    check_cuttable(model)
    framed, texts = _frame(request)
    head = None
    if readout.centering != "none" and not request.sides:
        head = request.head
        if head is None and request.center_on is not None:
            mean_texts, words = request.center_on
            pooled = pooled_vectors(model, framed.ids(mean_texts), request.layer, readout)
            head = Head(pooled.mean(0, dtype=np.float64), None, words)
        assert head is not None
    route = write_cut(model, request.layer, readout.final_norm, folder)
    draft = Draft(
        folder, model, request.layer, readout, route, framed, request.max_length, request.unit,
        head, texts, request.sides,
    )  # fmt: skip
    write_folder(draft)
    return draft


def _frame(request: ExportRequest) -> tuple[FramedTokenizer, list[str]]:
    """Return the tokenizer of a folder, and the texts to verify it on.

    A text that is cut under a template loses the template's end, and with it much of its meaning.
    With `longer`, such a folder reads longer texts than were evaluated.
    """
    model, length = request.model, request.max_length
    template = get_template(request.readout.template)
    given = dict.fromkeys([*request.texts, text_longer_than(length)])
    texts = [text for text in given if text.strip()]
    # token ids of more texts than are encoded: that takes no time
    compared = list(dict.fromkeys([*SHORT, LONG[0], *texts]))
    if request.sides:  # a side's prompt stands before the text, the tokenizer adds what follows
        template = replace(template, pattern=SLOT + template.pattern.split(SLOT)[1])
        compared = [side.prompt + text for side in request.sides for text in compared]
    framed = frame_tokenizer(model, template, length, compared)
    if request.longer and not framed.exact_when_cut:
        most = min(model.max_length or _FRAMED_MAX_LENGTH, _FRAMED_MAX_LENGTH)
        framed = framed.longer(max(length, most))
        texts.append(text_longer_than(framed.max_length))
    return framed, texts


def _parse_readout(readout: str | Readout | None) -> Readout | None:
    if readout is None:
        return None
    parsed = readout.check() if isinstance(readout, Readout) else Readout.parse(readout)
    check_expressible(parsed)
    return parsed


def _check_layer(model: LoadedModel, layer: int) -> int:
    """Return the number of a layer; negative ones count from the last."""
    number = layer if layer >= 0 else model.n_blocks + 1 + layer
    if not 0 <= number <= model.n_blocks:
        raise ExportError(
            f"layer {layer} does not exist: {model.name} has layers 0 to {model.n_blocks} (or -1 "
            "for the last)."
        )
    return number


def _check_readout(model: LoadedModel, readout: Readout) -> None:
    check_expressible(readout)
    check_cuttable(model)
    if POOLINGS.get(readout.pooling).needs_cls and not model.has_class_token:
        raise ExportError(
            f"readout {readout.name!r}: {model.name} has no CLS token. The nearest: "
            f"readout='{readout.template}/last/…'"
        )


def _length(model: LoadedModel, length: int | None, evidence: ExportEvidence | None) -> int:
    if length is None:
        length = (evidence and evidence.max_length) or DEFAULT_MAX_LENGTH
    if length < 1:
        raise InvalidValueError(f"max_length must be at least 1, not {length}.")
    return length if model.max_length is None else min(length, model.max_length)


def _unit(model: LoadedModel, normalize: bool | None, evidence: ExportEvidence | None) -> bool:
    if normalize is not None:
        return normalize
    measured = None if evidence is None else evidence.unit_length
    return bool(model.identity.get("normalizes") if measured is None else measured)


def _mean_texts(
    readout: Readout,
    evidence: ExportEvidence | None,
    center_on: str | Path | Sequence[str] | None,
    column: str | None,
) -> tuple[list[str], str] | None:
    """Return the texts whose mean is subtracted and words for them; None if an evaluation has the
    mean."""
    if center_on is not None:
        from layerscope.data import load_corpus

        corpus = load_corpus(center_on, column=column)
        commit = corpus.source.get("commit")
        at = f" at commit {commit[:12]}" if commit else ""
        return list(corpus.texts), f"the {len(corpus)} texts of {corpus.name}{at}"
    if evidence is not None:
        return evidence.center_texts()
    raise ExportError(
        f"readout {readout.name!r} subtracts a mean: say over which texts (center_on=, a file or "
        "corpus), or give the evaluation that used it (choice=). Without centering: "
        f"readout='{replace(readout, centering='none').name}'"
    )
