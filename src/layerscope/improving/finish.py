"""The end of an improvement: its evidence, its manifest, its map and its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.choose.judges.base import TEXTS
from layerscope.core.conventions import LAYER
from layerscope.core.conventions import Reading as ReadingConventions
from layerscope.core.readout import Readout
from layerscope.improving.candidates import StoredCandidates, by_template, server_needs
from layerscope.improving.choose import COLUMNS
from layerscope.improving.chosen import Chosen
from layerscope.improving.evidence import Cheaper, Evidence, Training
from layerscope.improving.judging import Judges
from layerscope.improving.maps import map_of_choice
from layerscope.improving.neighbors import BeforeAfter, changed_share, neighbor_table
from layerscope.improving.request import Run
from layerscope.improving.result import Improved
from layerscope.improving.scoring import Scored, neighbor_shares
from layerscope.improving.speed import compare_speeds
from layerscope.improving.words import UNTRAINED, card_words, choice_reason
from layerscope.maps import LayerMap
from layerscope.version import VERSION


@dataclass(frozen=True)
class Made:
    """A choice and the model that is read accordingly, with its mean, head or trained blocks.

    `teacher` names the prompt that taught a head; `training` compares a student with its head.
    """

    choice: Choice
    chosen: Chosen
    teacher: str | None = None
    training: Training | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The choice with its evidence, and the model that is read as was chosen."""

    choice: Choice
    evidence: Evidence
    chosen: Chosen
    sampled: BeforeAfter
    neighbors: pd.DataFrame
    layer_map: LayerMap | None = None
    notes: tuple[str, ...] = ()


def todays_reading(run: Run) -> Chosen:
    """Return the model as a user reads it today: the last layer, the mean of its tokens."""
    return Chosen(run.model, run.reader, Readout(), run.model.n_blocks)


def evidence_of(judges: Judges, choice: Choice) -> Evidence:
    """Return what the judges' scores say of a choice, and what the choice costs."""
    comparison = choice.comparison
    assert comparison is not None
    cheaper = comparison.cheaper
    return Evidence(
        judge=judges.name,
        score_name=judges.score_name,
        today=f"layer {choice.layers} under {Readout().name}",
        kept_default=comparison.kept_default,
        before=choice.before,
        after=choice.after,
        interval=comparison.interval,
        readout_gain=comparison.readout_gain,
        layer_gain=comparison.layer_gain,
        candidates=comparison.candidates,
        near=comparison.near,
        tied=comparison.tied,
        cheaper=None if cheaper is None else Cheaper(*cheaper),
        relative_cost=comparison.relative_cost,
        encoder=judges.trained_encoder,
    )


def finish(run: Run, judges: Judges, scored: Scored, made: Made) -> Improved:
    """Measure the result beside today's reading, and export it where a folder is wanted."""
    candidates = scored.candidates
    texts = run.sample.texts
    chosen = made.chosen
    today = todays_reading(run)
    before = candidates.vectors(today.readout)[-1]
    if made.training is None:
        after = chosen.transform(candidates.raw(chosen.readout, chosen.layer))
    else:
        after = chosen.encode(texts)
    evidence = replace(
        evidence_of(judges, made.choice),
        teacher=made.teacher,
        screened=scored.read.screened,
        texts_per_second=compare_speeds(judges, today.encode, chosen.encode, texts),
        changed_neighbors=changed_share(before, after),
    )
    choice = made.choice
    if made.training is None:
        evidence = replace(evidence, neighbors=neighbor_shares(judges, scored, today, chosen))
    else:
        training = made.training
        evidence = replace(
            evidence,
            score_name="agreement with the teacher",
            before=training.today,
            after=training.student,
            interval=training.over_today,
            training=training,
        )
        choice = replace(choice, before=training.today, after=training.student)
    notes = [*scored.notes, *made.notes]
    if run.model.identity.get("untrained"):
        notes.append(UNTRAINED)
    sampled = BeforeAfter(texts, before, after)
    trained = None if made.training is None else after
    finding = Finding(
        choice,
        evidence,
        chosen,
        sampled,
        neighbor_table(sampled),
        map_of_choice(run.sample, candidates, today, chosen, trained),
        tuple(notes),
    )
    return write_result(run, explain(run, finding))


