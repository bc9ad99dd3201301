"""Compiled kernels are kept: compiled once for a machine, whole or not at all, and without a cache
all the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from layerscope_gpu import cuda


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is compiled, by something that compiles anything."""
    asked: list[tuple[str, str]] = []

    def compile_anything(source: str, architecture: str) -> bytes:
        asked.append((source, architecture))
        return f"code of {source} for {architecture}".encode()

    monkeypatch.setattr(cuda, "_compile", compile_anything)
    monkeypatch.setattr(cuda, "_nvrtc_version", lambda: "13.0")
    return asked


def again(source: str = "a", architecture: str = "sm_90") -> bytes:
    """As another process would ask."""
    cuda.compiled.cache_clear()
    return cuda.compiled(source, architecture)


def files() -> list[Path]:
    return sorted(cuda.cache_folder().iterdir())


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
    monkeypatch.setattr(cuda, "_nvrtc_version", lambda: "12.4")
    again()
    assert len(made) == len(files()) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: held[:-1],
        lambda held: b"",
        lambda held: held[:32],
        lambda held: b"x" + held[1:],
    ],
)
def test_a_damaged_file_is_made_again(made: list[tuple[str, str]], damage: object) -> None:
    again()
    (file,) = files()
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    assert again() == b"code of a for sm_90"
    assert len(made) == 2
    again()
    assert len(made) == 2


def test_without_a_place_to_write_to(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "file"))
    assert again() == again() == b"code of a for sm_90"
    assert len(made) == 2


def test_a_full_disk_leaves_nothing_behind(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cuda.os, "replace", full)
    assert again() == b"code of a for sm_90"
    assert files() == []
    assert made


def test_kernels_are_compiled_at_the_same_time_and_once(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    again("a")
    barrier, one = threading.Barrier(2, timeout=60), cuda._compile

    def compile_beside_the_other(source: str, architecture: str) -> bytes:
        barrier.wait()  # breaks unless both are under way at once
        return one(source, architecture)

    monkeypatch.setattr(cuda, "_compile", compile_beside_the_other)
    cuda.compile_ahead(["a", "b", "c", "b"], "sm_90")
    cuda.compile_ahead(["b"], "sm_90")
    assert again("c") == b"code of c for sm_90"
    assert again("b") == b"code of b for sm_90"
    assert again("a") == b"code of a for sm_90"
    assert sorted(made) == [("a", "sm_90"), ("b", "sm_90"), ("c", "sm_90")]
    assert len(files()) == 3


def test_who_uses_a_kernel_waits_for_its_compiler(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, compile_it = threading.Event(), cuda._compile

    def wait(source: str, architecture: str) -> bytes:
        assert go_on.wait(20)
        return compile_it(source, architecture)

    monkeypatch.setattr(cuda, "_compile", wait)
    cuda.compile_ahead(["y"], "sm_90")
    go_on.set()
    cuda._compiling["y", "sm_90"].result()
    assert cuda.compiled("y", "sm_90") == b"code of y for sm_90"


def test_without_a_place_to_write_to_nothing_is_compiled_ahead_twice(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LAYERSCOPE_CACHE", str(tmp_path / "file"))
    for _ in range(3):  # as three profiles do
        cuda.compile_ahead(["w"], "sm_90")
        assert again("w") == b"code of w for sm_90"
    assert made == [("w", "sm_90")]


def test_what_fails_ahead_of_time_fails_where_it_is_used(
    made: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, architecture: str) -> bytes:
        raise cuda.UnusableError("the kernel does not compile")

    monkeypatch.setattr(cuda, "_compile", refuse)
    cuda.compile_ahead(["z"], "sm_90")
    with pytest.raises(cuda.UnusableError, match="does not compile"):
        again("z")
