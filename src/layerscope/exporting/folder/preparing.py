"""Writing a folder: tokenizer, mean, cut model and modules, in the order in which they can be refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from layerscope.core.readout import Readout, get_template
from layerscope.exporting.checking.texts import beyond, verification_texts
from layerscope.exporting.draft import Draft
from layerscope.exporting.folder.cutting import check_cuttable, write_cut
from layerscope.exporting.folder.tokenizing import bake
from layerscope.exporting.folder.writing import write_modules, write_tokenizer
from layerscope.models import LoadedModel

DEFAULT_MAX_LENGTH = 256  # the evaluation's
FRAMED_MAX_LENGTH = 2048  # where cutting a text would break its frame, fewer texts are cut

Centre = Callable[[Callable[[Sequence[str]], list[list[int]]]], tuple[np.ndarray, str]]
"""Finds the mean to subtract, and over what it is, given how texts become token ids."""


def prepare(
    model: LoadedModel,
    layer: int,
    readout: Readout,
    folder: Path,
    *,
    texts: Sequence[str] | None = None,
    max_length: int = DEFAULT_MAX_LENGTH,
    extend: bool = False,
    unit: bool = False,
    centre: Centre | None = None,
) -> Draft:
    """Write a folder and say what it claims to be; nothing is verified yet.

    `extend`: a text cut under a template that joins it loses the joint, and with it much of its meaning. Such a folder then
    reads longer texts than were evaluated.
    """
    check_cuttable(model)
    template = get_template(readout.template)
    probes = [text for text in dict.fromkeys([*verification_texts(), beyond(max_length), *(texts or ())]) if text.strip()]
    baked = bake(model, template, max_length, probes)
    if extend and not baked.exact_when_cut:
        baked = baked.longer(max(max_length, min(model.max_length or FRAMED_MAX_LENGTH, FRAMED_MAX_LENGTH)))
        probes.append(beyond(baked.max_length))  # a text that this folder, too, has to cut
    mean, centred_on = (None, None)
    if readout.centering == "corpus":
        assert centre is not None
        mean, centred_on = centre(baked.ids)
    route = write_cut(model, layer, readout.final_norm, folder)
    draft = Draft(folder, model, layer, readout, route, baked, max_length, unit, mean, centred_on, probes)
    write_tokenizer(draft)
    write_modules(draft)
    return draft
