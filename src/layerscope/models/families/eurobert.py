"""EuroBERT: Llama's block in an encoder."""

from __future__ import annotations

from dataclasses import replace

from layerscope.models.families import llama

FAMILY = replace(llama.FAMILY, name="eurobert", model_types=("eurobert",), bidirectional=True)
