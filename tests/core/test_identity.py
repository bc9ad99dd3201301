"""When two results are about the same model."""

from __future__ import annotations

import pytest

from layerscope.core.identity import ModelIdentity

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
