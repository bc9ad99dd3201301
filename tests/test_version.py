"""Messages name the command that fits how layerscope was installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layerscope import version
from layerscope.extras import MissingExtraError
from layerscope.version import install_command, install_package


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    version._origin.cache_clear()
    yield
    version._origin.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    """Let pip's record of the installation be `told`: a value for JSON, a text as it stands, None
    for no record."""
    text = told if told is None or isinstance(told, str) else json.dumps(told)
    monkeypatch.setattr(
        metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text)
    )


def test_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert install_command("mteb") == "pip install 'layerscope[mteb]'"
    assert install_package("layerscope-zoo") == "pip install -U layerscope-zoo"
    assert str(MissingExtraError("drawing figures", "report")).endswith(
        "Install it with: pip install 'layerscope[report]'"
    )


def test_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "my checkout"
    (checkout / "packages" / "layerscope-zoo").mkdir(parents=True)
    installed(monkeypatch, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert install_command("mteb") == f"pip install -e '{checkout}[mteb]'"
    assert (
        install_package("layerscope-zoo")
        == f"pip install -U '{checkout / 'packages' / 'layerscope-zoo'}'"
    )
    assert f"pip install -e '{checkout}[report]'" in str(
        MissingExtraError("drawing figures", "report")
    )


def test_a_copy_of_a_checkout_is_not_editable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_command("gguf") == f"pip install '{tmp_path}[gguf]'"


def test_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "layerscope-1-py3-none-any.whl"
    wheel.touch()
    installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("gguf") == f"pip install '{wheel}[gguf]'"
    wheel.unlink()  # downloaded once, and cleared away
    assert install_command("gguf") == "pip install 'layerscope[gguf]'"


def test_from_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch,
        {"url": "https://example.org/l.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
    )
    assert (
        install_command("onnx")
        == "pip install 'layerscope[onnx] @ git+https://example.org/l.git@0a1b'"
    )
    version._origin.cache_clear()
    installed(monkeypatch, {"url": "https://example.org/l.whl", "archive_info": {}})
    assert install_command("onnx") == "pip install 'layerscope[onnx] @ https://example.org/l.whl'"


@pytest.mark.parametrize("told", ["not json", "[]", '{"url": 3}'])
def test_a_damaged_record_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    installed(monkeypatch, told)
    assert install_command("onnx") == "pip install 'layerscope[onnx]'"


def test_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", lacking)
    assert install_command("onnx") == "pip install 'layerscope[onnx]'"
