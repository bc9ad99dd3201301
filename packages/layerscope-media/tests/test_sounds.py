"""Speech models: frames as tokens, against states that transformers gives itself."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import layerscope
from layerscope.capture import expand_sites
from layerscope.capture.hooks import check_residual
from layerscope.data import load_corpus
from layerscope.errors import DataError
from layerscope.forward import read_states
from layerscope.models import load, wrap
from layerscope_media.sound_model import SoundModel
from layerscope_media.sounds import SoundSet, load_sounds, read_wav

_CONV = {
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 4, 4),
    "conv_stride": (5, 4, 4),
    "num_feat_extract_layers": 3,
}
_SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_POSITION = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}


def build(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "whisper":
        config = hf.WhisperConfig(
            d_model=32, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1,
            decoder_attention_heads=4, decoder_ffn_dim=48, max_source_positions=50, num_mel_bins=20, vocab_size=100,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
        return hf.WhisperModel(config)
    stable = kind.endswith("large")
    norm = {"do_stable_layer_norm": stable, "feat_extract_norm": "layer" if stable else "group"}
    name = "Hubert" if kind.startswith("hubert") else "Wav2Vec2"
    return getattr(hf, f"{name}Model")(
        getattr(hf, f"{name}Config")(**_CONV, **_SIZE, **_POSITION, **norm)
    )


KINDS = ["wav2vec2", "wav2vec2-large", "hubert", "hubert-large", "whisper"]


def sounds(count: int = 5) -> SoundSet:
    rng = np.random.default_rng(0)
    waves = []
    for i in range(count):
        time = np.arange(2400 + 900 * i) / 16_000
        waves.append(
            0.3 * np.sin(2 * np.pi * (200 + 90 * i) * time) + 0.05 * rng.standard_normal(len(time))
        )
    return SoundSet(waves)


def states_of(model: SoundModel, items: SoundSet) -> dict[tuple[int, int], torch.Tensor]:
    found: dict[tuple[int, int], torch.Tensor] = {}

    def look(
        numbers: list[int], batch: Any, site: int, raw: torch.Tensor, _state: torch.Tensor
    ) -> None:
        for place, number in enumerate(numbers):
            found[number, site] = raw[place, : batch.lengths[place]].clone()

    read_states(model, items.waves, expand_sites(None, model.anatomy), "raw", look)
    return found


def hidden_states(model: SoundModel, sound: np.ndarray) -> list[torch.Tensor]:
    """Of one sound alone, from transformers; the last one as its last block leaves it."""
    rate = model.processor.sampling_rate
    made = model.processor(sound, sampling_rate=rate, return_tensors="pt")
    kept: list[torch.Tensor] = []
    handle = model.anatomy.blocks[-1].register_forward_hook(
        lambda _m, _a, out: kept.append(out if isinstance(out, torch.Tensor) else out[0])
    )
    with torch.no_grad():
        given = model.module(
            **{k: v for k, v in made.items() if k != "attention_mask"}, output_hidden_states=True
        )
    handle.remove()
    return [*(states[0] for states in given.hidden_states[:-1]), kept[0][0]]


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_each_sound_alone(kind: str) -> None:
    model = wrap(build(kind))
    assert isinstance(model, SoundModel)
    assert model.n_blocks == 3
    items = sounds()
    read = states_of(model, items)
    for number, sound in enumerate(items.waves):
        expected = hidden_states(model, sound)
        count = model.frames(len(sound))
        if kind != "whisper":
            assert len(expected[0]) == count
        for layer in range(4):
            assert read[number, layer].shape == (count, 32)
            assert torch.allclose(read[number, layer], expected[layer][:count], atol=1e-4), (
                number,
                layer,
            )


@pytest.mark.parametrize("kind", ["wav2vec2-large", "hubert-large", "whisper"])
def test_the_residual_identity_holds_inside_blocks(kind: str) -> None:
    model = wrap(build(kind))
    batch = model.make_batch(sounds(1).waves)
    error = check_residual(model.anatomy, lambda: model.run(batch))
    assert error is not None
    assert error < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_of_sounds(kind: str) -> None:
    run = layerscope.profile(
        wrap(build(kind)),
        sounds(8),
        metrics=["prompt_entropy", "dataset_entropy", "infonce"],
        views=2,
    )
    values = run.table[run.table["normalization"] == "raw"].pivot_table(
        index="layer", columns="metric", values="value"
    )
    assert values.shape == (4, 3)
    assert np.isfinite(values.to_numpy()).all()
    assert run.manifest["conventions"]["tokens"] == "frames, in order of time"


def test_a_folder_of_a_model_and_a_folder_of_wav_files(tmp_path: Path) -> None:
    for kind, extractor in (
        ("wav2vec2", hf.Wav2Vec2FeatureExtractor()),
        ("whisper", hf.WhisperFeatureExtractor(feature_size=20, chunk_length=1)),
    ):
        folder = tmp_path / kind
        module = build(kind)
        module.save_pretrained(folder)
        extractor.save_pretrained(folder)
        model = load(folder)
        assert isinstance(model, SoundModel)
        assert model.identity["family"] == kind
        wavs = tmp_path / "wavs"
        wavs.mkdir(exist_ok=True)
        for i, sound in enumerate(sounds(3).waves):
            with wave.open(str(wavs / f"{i}.wav"), "wb") as stream:
                stream.setnchannels(1)
                stream.setsampwidth(2)
                stream.setframerate(16_000)
                stream.writeframes((sound.clip(-1, 1) * 32767).astype("<i2").tobytes())
        run = layerscope.profile(str(folder), str(wavs), metrics=["prompt_entropy"])
        assert (
            run.manifest["n_prompts"] == 3
            if "n_prompts" in run.manifest
            else len(run.prompts["prompt"].unique()) == 3
        )


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    model = wrap(build("hubert"))
    with pytest.raises(DataError, match="give sounds"):
        layerscope.profile(model, load_corpus(["a text"]))
    with pytest.raises(DataError, match="is a text"):
        layerscope.profile(model, ["a text"])
    with pytest.raises(DataError, match="16000 samples per second"):
        layerscope.profile(model, SoundSet(sounds(2).waves, rate=8000), metrics=["prompt_entropy"])
    with pytest.raises(DataError, match="one channel"):
        SoundSet([np.zeros((2, 5))])
    with pytest.raises(DataError, match="floats"):
        SoundSet([np.zeros(5, dtype=np.int16)])
    (tmp_path / "bad.wav").write_bytes(b"RIFFxxxx")
    with pytest.raises(DataError, match="PCM WAV"):
        read_wav(tmp_path / "bad.wav")
    with pytest.raises(DataError, match="neither a WAV file"):
        load_sounds(tmp_path / "none")


def test_the_fingerprint_is_of_the_content_whatever_the_order() -> None:
    some = sounds()
    assert SoundSet(some.waves[::-1]).fingerprint == some.fingerprint
    assert SoundSet(some.waves[1:]).fingerprint != some.fingerprint
    assert SoundSet(some.waves, rate=8000).fingerprint != some.fingerprint
