"""When two results are about the same model."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import layerscope
from layerscope.core.identity import DECISIVE, ModelIdentity

FACTS = {
    "name": "m",
    "weights_sha256": "w",
    "settings_sha256": "s",
    "family": "llama",
    "architecture": "LlamaModel",
    "dtype": "float32",
    "bidirectional": False,
    "adapters": [{"name": "a", "sha256": "1"}],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_sha256", "x"),
        ("settings_sha256", "x"),
        ("family", "bert"),
        ("architecture", "BertModel"),
        ("dtype", "float16"),
        ("bidirectional", True),
        ("adapters", [{"name": "a", "sha256": "2"}]),
        ("adapters", []),
    ],
)
def test_whatever_decides_a_state_tells_models_apart(field: str, value: object) -> None:
    one, other = ModelIdentity.of(FACTS), ModelIdentity.of({**FACTS, field: value})
    assert not one.same_as(other)
    assert (one.difference(other) or "").startswith(field)


def test_names_and_what_is_not_known_do_not() -> None:
    renamed = {**FACTS, "name": "other", "adapters": [{"name": "b", "sha256": "1"}]}
    old = {name: value for name, value in FACTS.items() if name != "settings_sha256"}
    assert ModelIdentity.of(FACTS).same_as(ModelIdentity.of(renamed))
    assert ModelIdentity.of(FACTS).same_as(ModelIdentity.of(old))


def test_what_decides_a_model_is_listed_once() -> None:
    """`ModelIdentity` has the names as fields: any literal list with both digests would be a second
    definition."""
    home = Path(layerscope.__file__).parent
    found = [
        str(path.relative_to(home))
        for path in home.rglob("*.py")
        if "weights_sha256"
        in (text := path.read_text(encoding="utf-8"))  # all files would take two seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set))
        and {"weights_sha256", "settings_sha256"}
        <= {one.value for one in node.elts if isinstance(one, ast.Constant)}
    ]
    assert found == []
    assert set(DECISIVE) <= set(FACTS)
