"""README.md of an export: the model card, from what layerscope.json holds and the text in card.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerscope.choose.choice import Choice
from layerscope.core.formatting import describe_size
from layerscope.core.readout import DEFAULT_READOUT
from layerscope.core.statistics import Interval
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import opening_section
from layerscope.exporting.words import UNKNOWN, UNMEASURED, block_words, cut_words, size_words

_TEMPLATE = Path(__file__).with_name("card.md")


def model_card(facts: Mapping[str, Any]) -> str:
    """Return the text of README.md, with the metadata that the hub reads at its head."""
    from huggingface_hub import ModelCard

    base, evidence = facts["base"], facts.get("evidence")
    choice = evidence and evidence["choice"]
    formats = facts.get("formats", {})
    values = {
        **facts,
        "blocks": block_words(facts["blocks"]),
        "size": size_words(facts),
        "bytes": describe_size(facts["bytes"]),
        "unmeasured": UNMEASURED,
        "default_readout": DEFAULT_READOUT,
        "gain": _gain,
        "choice": choice and Choice.from_json(choice),
        "sections": [FORMATS.get(name).card(written) for name, written in formats.items()],
        "opening": opening_section(facts["servers"]),
        "versions": ", ".join(
            f"{name} {version}" for name, version in facts["verification"]["versions"].items()
        ),
        "cut_words": cut_words(facts),
        "weights": (base.get("trained") or {}).get("base") or base["weights_sha256"],
    }
    card = ModelCard.from_template(_metadata(facts), template_path=str(_TEMPLATE), **values)
    return re.sub(r"\n{3,}", "\n\n", str(card)).strip() + "\n"


def _metadata(facts: Mapping[str, Any]) -> Any:
    """Return the metadata of the card: the hub shows its scores and links its base model."""
    from huggingface_hub import EvalResult, ModelCardData

    license_name = "unknown" if facts["license"] == UNKNOWN else str(facts["license"])
    title = facts["base"]["title"]
    evidence = facts.get("evidence") or {"scores": []}
    results = [
        EvalResult(
            task_type="sentence-similarity",
            dataset_type=row["task"],
            dataset_name=row["task"],
            dataset_config=row["subset"],
            dataset_split=row["split"],
            metric_type="main_score",
            metric_value=round(row["score"], 2),
        )
        for row in evidence["scores"]
    ]
    return ModelCardData(
        license=license_name if " " in license_name else license_name.lower(),
        base_model=title,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "layerscope"],
        model_name=f"{title} at layer {facts['layer']}" if results else None,
        eval_results=results or None,
    )


def _gain(row: Mapping[str, Any]) -> str:
    gain = Interval.from_row(row, "gain")
    return str(gain) if gain.known else f"{gain.value:+.2f}"
