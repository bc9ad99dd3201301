"""What the architectures written here have in common: what they return, and how they are written to a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn


@dataclass
class StatesOutput:
    """`last_hidden_state` (B, tokens, D), after the final norm where there is one; `hidden_states`: L + 1, before it."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


def write_model(model: nn.Module, folder: str | Path) -> Path:
    """Write config.json and model.safetensors in the published layout."""
    from safetensors.torch import save_file

    target, config = Path(folder), model.config
    target.mkdir(parents=True, exist_ok=True)
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    facts: dict[str, Any] = config.to_dict()  # type: ignore[operator, union-attr]
    (target / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return target
