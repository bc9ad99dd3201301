"""`export`: a layer and readout, as given or as a run chose them, written as a folder, verified in
a fresh process and published."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layerscope.core.files import read_json
from layerscope.core.options import ModelOptions
from layerscope.core.readout import Readout
from layerscope.core.runs import MARKER, refuse_newer
from layerscope.core.sites import pick_layers
from layerscope.core.templates import POOLINGS
from layerscope.data.corpus import load_corpus, refuse_missing
from layerscope.errors import ExportError, InvalidValueError, UnknownNameError
from layerscope.exporting.card import describe, license_of, write_record
from layerscope.exporting.cutting import check_cuttable
from layerscope.exporting.draft import (
    DEFAULT_MAX_LENGTH,
    ExportRequest,
    check_expressible,
    verification_texts,
)
from layerscope.exporting.evidence import ExportEvidence
from layerscope.exporting.formats import ExportFormat, parse_formats
from layerscope.exporting.pipeline import write_draft
from layerscope.exporting.publishing import check_free, default_place, pack, published, push
from layerscope.exporting.verifying import verify
from layerscope.extras import missing
from layerscope.models import LoadedModel, open_model


@dataclass(frozen=True)
class Exported:
    """An exported folder; `facts` is the content of its layerscope.json."""

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
        """Send the folder to the hub as `user/name`, and return its address.

        The repository is private unless `public`. Tables and maps are not sent.
        """
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
    center_on: str | Path | Sequence[str] | None = None,
    column: str | None = None,
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
    if find_spec("sentence_transformers") is None:
        raise missing("export")
    if max_length is not None and max_length < 1:
        raise InvalidValueError(f"max_length must be at least 1, not {max_length}.")
    chosen_formats = parse_formats(formats)
    place = default_place(model) if out is None else Path(out)
    check_free(place, overwrite)
    if isinstance(readout, str):
        readout = Readout.parse(readout)
    if readout is not None:
        check_expressible(readout.check())
    refuse_missing(center_on)
    loaded = open_model(model, tokenizer, loading)
    if layer is not None:
        (layer,) = pick_layers([layer], loaded.n_blocks, loaded.name)
    evidence = None
    facts = None
    if choice is not None:
        evidence = ExportEvidence.load(choice, readout)
        evidence.check(loaded)
        is_chosen = layer is None or readout is None
        layer, readout = evidence.choose(layer, readout)
        facts = evidence.facts(layer, readout, is_chosen)
    if layer is None:
        raise ExportError(
            f"say which layer= (0 to {loaded.n_blocks}), or give choice= with the folder of a run."
        )
    readout = readout or Readout()
    _check_readout(loaded, readout, center_on is not None)
    head = None
    mean_texts = None
    if center_on is not None:
        mean_texts = _read_texts(center_on, column)
    elif readout.centering == "corpus":
        if evidence is None:
            raise ExportError(
                f"readout {readout.name!r} subtracts a mean: say over which texts (center_on=, a "
                "file or corpus), or give the evaluation that used it (choice=). Without "
                f"centering: readout='{replace(readout, centering='none').name}'"
            )
        mean_texts = evidence.center_texts()
        head = None if mean_texts else evidence.mean(loaded, layer, readout, store)
    length = max_length or (evidence and evidence.choice.max_length) or DEFAULT_MAX_LENGTH
    unit = normalize
    if unit is None and evidence is not None:
        unit = evidence.choice.unit_length
    if unit is None:
        unit = bool(loaded.identity.get("normalizes"))
    request = ExportRequest(
        loaded,
        layer,
        readout,
        texts=tuple(verification_texts()),
        max_length=min(length, loaded.max_length or length),
        longer=max_length is None,
        unit=unit,
        head=head,
        center_on=mean_texts,
        license=license_of(loaded, model),
        evidence=facts,
    )
    return write_export(request, place, overwrite, formats=chosen_formats)


def _check_readout(model: LoadedModel, readout: Readout, has_center: bool) -> None:
    """Raise for a readout that cannot be exported of this model."""
    check_expressible(readout)
    check_cuttable(model)
    if POOLINGS.get(readout.pooling).needs_cls and not model.has_class_token:
        raise ExportError(
            f"readout {readout.name!r}: {model.name} has no CLS token. The nearest: "
            f"readout='{readout.template}/last/…'"
        )
    if has_center and readout.centering != "corpus":
        raise ExportError(
            f"center_on= gives texts to center on, and the readout {readout.name} does not "
            f"center. Leave it out, or give readout={replace(readout, centering='corpus').name!r}"
        )


def _read_texts(texts: str | Path | Sequence[str], column: str | None) -> tuple[list[str], str]:
    """Return the texts whose mean is subtracted, and words for them."""
    corpus = load_corpus(texts, column=column)
    commit = corpus.source.get("commit")
    suffix = f" at commit {commit[:12]}" if commit else ""
    return list(corpus.texts), f"the {len(corpus)} texts of {corpus.name}{suffix}"


def write_export(
    request: ExportRequest,
    place: Path,
    overwrite: bool = False,
    also: Callable[[Path], None] | None = None,
    formats: Sequence[ExportFormat] = (),
) -> Exported:
    """Write and verify a folder, with other formats in it.

    `also` writes further files before the folder appears in its place.
    """
    for chosen in formats:
        chosen.check_choice(request.model, request.layer, request.readout)
    with published(place, overwrite) as folder:
        draft = write_draft(request, folder)
        verification = verify(draft)
        written = {chosen.name: chosen.write(draft) for chosen in formats}
        facts = {**describe(draft), "verification": asdict(verification), "formats": written}
        write_record(folder, facts)
        if also is not None:
            also(folder)
    return Exported.load(place)
