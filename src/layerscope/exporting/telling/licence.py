"""The licence of the model that was cut, which is the licence of the cut one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from layerscope.models import LoadedModel

UNKNOWN = "unknown: check the base model's"


def licence_of(model: LoadedModel, spec: Any, offline: bool) -> str:
    """As the catalogue says it, or the card beside the weights, or on the hub the card of the repository."""
    told = model.identity.get("licence")
    if told:
        return str(told)
    if not isinstance(spec, (str, Path)):
        return UNKNOWN
    card = Path(spec) / "README.md"
    if card.is_file():
        return front_matter(card.read_text(encoding="utf-8", errors="replace")).get("license", UNKNOWN)
    if model.identity.get("source") == "hub":
        return _hub_licence(model.name, model.identity.get("revision"), offline)
    return UNKNOWN


def front_matter(text: str) -> dict[str, str]:
    """The plain `key: value` lines between the first two lines of dashes.

    >>> front_matter("---\\nlicense: mit\\ntags:\\n- x\\n---\\nText")
    {'license': 'mit'}
    """
    match = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    lines = match[1].splitlines() if match else []
    pairs = [line.split(":", 1) for line in lines if re.match(r"[\w-]+:\s*\S", line)]
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def _hub_licence(repo: str, revision: str | None, offline: bool) -> str:
    from huggingface_hub import hf_hub_download

    try:
        card = hf_hub_download(repo, "README.md", revision=revision, local_files_only=offline)
    except Exception:  # a card is a courtesy: without it the licence is said to be unknown
        return UNKNOWN
    return front_matter(Path(card).read_text(encoding="utf-8", errors="replace")).get("license", UNKNOWN)