def keep_reading(run: Run, reason: str, readout: Readout) -> Improved:
    """Return the model as it is read today, where nothing is judged."""
    model = run.model
    texts = run.sample.texts
    run.reader.read(by_template([readout]), list(texts), run.bar, model.name)
    candidates = StoredCandidates(run.reader.spaces, [readout], run.reader.layers, {TEXTS: texts})
    vectors = candidates.vectors(readout)[-1]
    chosen = Chosen(model, run.reader, readout, model.n_blocks)
    choice = Choice(
        model.n_blocks,
        readout.name,
        tied=(model.n_blocks,),
        rule="improve",
        layers=model.n_blocks,
        model=model.name,
        reason=reason,
        abstained=True,
        table=pd.DataFrame(columns=COLUMNS),
    )
    today = f"layer {model.n_blocks} under {readout.name}"
    sampled = BeforeAfter(texts, vectors, vectors)
    finding = Finding(
        choice,
        Evidence("none was asked", today, kept_default=True),
        chosen,
        sampled,
        neighbor_table(sampled),
        map_of_choice(run.sample, candidates, chosen, chosen),
    )
    return write_result(run, finding)


def explain(run: Run, finding: Finding) -> Finding:
    """Return the finding with the reason of its choice in words, and what an export needs."""
    notes = (*finding.notes, *_reading_notes(run, finding.chosen.readout))
    choice = replace(
        finding.choice,
        model=run.model.name,
        reason=choice_reason(finding.choice, finding.evidence),
        warnings=notes,
        metric=finding.evidence.score_name,
        identity=run.model.identity,
        max_length=run.reader.max_length,
        unit_length=True,
    )
    return replace(finding, choice=choice)


def _reading_notes(run: Run, readout: Readout) -> list[str]:
    """Return notes on texts that were cut, and on weights that were quantized."""
    notes = []
    texts = run.sample.texts
    for name in dict.fromkeys(["plain", readout.template]):
        cut = run.reader.truncated(name, texts) if name in run.reader.spaces else 0
        if cut:
            notes.append(
                f"{cut} of {len(texts)} texts were cut to {run.reader.max_length} tokens ({name})."
            )
    quantization = run.model.identity.get("quantization")
    if quantization:
        notes.append(f"the weights were quantized ({quantization}) in their source.")
    return notes


def write_result(run: Run, finding: Finding) -> Improved:
    """Return the result, written and verified where the request names a folder."""
    request = run.request
    neighbors = finding.neighbors
    layer_map = finding.layer_map
    if not request.texts:
        neighbors = neighbors.iloc[:0]
        layer_map = None if layer_map is None else layer_map.without_texts()
    result = Improved(
        finding.choice,
        finding.choice.table,
        neighbors,
        _make_manifest(run, finding),
        sampled=finding.sampled,
        chosen=replace(
            finding.chosen,
            formats=tuple(server_needs(run.model, finding.chosen.readout, request.servers)[1]),
        ),
        card=card_words(run.sample.name, finding.choice, request.texts),
    )
    result._map = layer_map
    if request.out is not None:
        run.bar.begin(f"writing {request.out}|folder", 1)
        result.save(request.out, request.overwrite)
        run.bar.advance(1)
    return result


def _make_manifest(run: Run, finding: Finding) -> dict[str, Any]:
    """Return the manifest of a finished run."""
    request = run.request
    fitted = finding.chosen.fitted
    centered = None
    centering = "none"
    if fitted is not None:
        centered = {"texts": fitted.texts, "of": fitted.total, "asked": request.center_on}
        if finding.evidence.training is None:
            centering = f"the mean over {fitted.head.fitted_on} is subtracted"
    # the readout names the norm
    reading = ReadingConventions(None, run.reader.max_length, run.model.anatomy.final_norm_name)
    return {
        "kind": "improve",
        "key": run.key,
        "config": run.config,
        "layerscope": VERSION,
        "status": "complete",
        "model": run.model.identity,
        "texts": {
            **run.sample.facts,
            "sampled": len(run.sample.texts),
            "centered_on": centered,
        },
        "judge": run.config["judge"],
        "evidence": asdict(finding.evidence),
        "choice": finding.choice.as_dict(),
        "conventions": {
            "layer": LAYER,
            "centering": centering,
            **reading.as_conventions(),
            "seed": request.seed,
        },
        "warnings": finding.choice.warnings,
        "seconds": perf_counter() - run.started,
    }
