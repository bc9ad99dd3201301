"""Sounds: waveforms with one channel, from arrays or from a folder of WAV files."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data import Shown, content_key, duplicate_warnings
from layerscope.errors import DataError

RATE = 16_000
"""Samples per second of the supported speech models."""

_DEPTHS: dict[int, tuple[str, float]] = {
    1: ("u1", 128.0),
    2: ("<i2", 32768.0),
    4: ("<i4", 2147483648.0),
}


class SoundSet:
    """Waveforms as float32 arrays from −1 to 1 with a common rate.

    >>> sounds = SoundSet([np.zeros(1600), np.ones(800)])
    >>> len(sounds), sounds.kind
    (2, 'sounds')
    """

    kind: str = "sounds"

    def __init__(
        self,
        waves: Iterable[Any],
        rate: int = RATE,
        name: str = "sounds",
        source: dict[str, Any] | None = None,
    ) -> None:
        self.waves = [_checked(wave, i) for i, wave in enumerate(waves)]
        self.rate = int(rate)
        self.name = name
        self.keys = np.array(
            [content_key(samples.tobytes()) for samples in self.waves], dtype=np.uint64
        )
        duplicates = len(self.keys) - len(np.unique(self.keys))
        self.source = {**(source or {}), "rate": self.rate}
        if duplicates:
            self.source["duplicates"] = duplicates
        self.dropped: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """Return a hash of the waveforms in any order, and their rate."""
        head = f"sounds|{self.rate}|".encode()
        return hashlib.sha256(head + np.sort(self.keys).tobytes()).hexdigest()

    def describe(self, numbers: np.ndarray) -> Shown:
        """Return an empty description: reports show sounds as points only."""
        return Shown()

    def warnings(self) -> list[str]:
        """Return a warning about sounds that occur more than once."""
        return duplicate_warnings(self)

    def __len__(self) -> int:
        return len(self.waves)


def _checked(samples: Any, number: int) -> np.ndarray:
    if isinstance(samples, (str, bytes)):
        raise DataError(
            f"sound {number} is a text ({str(samples)[:40]!r}); give arrays of samples or a folder "
            "of WAV files."
        )
    array = np.asarray(samples)
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"sound {number} has the shape {array.shape}; give one channel with one sample or more."
        )
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"sound {number} holds {array.dtype}; give floats from −1 to 1.")
    if not np.isfinite(array).all():
        raise DataError(f"sound {number} holds NaN or infinity.")
    return np.ascontiguousarray(array, dtype=np.float32)


def load_sounds(data: str | Path | Sequence[Any], *, limit: int | None = None) -> SoundSet:
    """Load sounds from a WAV file, a folder of them (with its subfolders), or a list of arrays with
    16,000 samples per second."""
    if not isinstance(data, (str, Path)):
        return SoundSet(list(data)[:limit])
    path = Path(data).expanduser()
    files = sorted(path.rglob("*.wav"))
    if path.is_file():
        files = [path]
    if not files:
        raise DataError(
            f"{data} is neither a WAV file nor a folder of WAV files. Give one of these, or a list "
            "of arrays."
        )
    read = [read_wav(file) for file in files[:limit]]
    rates = {rate for _, rate in read}
    if len(rates) > 1:
        raise DataError(
            f"the sounds in {path} have several rates ({', '.join(map(str, sorted(rates)))}); "
            f"convert them to {RATE}."
        )
    return SoundSet([samples for samples, _ in read], rates.pop(), path.name, {"path": str(path)})


def read_wav(file: Path) -> tuple[np.ndarray, int]:
    """Return the samples of a PCM WAV file, with its channels averaged, and its rate."""
    try:
        with wave.open(str(file), "rb") as stream:
            channels = stream.getnchannels()
            depth = stream.getsampwidth()
            rate = stream.getframerate()
            content = stream.readframes(stream.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise DataError(
            f"{file} could not be read as a PCM WAV file: {error}. Convert it, for example with "
            "ffmpeg."
        ) from error
    if depth not in _DEPTHS:
        raise DataError(f"{file} has samples of {8 * depth} bits; convert it to 8, 16 or 32 bits.")
    kind, scale = _DEPTHS[depth]
    samples = np.frombuffer(content, dtype=kind).astype(np.float32)
    samples = (samples - 128.0 if depth == 1 else samples) / scale
    return samples.reshape(-1, channels).mean(1), rate
