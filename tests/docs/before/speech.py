"""A tiny speech model, in a folder and in memory, and recordings."""

import wave
from pathlib import Path

import numpy as np
from tests.models.test_sounds import build, sounds
from transformers import Wav2Vec2FeatureExtractor

module, feature_extractor = build("wav2vec2").eval(), Wav2Vec2FeatureExtractor()
module.save_pretrained("my-wav2vec2")
feature_extractor.save_pretrained("my-wav2vec2")
arrays = [np.asarray(sound) for sound in sounds().waves]
Path("recordings").mkdir()
for number, sound in enumerate(arrays):
    with wave.open(f"recordings/{number}.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((sound * 20_000).astype("<i2").tobytes())
