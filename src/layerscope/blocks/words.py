"""A faster encoder in words: the headline, the facts of a report, and the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerscope.exporting.servers import opening_words

AGREEMENT = "correlation of the similarities of all pairs of texts with the whole encoder's"
RANKING = (
    "correlation of a query's similarities to the documents with the whole encoder's, mean over "
    "queries"
)

Manifest = Mapping[str, Any]


def headline(manifest: Manifest) -> str:
    """Return the result in one sentence."""
    name = manifest["model"]["name"]
    total = manifest["model"]["n_blocks"]
    count = len(manifest["choice"]["blocks"])
    if count == total:
        return f"{name} keeps all {total} blocks: no smaller candidate keeps enough"
    speed = manifest["speed"]
    times = speed["faster"] / speed["whole"]
    return (
        f"{name} with {count} of {total} blocks: {times:.1f} × as many texts per second, "
        f"agreement with the whole encoder {manifest['claim']['after']:.3f}"
    )


def facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the facts behind the headline, as names and values."""
    choice = manifest["choice"]
    claim = manifest["claim"]
    texts = manifest["texts"]
    speed = manifest["speed"]
    labels = manifest["labels"]
    training = manifest["training"]
    low, high = (1 + end for end in claim["interval"])
    queries = texts["queries"]
    nearest = "query's 10 nearest documents" if queries else "text's 10 nearest"
    of_queries = f" ({queries:,} of them queries)" if queries else ""
    lines = {
        "blocks kept": f"{', '.join(map(str, choice['blocks']))} ({choice['how']})",
        "agreement": (
            f"{claim['after']:.3f} (95 % interval {low:.3f} to {high:.3f}): "
            f"{manifest['conventions']['agreement']}"
        ),
        "same neighbors": f"{choice['neighbors']:.0%} of each {nearest}",
    }
    if labels:
        low, high = labels["interval"]
        lines[f"by your {labels['examples']} labels"] = (
            f"{labels['after']:.1f} instead of {labels['before']:.1f} ({labels['measure']} × 100; "
            f"95 % interval of the change {low:+.1f} to {high:+.1f})"
        )
    lines["texts per second"] = (
        f"{speed['faster']:,.0f} instead of {speed['whole']:,.0f}, on this machine"
    )
    lines["measured on"] = (
        f"{texts['checked']:,} texts of {texts['name']}{of_queries} that fitted nothing; refitted "
        f"on {texts['fitted']:,} others ({texts['tokens']:,} tokens)"
    )
    if training:
        lines["training"] = (
            f"{training['steps']:,} steps on {training['texts']:,} texts: agreement "
            f"{training['agreement_before']:.3f} → {training['agreement']:.3f}"
        )
    if "servers" in manifest:
        lines["opens in"] = opening_words(manifest["servers"])
    return list(lines.items())


def _fitting(treatment: str) -> str:
    """Return how the weights of the remaining blocks came about, for the card."""
    refitted = (
        "The last linear layer of a kept block was fitted by ridge regression, so that the block "
        "also does\nthe work of those removed behind it."
    )
    if treatment == "trained":
        return f"{refitted} Then the blocks were trained to give the\nwhole encoder's vectors."
    return refitted if treatment.startswith("refitted") else "Their weights are as they were."


def card(manifest: Manifest, license_name: str) -> str:
    """Return the model card, README.md."""
    base = manifest["model"]
    choice = manifest["choice"]
    verification = manifest["verification"]
    count = base["n_blocks"]
    license_id = license_name.lower() if " " not in license_name else "other"
    listed = "\n".join(f"- {name}: {value}" for name, value in facts(manifest))
    versions = ", ".join(f"{name} {version}" for name, version in verification["versions"].items())
    removed = sorted(set(range(count)) - set(choice["blocks"]))
    return f"""---
license: {license_id}
base_model: "{base["name"].replace('"', "")}"
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- feature-extraction
- layerscope
---

# {base["name"]} with {len(choice["blocks"])} of {count} blocks

{headline(manifest)}. Blocks {", ".join(map(str, removed)) or "none"} of 0 to {count - 1}
were left out. Nothing was added: the architecture, the pooling and the tokenizer are those of the
whole encoder. License of the base model: {license_name}.

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["A text.", "Another text."])
```

## How it was made and measured

{listed}

The blocks were chosen by agreement with the whole encoder on unlabeled texts: removed one at a
time, or evenly spaced, whichever a quick refit brought nearer.
{_fitting(choice["how"])} On texts of another kind the agreement is lower: measure it
with `layerscope compare {base["name"]} THIS_FOLDER --data YOUR_TEXTS`.

## Verified

Loaded in a fresh process without layerscope ({versions}): the largest cosine distance to the
measured vectors is {verification["cosine_distance"]:.1e} on {verification["texts"]} texts (allowed:
{verification["tolerance"]:.0e}).
"""
