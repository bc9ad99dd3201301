"""An opened encoder gives what sentence-transformers gives, with any of its blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layerscope.blocks import Encoder
from layerscope.blocks.encoder import BATCH_TOKENS, Start
from layerscope.blocks.refit import find_kind
from layerscope.blocks.result import write_folder
from layerscope.exporting.pipeline import load_folder
from layerscope.store import atomic
from tests.blocks.conftest import TEXTS, write_tiny

FAMILIES = {
    "bert": "PostNorm", "roberta": "PostNorm", "xlm_roberta": "PostNorm", "mpnet": "PostNorm",
    "llama": "PreNorm", "qwen2": "PreNorm", "gpt2": "PreNorm", "gpt_neox": "PreNorm",
    "modernbert": "PreNorm", "gemma3": None,
}  # fmt: skip


@pytest.mark.parametrize(("family", "kind_name"), FAMILIES.items())
def test_every_family_runs_whole_from_a_state_and_without_a_block(
    tmp_path: Path, family: str, kind_name: str | None
):
    folder = write_tiny(tmp_path / family, family)
    encoder = Encoder.open(folder, "cpu")
    kind = find_kind(encoder)
    assert (None if kind is None else type(kind).__name__) == kind_name
    assert encoder.removable() == [family != "modernbert", True, True]

    batches = encoder.batches(TEXTS[:9])
    whole = encoder.encode(encoder.whole, batches)
    np.testing.assert_allclose(whole, load_folder(folder).encode(TEXTS[:9]), atol=2e-6)
    batch = batches[0]
    state = encoder.run(encoder.variant([0, 1]), batch)
    resumed = encoder.vectors(encoder.whole, batch, Start(1, state))
    torch.testing.assert_close(resumed, encoder.vectors(encoder.whole, batch))

    out = tmp_path / "cut"
    out.mkdir()
    cut = encoder.variant([0, 2])
    write_folder(encoder, cut, out)
    vectors = encoder.encode(cut, batches)
    np.testing.assert_allclose(load_folder(out).encode(TEXTS[:9]), vectors, atol=2e-6)
    np.testing.assert_array_equal(encoder.encode(encoder.whole, batches), whole)


def test_batches_hold_every_text_once(bert: Encoder):
    batches = bert.batches([text * 4 for text in TEXTS])
    rows = np.concatenate([batch.rows for batch in batches])
    assert sorted(rows) == list(range(len(TEXTS)))
    assert len(batches) > 1
    assert all(batch.mask.numel() <= BATCH_TOKENS for batch in batches)


def test_a_prompt_is_part_of_the_vectors(tmp_path: Path):
    folder = write_tiny(tmp_path / "prompted", "bert")
    settings = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    atomic.write_json(folder / "config_sentence_transformers.json", settings)
    encoder = Encoder.open(folder, "cpu")
    vectors = encoder.encode(encoder.whole, encoder.batches(TEXTS[:5]))
    np.testing.assert_allclose(vectors, load_folder(folder).encode(TEXTS[:5]), atol=2e-6)


def test_a_variant_removes_and_replaces(bert: Encoder):
    other = bert.whole.modules[0]
    cut = bert.whole.remove(1).replace(2, other)
    assert (cut.blocks, cut.modules) == ((0, 2), (other, other))
