"""Compiled kernels are kept: compiled once for a machine, whole or not at all, and without a cache all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.cache import cache_dir
from layerscope.spectra import cuda


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is compiled, by something that compiles anything."""
    asked: list[tuple[str, str]] = []

    def compile_anything(source: str, architecture: str) -> bytes:
        asked.append((source, architecture))
        return f"code of {source} for {architecture}".encode()

    monkeypatch.setattr(cuda, "_compile", compile_anything)
    monkeypatch.setattr(cuda, "_version", lambda: "13.0")
    return asked


def again(source: str = "a", architecture: str = "sm_90") -> bytes:
    """As another process would ask."""
    cuda.compiled.cache_clear()
    return cuda.compiled(source, architecture)


def files() -> list[Path]:
    return sorted((cache_dir() / "kernels").iterdir())


def test_another_process_finds_what_was_compiled(made: list[tuple[str, str]]) -> None:
    assert again() == again() == b"code of a for sm_90"
    assert made == [("a", "sm_90")]
    assert len(files()) == 1


def test_other_code_chips_and_compilers_have_files_of_their_own(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    assert again("b") == b"code of b for sm_90"
    assert again("a", "sm_80") == b"code of a for sm_80"
    monkeypatch.setattr(cuda, "_version", lambda: "12.4")
    again()
    assert len(made) == len(files()) == 4


@pytest.mark.parametrize(
    "damage", [lambda held: held[:-1], lambda held: b"", lambda held: held[:32], lambda held: b"x" + held[1:]]
)
def test_a_damaged_file_is_made_again(made: list[tuple[str, str]], damage: object) -> None:
    again()
    (file,) = files()
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    assert again() == b"code of a for sm_90"
    assert len(made) == 2
    again()
    assert len(made) == 2


def test_without_a_place_to_write_to(made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "file"))
    assert again() == again() == b"code of a for sm_90"
    assert len(made) == 2


def test_a_full_disk_leaves_nothing_behind(made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cuda.os, "replace", full)
    assert again() == b"code of a for sm_90"
    assert files() == []
    assert made
