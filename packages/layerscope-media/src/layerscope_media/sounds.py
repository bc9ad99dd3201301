"""Sounds: waveforms of one channel, from arrays or from a folder of WAV files."""

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
"""Samples per second that the speech models here read."""

_DEPTHS: dict[int, tuple[str, float]] = {
    1: ("u1", 128.0),
    2: ("<i2", 32768.0),
    4: ("<i4", 2147483648.0),
}


class SoundSet:
    """Waveforms as float32 arrays from −1 to 1, all at one rate.

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
        self.rate, self.name = int(rate), name
        self.keys = np.array([content_key(each.tobytes()) for each in self.waves], dtype=np.uint64)
        duplicates = len(self.keys) - len(np.unique(self.keys))
        self.source = {
            **(source or {}),
            "rate": self.rate,
            **({"duplicates": duplicates} if duplicates else {}),
        }
        self.dropped: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """A hash of the waveforms and their rate, whatever their order."""
        return hashlib.sha256(
            f"sounds|{self.rate}|".encode() + np.sort(self.keys).tobytes()
        ).hexdigest()

    def describe(self, numbers: np.ndarray) -> Shown:
        """Sounds are shown as points alone."""
        return Shown()

    def warnings(self) -> list[str]:
        """What is there more than once."""
        return duplicate_warnings(self)

    def __len__(self) -> int:
        return len(self.waves)


def _checked(wave_given: Any, number: int) -> np.ndarray:
    if isinstance(wave_given, (str, bytes)):
        raise DataError(
            f"sound {number} is a text ({str(wave_given)[:40]!r}); give arrays of samples, or a folder of WAV files."
        )
    array = np.asarray(wave_given)
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"sound {number} has the shape {array.shape}; a sound is one channel of at least one sample."
        )
    if not np.issubdtype(array.dtype, np.floating):
        raise DataError(f"sound {number} holds {array.dtype}; give floats from −1 to 1.")
    if not np.isfinite(array).all():
        raise DataError(f"sound {number} holds NaN or infinity.")
    return np.ascontiguousarray(array, dtype=np.float32)


def load_sounds(data: str | Path | Sequence[Any], *, limit: int | None = None) -> SoundSet:
    """Sounds from a WAV file, a folder of them (searched to the bottom), or a list of arrays at
    16,000 samples per second."""
    if not isinstance(data, (str, Path)):
        return SoundSet(list(data)[:limit])
    path = Path(data).expanduser()
    files = sorted(path.rglob("*.wav")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        raise DataError(
            f"{data} is neither a WAV file nor a folder of WAV files. Give one, or a list of arrays."
        )
    read = [read_wav(file) for file in files[:limit]]
    rates = {rate for _, rate in read}
    if len(rates) > 1:
        raise DataError(
            f"the sounds in {path} have several rates ({', '.join(map(str, sorted(rates)))}); convert them to {RATE}."
        )
    return SoundSet([samples for samples, _ in read], rates.pop(), path.name, {"path": str(path)})


def read_wav(file: Path) -> tuple[np.ndarray, int]:
    """Samples of a PCM WAV file, its channels averaged, and its rate."""
    try:
        with wave.open(str(file), "rb") as stream:
            channels, depth, rate = (
                stream.getnchannels(),
                stream.getsampwidth(),
                stream.getframerate(),
            )
            content = stream.readframes(stream.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise DataError(
            f"{file} could not be read as a PCM WAV file: {error}. Convert it, for example with ffmpeg."
        ) from error
    if depth not in _DEPTHS:
        raise DataError(f"{file} has samples of {8 * depth} bits; 8, 16 and 32 are read.")
    kind, scale = _DEPTHS[depth]
    samples = np.frombuffer(content, dtype=kind).astype(np.float32)
    samples = (samples - 128.0 if depth == 1 else samples) / scale
    return samples.reshape(-1, channels).mean(1), rate
