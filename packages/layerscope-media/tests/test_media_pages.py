"""The README's examples run, on tiny models and made-up data in the folders that they name."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import test_sounds
from PIL import Image
from tests.docs.blocks import blocks_of
from tiny_images import build

from layerscope_media.sound_model import default_extractor

PAGES = Path(__file__).parents[1]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos, recordings, and models where the page names hub ids."""
    rng = np.random.default_rng(0)
    for number in range(48):
        folder = tmp_path / "photos" / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
        picture.save(folder / f"{number}.png")
    build("dinov2").save_pretrained(tmp_path / "facebook" / "dinov2-small")
    whisper = tmp_path / "openai" / "whisper-tiny"
    module = test_sounds.build("whisper")
    module.save_pretrained(whisper)
    default_extractor(module).save_pretrained(whisper)
    (tmp_path / "recordings").mkdir()
    for number, sound in enumerate(test_sounds.sounds().waves):
        with wave.open(str(tmp_path / "recordings" / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes((np.asarray(sound) * 20_000).astype("<i2").tobytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.contract
@pytest.mark.usefixtures("place")
def test_the_readme_runs() -> None:
    names: dict[str, object] = {}
    for block in blocks_of(PAGES / "README.md"):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), names)
