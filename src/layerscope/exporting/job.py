"""The flow of an export: write the folder, verify it in a fresh process, publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.files import read_json
from layerscope.core.heads import Head
from layerscope.core.runs import MARKER, refuse_newer
from layerscope.core.templates import SLOT, get_template
from layerscope.errors import ExportError
from layerscope.exporting.cutting import check_cuttable, write_cut
from layerscope.exporting.describing import describe, write_record
from layerscope.exporting.draft import (
    LONG,
    SHORT,
    Draft,
    ExportRequest,
    check_expressible,
    text_longer_than,
)
from layerscope.exporting.folder import published
from layerscope.exporting.formats import ExportFormat
from layerscope.exporting.formats.sentence_transformers import write_folder
from layerscope.exporting.pushing import pack, push
from layerscope.exporting.tokenizing import FramedTokenizer, frame_tokenizer
from layerscope.exporting.verifying import pooled_vectors, verify

_LONGEST = 2048  # tokens of a folder whose template would be cut


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
        facts = {
            **describe(draft),
            "verification": asdict(verification),
            "license": request.license,
            "evidence": request.evidence,
            "why": request.reason,
            "formats": {chosen.name: chosen.write(draft) for chosen in formats},
        }
        write_record(folder, facts)
        if also is not None:
            also(folder)
    return Exported.load(place)


def write_draft(request: ExportRequest, folder: Path) -> Draft:
    """Write a sentence-transformers folder that is not verified yet."""
    model = request.model
    readout = request.readout
    check_expressible(readout)
    check_cuttable(model)
    framed, texts = _frame(request)
    head = None
    if readout.centering != "none" and not request.sides:
        head = request.head
        if head is None:
            assert request.center_on is not None
            mean_texts, words = request.center_on
            pooled = pooled_vectors(model, framed.ids(mean_texts), request.layer, readout)
            head = Head(pooled.mean(0, dtype=np.float64), None, words)
    draft = Draft(
        folder,
        model,
        request.layer,
        readout,
        write_cut(model, request.layer, readout.final_norm, folder),
        framed,
        request.max_length,
        request.unit,
        head,
        texts,
        request.sides,
    )
    write_folder(draft)
    return draft


def _frame(request: ExportRequest) -> tuple[FramedTokenizer, list[str]]:
    """Return the tokenizer of a folder, and the texts to verify it on.

    A text that is cut under a template loses the template's end, and with it much of its meaning.
    With `longer`, such a folder reads longer texts than were evaluated.
    """
    model = request.model
    length = request.max_length
    template = get_template(request.readout.template)
    distinct = dict.fromkeys([*request.texts, text_longer_than(length)])
    texts = [text for text in distinct if text.strip()]
    # Token ids are compared on more texts than vectors are: that takes no time.
    compared = list(dict.fromkeys([*SHORT, LONG[0], *texts]))
    if request.sides:  # a side's prompt stands before the text, the tokenizer adds what follows
        template = replace(template, pattern=SLOT + template.pattern.split(SLOT)[1])
        compared = [side.prompt + text for side in request.sides for text in compared]
    framed = frame_tokenizer(model, template, length, compared)
    if request.longer and not framed.exact_when_cut:
        limit = min(model.max_length or _LONGEST, _LONGEST)
        framed = framed.with_length(max(length, limit))
        texts.append(text_longer_than(framed.max_length))
    return framed, texts
