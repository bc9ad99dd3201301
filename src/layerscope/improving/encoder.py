"""Sentence encoders: `improve` leaves out blocks of those whose folder it can rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from layerscope.blocks.encoder import Encoder
from layerscope.blocks.folder import reads_last_state
from layerscope.blocks.job import Request, Texts, make_faster
from layerscope.blocks.result import FasterEncoder
from layerscope.blocks.train import TrainRequest
from layerscope.choose.labels.read import Labeled
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.exporting.describing import license_of
from layerscope.exporting.servers import SERVERS, check_servers
from layerscope.improving.request import ImproveRequest, Run
from layerscope.improving.resume import is_done, training_folder
from layerscope.improving.sample import Sample, own_readout
from layerscope.models import LoadedModel
from layerscope.models.load import at_commit
from layerscope.models.source import resolve
from layerscope.progress import OnRows, Progress
from layerscope.store.folder import config_key
from layerscope.version import VERSION


def encoder_folder(source: Any, model: LoadedModel) -> Path | None:
    """Return the folder of a sentence encoder whose blocks can be left out; None for other models.

    An export of layerscope stays as it is, and so does what reads an inner state.
    """
    identity = model.identity
    if not isinstance(source, (str, Path)) or not identity.get("sentence_encoder"):
        return None
    if identity.get("exported") or identity.get("untrained") or model.n_blocks < 2:
        return None
    folder = resolve(at_commit(source, model)).path
    return folder if reads_last_state(folder) else None


def improve_encoder(
    request: ImproveRequest,
    model: LoadedModel,
    folder: Path,
    sample: Sample,
    labels: Labeled | None,
    bar: Progress,
    *,
    queries: Sequence[str] = (),
    work: Path | None = None,
    on_rows: OnRows | None = None,
) -> FasterEncoder:
    """Make an encoder faster on a sample; a run that is finished in `out` is read back.

    With queries the texts of the sample are the documents that they should find.
    """
    _check_opens(folder, request.servers)
    texts = Texts.divide(sample.name, sample.facts, [*sample.texts, *sample.more], queries)
    config = {
        "model": model_key(model.identity),
        "texts": sample.facts["fingerprint"],
        "queries": sha256("\n".join(queries).encode()).hexdigest() if queries else None,
        "count": len(texts.fitted),
        "labels": None if labels is None else labels.fingerprint,
        "max_length": request.max_length,
        "budget": request.budget,
        "keep": request.keep,
        "seed": request.seed,
        "train": None if request.train is None else dict(request.train),
        "time": request.time,
        "layerscope": VERSION,
    }
    out = request.out
    if out is not None and is_done(out, request.overwrite, config):
        return FasterEncoder.load(out)
    encoder = Encoder.open(folder, model.device, model.dtype, request.max_length)
    with training_folder(work) as checkpoints:
        training = None
        if request.train is not None:
            place = checkpoints / config_key(config)[:16]
            place.mkdir(exist_ok=True)
            training = TrainRequest(place, request.time, request.train, on_rows)
        result = make_faster(
            encoder,
            texts,
            Request(request.budget, request.keep, request.seed, training),
            model.identity,
            bar,
            labels=labels,
            license_name=license_of(model, folder),
            config=config,
        )
    if out is not None:
        bar.begin(f"writing {out}|folder", 1)
        result.save(out, request.overwrite)
        bar.advance(1)
    return result


def encoder_readout(run: Run) -> Readout:
    """Return how a sentence encoder reads its texts itself."""
    folder = None
    if isinstance(run.source, str | Path):
        commit = at_commit(run.source, run.model)
        folder = resolve(commit).path
    return own_readout(folder, run.model.width)


def _check_opens(folder: Path, servers: Sequence[str]) -> None:
    """Raise if servers do not open an encoder's folder: nor will they with fewer blocks."""
    problems = check_servers(folder, servers) if servers else {}
    words = [f"{SERVERS[name].title}: {'; '.join(each)}" for name, each in problems.items() if each]
    if words:
        raise LayerscopeError(
            f"the encoder does not open there as it is, nor with fewer blocks. {' '.join(words)}."
        )
