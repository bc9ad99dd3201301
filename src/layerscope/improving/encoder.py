"""Sentence encoders: `improve` leaves out blocks of those whose folder it can rewrite."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from layerscope.blocks.encoder import Encoder
from layerscope.blocks.job import Request, Texts, make_faster
from layerscope.blocks.result import FasterEncoder, reads_last_state
from layerscope.blocks.train import TrainRequest
from layerscope.core.identity import model_key
from layerscope.errors import LayerscopeError
from layerscope.exporting.card import license_of
from layerscope.exporting.servers import SERVERS, check_servers
from layerscope.improving.finish import keep_reading
from layerscope.improving.judging import own_readout
from layerscope.improving.request import Run, training_folder
from layerscope.improving.result import Improved
from layerscope.models.load import at_commit
from layerscope.models.source import resolve
from layerscope.store.folder import config_key
from layerscope.version import VERSION


def source_folder(run: Run) -> Path | None:
    """Return the folder of a model that was given by name; None for one in memory."""
    if not isinstance(run.source, str | Path):
        return None
    return resolve(at_commit(run.source, run.model)).path


def shortened_folder(run: Run) -> Path | None:
    """Return the folder of a sentence encoder whose blocks can be left out; None for other models.

    An export of layerscope stays as it is, and so does what reads an inner state.
    """
    identity = run.model.identity
    is_kept = identity.get("exported") or identity.get("untrained") or run.model.n_blocks < 2
    if not identity.get("sentence_encoder") or is_kept:
        return None
    folder = source_folder(run)
    return folder if folder is not None and reads_last_state(folder) else None


def improve_encoder(run: Run, folder: Path) -> FasterEncoder:
    """Make an encoder faster on a sample; a run that is finished in `out` is read back.

    With queries the texts of the sample are the documents that they should find.
    """
    request = run.request
    sample = run.sample
    _check_opens(folder, request.servers)
    queries = [] if run.search is None else run.search.queries
    texts = Texts.divide(sample.name, sample.facts, [*sample.texts, *sample.more], queries)
    config: dict[str, Any] = {
        "model": model_key(run.model.identity),
        "texts": sample.facts["fingerprint"],
        "queries": sha256("\n".join(queries).encode()).hexdigest() if queries else None,
        "count": len(texts.fitted),
        "labels": None if run.labels is None else run.labels.fingerprint,
        "max_length": request.max_length,
        "budget": request.budget,
        "keep": request.keep,
        "seed": request.seed,
        "train": None if request.train is None else dict(request.train),
        "time": request.time,
        "layerscope": VERSION,
    }
    if request.out is not None and request.is_done(config):
        return FasterEncoder.load(request.out)
    encoder = Encoder.open(folder, run.model.device, run.model.dtype, request.max_length)
    with training_folder(run.work) as checkpoints:
        training = None
        if request.train is not None:
            place = checkpoints / config_key(config)[:16]
            place.mkdir(exist_ok=True)
            training = TrainRequest(place, request.time, request.train, run.on_rows)
        result = make_faster(
            encoder,
            texts,
            Request(request.budget, request.keep, request.seed, training),
            run.model.identity,
            run.bar,
            labels=run.labels,
            license_name=license_of(run.model, folder),
            config=config,
        )
    if request.out is not None:
        run.bar.begin(f"writing {request.out}|folder", 1)
        result.save(request.out, request.overwrite)
        run.bar.advance(1)
    return result


def keep_encoder(run: Run) -> Improved:
    """Return a sentence encoder as it is: it was trained for its own reading."""
    model = run.model
    if run.request.trains:
        raise LayerscopeError(
            f"{model.name} is a sentence encoder, which improve does not train. Leave out train=."
        )
    reason = "it comes with a pipeline for sentence embeddings, which stays"
    exported = model.identity.get("exported")
    if model.identity.get("untrained"):
        reason = (
            "its weights are as before any training, whatever its folder says: no reading of it "
            "means anything"
        )
    elif exported:
        reason = (
            f"it is an export of layerscope already ({exported}). Improve the model that it was "
            "cut from"
        )
    return keep_reading(run, reason, own_readout(source_folder(run)))


def _check_opens(folder: Path, servers: tuple[str, ...]) -> None:
    """Raise if servers do not open an encoder's folder: nor will they with fewer blocks."""
    problems = check_servers(folder, servers) if servers else {}
    words = [
        f"{SERVERS[name].title}: {'; '.join(reasons)}"
        for name, reasons in problems.items()
        if reasons
    ]
    if words:
        raise LayerscopeError(
            f"the encoder does not open there as it is, nor with fewer blocks. {' '.join(words)}."
        )
