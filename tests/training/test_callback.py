"""The callback inside the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers as hf

from layerscope.training import LayerscopeCallback
from tests.tiny import tiny_tokenizer
from tests.training.test_watch import TEXTS, language_model

pytest.importorskip("accelerate")


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(6, 262, (10,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def trained(folder: Path, callbacks: list[hf.TrainerCallback]) -> dict[str, torch.Tensor]:
    args = hf.TrainingArguments(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=4, seed=3, report_to=[], save_strategy="no",
        disable_tqdm=True, use_cpu=True, logging_strategy="no",
    )  # fmt: skip
    model = language_model()
    hf.Trainer(model, args, train_dataset=Data(), callbacks=callbacks).train()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_training_with_it_gives_the_same_weights_and_a_log(tmp_path: Path) -> None:
    plain = trained(tmp_path / "a", [])
    callback = LayerscopeCallback(TEXTS, tiny_tokenizer(), out=tmp_path / "layers.csv")
    watched = trained(tmp_path / "b", [callback])
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name
    table = pd.read_csv(tmp_path / "layers.csv")
    assert set(table["layer"]) == {0, 1, 2, 3}
    assert set(table["step"]) == {1}  # the first call measures, and the others wait
