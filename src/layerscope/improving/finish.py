"""The end of an improvement: its evidence, its manifest, its map and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.choose.judges.base import TEXTS
from layerscope.core.conventions import LAYER
from layerscope.core.conventions import Reading as ReadingConventions
from layerscope.core.readout import Readout, describe_readout
from layerscope.data.corpus import columns_beside
from layerscope.improving.candidates import StoredCandidates, server_needs
from layerscope.improving.decision import COLUMNS, Evidence, NeighborShares, Outcome, Training
from layerscope.improving.judging import Judges
from layerscope.improving.reader import TIMED, Chosen, Encode, texts_per_second
from layerscope.improving.request import Run
from layerscope.improving.result import BeforeAfter, Improved, neighbor_table
from layerscope.improving.scoring import Scored
from layerscope.improving.words import UNTRAINED, card_words, choice_reason
from layerscope.maps import MOST, LayerMap, Vectors, make_map
from layerscope.store.folder import config_key
from layerscope.version import VERSION


@dataclass(frozen=True)
class Made:
    """A choice and the model that is read accordingly, with its mean, head or trained blocks.

    `teacher` names the prompt that taught a head; `training` compares a student with its head.
    """

    outcome: Outcome
    chosen: Chosen
    teacher: str | None = None
    training: Training | None = None
    notes: tuple[str, ...] = ()


def todays_reading(run: Run) -> Chosen:
    """Return the model as a user reads it today: the last layer, the mean of its tokens."""
    return Chosen(run.reader, Readout(), run.model.n_blocks)


def finish(run: Run, judges: Judges, scored: Scored, result: Made) -> Improved:
    """Measure the result beside today's reading, and export it where a folder is wanted."""
    candidates = scored.candidates
    texts = run.sample.texts
    chosen = result.chosen
    training = result.training
    today = todays_reading(run)
    before = candidates.raw(today.readout)[today.layer]
    choice = result.outcome.choice
    evidence = replace(
        result.outcome.evidence,
        teacher=result.teacher,
        texts_per_second=compare_speeds(judges, today.encode, chosen.encode, texts),
    )
    if training is None:
        after = chosen.transform(candidates.raw(chosen.readout)[chosen.layer])
        evidence = replace(evidence, neighbors=neighbor_shares(judges, scored, today, chosen))
    else:
        after = chosen.encode(texts)
        choice = replace(choice, before=training.today, after=training.student)
        evidence = replace(
            evidence,
            score_name="agreement with the teacher",
            before=training.today,
            after=training.student,
            interval=training.over_today,
            training=training,
        )
    notes = (*scored.notes, *result.notes)
    if run.model.identity.get("untrained"):
        notes = (*notes, UNTRAINED)
    sampled = BeforeAfter(texts, before, after)
    return write_result(
        run,
        Outcome(choice, evidence),
        chosen,
        sampled,
        neighbor_table(sampled),
        map_of_choice(run, candidates, chosen, None if training is None else after),
        notes,
    )


def keep_reading(run: Run, reason: str, readout: Readout) -> Improved:
    """Return the model as it is read today, where nothing is judged."""
    model = run.model
    texts = run.sample.texts
    run.reader.read([readout], list(texts), run.bar, f"{model.name}|readings")
    candidates = StoredCandidates(run.reader, [readout], {TEXTS: texts})
    chosen = Chosen(run.reader, readout, model.n_blocks)
    choice = Choice(
        model.n_blocks,
        readout.name,
        tied=(model.n_blocks,),
        rule="improve",
        layers=model.n_blocks,
        reason=reason,
        abstained=True,
        table=pd.DataFrame(columns=COLUMNS),
    )
    vectors = candidates.raw(readout)[model.n_blocks]
    sampled = BeforeAfter(texts, vectors, vectors)
    outcome = Outcome(choice, Evidence("none was asked", kept_default=True))
    layer_map = map_of_choice(run, candidates, chosen)
    return write_result(run, outcome, chosen, sampled, neighbor_table(sampled), layer_map)


def compare_speeds(
    judges: Judges, today: Encode, now: Encode, texts: Sequence[str]
) -> dict[str, float]:
    """Return texts per second of `today`, of the choice (`now`) and of the judging encoder."""
    encoders = {"today": today, "now": now}
    if judges.encoder is not None:
        encoders[judges.encoder_name] = judges.encoder.encode
    return texts_per_second(encoders, texts[:TIMED])


def neighbor_shares(
    judges: Judges, scored: Scored, today: Chosen, chosen: Chosen
) -> NeighborShares | None:
    """Return the shares of the right nearest neighbors that two readings find.

    None where no encoder and no consensus says which are right.
    """
    if scored.agreement is None:
        return None
    reference = scored.agreement.reference
    shares = []
    for reading in (today, chosen):
        cosines = scored.candidates.similarity(reading.readout, reading.layer)
        if cosines is None:
            return None
        shares.append(float(reference.overlap(cosines.to(reference.near.device)).mean()))
    return NeighborShares(judges.encoder_name, *shares)


