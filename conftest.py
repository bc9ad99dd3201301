"""The tiers of tests: which of them `make test`, `make test-packages` and `make nightly` run.

- `make test`: the core's tests, and those of every package that are marked `contract`.
- `make test-packages`: every test of the packages, and of the benchmarks and examples.
- `make nightly`: all of them, and what is marked `slow`: whole tasks on real models, clusters, the
  report in a browser, faults. `NIGHTLY` and `CLUSTER` mark whole folders and fixtures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The packages' own code comes first, also in an environment where they are not installed.
sys.path[:0] = map(str, Path(__file__).parent.glob("packages/layerscope-*/src"))

OUTSIDE_THE_CORE = ("packages/", "tests/benchmarks/", "tests/examples/")
NIGHTLY = ("tests/browser/", "tests/faults/")
CLUSTER = "cluster"  # the fixture of a Ray cluster
ALSO_IN_TEST = (
    "tests/browser/test_map.py::test_hostile_texts_and_names_are_shown_as_text",
    "tests/browser/test_page.py::test_renders_without_errors_or_requests",
    "tests/browser/test_page.py::test_text_stays_text",
    "tests/engines/test_ray.py::test_an_evaluation_has_the_same_scores",
    "tests/examples/test_demo.py",
    "tests/faults/test_killed.py::test_killed_runs_end_as_if_nothing_had_been",
)
"""Tests that stay in `make test`, although their folder or fixture belongs to a later tier."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that belong to the packages or to the nightly run."""
    for item in items:
        if item.nodeid.startswith(ALSO_IN_TEST):
            continue
        if item.nodeid.startswith(OUTSIDE_THE_CORE):
            item.add_marker("package")
        if item.nodeid.startswith(NIGHTLY) or CLUSTER in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