def map_of_choice(
    run: Run, candidates: StoredCandidates, chosen: Chosen, trained: np.ndarray | None = None
) -> LayerMap | None:
    """Return the map of today's reading and of the chosen one, where that is another.

    `trained` are the vectors of a student, which has them at its last layer alone. The sample is in
    random order, so that its first texts are a sample, too.
    """
    sample = run.sample
    texts = sample.texts[:MOST]
    today = candidates.readouts[0]

    def at_layers(name: str, readout: Readout, layer: int) -> Vectors:
        vectors = candidates.vectors(readout)[:, : len(texts)]
        words = describe_readout(readout.name)
        return Vectors(name, words, candidates.layers, layer, vectors)

    readings = [at_layers("today", today, run.model.n_blocks)]
    if trained is not None:
        words = "the trained blocks, through their head"
        layer = chosen.layer
        readings.append(Vectors("better", words, [layer], layer, [trained[: len(texts)]]))
    elif (chosen.readout, chosen.layer) != (today, run.model.n_blocks):
        readings.append(at_layers("better", chosen.readout, chosen.layer))
    return make_map(
        run.model.name,
        sample.name,
        run.model.n_blocks,
        readings,
        texts=texts,
        count=len(texts),
        total=sample.total,
        columns=columns_beside(sample.facts.get("source") or {}, texts),
    )


def write_result(
    run: Run,
    outcome: Outcome,
    chosen: Chosen,
    sampled: BeforeAfter,
    neighbors: pd.DataFrame,
    layer_map: LayerMap | None = None,
    notes: Sequence[str] = (),
) -> Improved:
    """Return the result, written and verified where the request names a folder."""
    request = run.request
    evidence = outcome.evidence
    choice = replace(
        outcome.choice,
        model=run.model.name,
        reason=choice_reason(outcome.choice, evidence),
        warnings=(*notes, *_reading_notes(run, chosen.readout)),
        metric=evidence.score_name,
        identity=run.model.identity,
        max_length=run.reader.max_length,
        unit_length=True,
    )
    if not request.texts:
        neighbors = neighbors.iloc[:0]
        layer_map = None if layer_map is None else layer_map.without_texts()
    _, formats = server_needs(run.model, chosen.readout, request.servers)
    result = Improved(
        choice,
        choice.table,
        neighbors,
        _make_manifest(run, choice, evidence, chosen),
        sampled=sampled,
        chosen=replace(chosen, formats=tuple(formats)),
        card=card_words(run.sample.name, choice, request.texts),
    )
    result._map = layer_map
    if request.out is not None:
        run.bar.begin(f"writing {request.out}|folder", 1)
        result.save(request.out, request.overwrite)
        run.bar.advance(1)
    return result


def _reading_notes(run: Run, readout: Readout) -> list[str]:
    """Return notes on texts that were cut, and on weights that were quantized."""
    notes = []
    texts = run.sample.texts
    for name in dict.fromkeys(["plain", readout.template]):
        cut = run.reader.truncated(name, texts)
        if cut:
            notes.append(
                f"{cut} of {len(texts)} texts were cut to {run.reader.max_length} tokens ({name})."
            )
    quantization = run.model.identity.get("quantization")
    if quantization:
        notes.append(f"the weights were quantized ({quantization}) in their source.")
    return notes


def _make_manifest(run: Run, choice: Choice, evidence: Evidence, chosen: Chosen) -> dict[str, Any]:
    """Return the manifest of a finished run."""
    request = run.request
    fitted = chosen.fitted
    centered = None
    centering = "none"
    if fitted is not None:
        centered = {"texts": fitted.texts, "of": fitted.total, "asked": request.center_on}
        if evidence.training is None:
            centering = f"the mean over {fitted.head.fitted_on} is subtracted"
    # the readout names the norm
    reading = ReadingConventions(None, run.reader.max_length, run.model.anatomy.final_norm_name)
    sampled = len(run.sample.texts)
    config = run.config
    return {
        "kind": "improve",
        "key": config_key(config),
        "config": config,
        "layerscope": VERSION,
        "status": "complete",
        "model": run.model.identity,
        "texts": {**run.sample.facts, "sampled": sampled, "centered_on": centered},
        "judge": config["judge"],
        "evidence": asdict(evidence),
        "choice": choice.as_dict(),
        "conventions": {
            "layer": LAYER,
            "centering": centering,
            **reading.as_conventions(),
            "seed": request.seed,
        },
        "warnings": choice.warnings,
        "seconds": perf_counter() - run.started,
    }
