"""Shared by all tests: a cache of their own, one thread (several fight on a busy machine), texts
and a small model."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = (
    "1"  # read when numpy is first imported: a small SVD is 30 x slower with threads that fight
)
os.environ["OMP_NUM_THREADS"] = "1"  # scikit-learn's threads wait for each other at full speed
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import HealthCheck, settings

from tests.forking import start_server

# The process that hands out the tests reads this file too, and runs none: torch and transformers
# are imported where needed.

# Files of tests lie in memory where there is room: a file that is written again makes ext4 wait for
# the disk, five milliseconds each time. Those of a test that passed are deleted at once.
MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30


def roomy(folder: Path) -> bool:
    """Whether all that the tests write fits into a folder in memory, several times."""
    try:
        place, known = os.statvfs(folder), Path("/proc/meminfo").read_text(encoding="ascii")
    except (OSError, AttributeError):
        return False
    free = next(
        (
            int(line.split()[1]) * 1024
            for line in known.splitlines()
            if line.startswith("MemAvailable:")
        ),
        0,
    )
    return os.access(folder, os.W_OK) and min(place.f_bavail * place.f_frsize, free) > ROOM


if roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Python compiles a module when it is first imported. In a fresh environment two processes that
# import the same at the same time would both compile all of it, for half a minute. So the second
# begins with what the first imports later; in a process of its own, so that its tests import
# everything in the usual order.
BESIDE = ("pandas", "sympy", "scipy.stats", "scipy.optimize", "sklearn.linear_model", "sklearn.neighbors", "polars", "datasets",
          "matplotlib.pyplot", "pydantic", "rich.progress")  # fmt: skip
IMPORT = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
"""


def compiled(package: str) -> bool:
    """Whether a package was imported before, or cannot be."""
    found = importlib.util.find_spec(package)
    return (
        found is None
        or found.origin is None
        or os.path.exists(importlib.util.cache_from_source(found.origin))
    )


if (
    os.environ.get("PYTEST_XDIST_WORKER") == "gw1"
    and not sys.dont_write_bytecode
    and not compiled("sympy")
):
    subprocess.run([sys.executable, "-c", IMPORT, *BESIDE], capture_output=True, check=False)

# Until all is imported there is nothing to free, and looking takes half a second each time.
gc.disable()

# How long an example takes says how busy the machine is.
settings.register_profile(
    "busy", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

# What takes longest, and is started first: processes then end at about the same time.
LONGEST = (
    "cluster",
    "tests/browser",
    "tests/evaluation/test_evaluate.py",
    "tests/evaluation/test_real.py",
    "tests/improving/test_improve.py",
    "tests/exporting/test_real.py",
    "tests/exporting/test_cutting.py",
    "tests/improving/test_train.py",
    "tests/evaluation/test_budget.py",
    "tests/improving/test_interrupted.py",
    "tests/faults/test_killed.py",
    "packages/layerscope-gpu/tests/test_solvers.py",
)


def group_of(nodeid: str) -> str:
    """What runs in one process: a file, since its fixtures are made once; all tests in a browser,
    which is then started once; or all tests on a cluster, which would take each other's cores."""
    file = nodeid.split("::")[0]
    if file.startswith("tests/browser/"):
        return "tests/browser"
    return (
        "cluster"
        if file.startswith("tests/engines/") or nodeid.endswith("::test_on_a_cluster")
        else file
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`: the groups, in the order of the tests. xdist's own `xdist_group` has
    no effect: xdist 3.8 writes a group into the test's id, which pytest 9.2 does not let it change
    (github.com/pytest-dev/pytest-xdist/issues/1386, open). And `loadfile` would start several
    clusters."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection(session: pytest.Session) -> None:
    """Where a kind of device is missing, torch notes with every seed the lines of code that led to
    it, in case one is found later: of tests, and of mteb, which seeds each time that it makes a
    task, they are a hundred."""
    if session.config.getoption("numprocesses", None) and not os.environ.get("PYTEST_XDIST_WORKER"):
        return
    import torch

    for kind in (torch.cuda, torch.xpu, torch.mtia):
        if not kind.is_available():
            kind.manual_seed_all = lambda seed: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes run the tests, the longest groups come first."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        places = {group: place for place, group in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(group_of(item.nodeid), len(LONGEST)))


ENOUGH = 100  # modules that are imported before the garbage collector is told again
frozen = 0  # modules


def freeze_what_was_imported() -> None:
    """It stays: the garbage collector need not look at it again."""
    global frozen
    if len(sys.modules) > frozen + ENOUGH:
        gc.collect()
        gc.freeze()
        frozen = len(sys.modules)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Most of what the tests need has been imported now; the rest comes with the tests."""
    freeze_what_was_imported()
    gc.enable()
    # pytest hangs its handlers on every logger that keeps its messages to itself, six times for
    # each test; torch has fifty such
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    if not session.config.option.collectonly:
        start_server()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tiny models without oneDNN: on ARM it takes half a millisecond for a product that takes a
    hundredth. Real models are read as users read them."""
    import torch

    torch.backends.mkldnn.enabled = item.get_closest_marker("real") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """A cluster is never idle: where its tests run one after the other, it ends with the last of
    them. Garbage is collected without what a test has imported."""
    yield
    freeze_what_was_imported()
    grouped = os.environ.get("PYTEST_XDIST_WORKER") and group_of(item.nodeid) == "cluster"
    if grouped and nextitem is not None and group_of(nextitem.nodeid) != "cluster":
        from tests.ray_cluster import stop

        stop()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


FSYNC = os.fsync


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Runs sync every file that they write. No test cuts the power, and on a busy disk half of the
    time would go there. The tests of the store sync."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            os, "fsync", lambda descriptor: os.fstat(descriptor) and None
        )  # a closed file is still an error
        yield


@pytest.fixture(autouse=True, scope="session")
def no_more_than_is_asked_for() -> Iterator[None]:
    """What takes most of the time of a tiny task and says nothing of its score: how well a search
    would do that may abstain, by two hundred areas, and the hash of all that a table in memory
    holds, which would name a file that is never written. And the certificates of all authorities,
    read anew for every client of a hub that has none, and what a package says of itself, read anew
    for every task."""
    used = ("mteb._evaluators.retrieval_metrics", "datasets.arrow_dataset", "httpcore2")
    ranking, tables, clients = (sys.modules.get(name) for name in used)
    names, own = itertools.count(), importlib.metadata.PathDistribution.metadata
    kept = functools.cache(lambda folder: own.__get__(importlib.metadata.PathDistribution(folder)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            importlib.metadata.PathDistribution, "metadata", property(lambda self: kept(self._path))
        )
        if ranking is not None:
            patched.setattr(ranking, "evaluate_abstention", lambda results, scores: {})
        if tables is not None:
            patched.setattr(tables, "generate_fingerprint", lambda table: f"{next(names):016x}")
        if clients is not None:
            patched.setattr(
                clients, "default_ssl_context", functools.cache(clients.default_ssl_context)
            )
        yield


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A path of its own for every test that asks. Nothing is there yet."""
    folder = tmp_path_factory.mktemp("caches")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_cache(
    request: pytest.FixtureRequest, caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing touches the user's cache, except tests marked `real`."""
    if request.node.get_closest_marker("real") is None:
        # most tests write nothing: no folder is made for them
        uses_folder = "tmp_path" in request.fixturenames
        cache = request.getfixturevalue("tmp_path") / "cache" if uses_folder else next(caches)
        monkeypatch.setenv("LAYERSCOPE_CACHE", str(cache))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a folder on disk, as a user would have one."""
    from tests.tiny import build_tiny, tiny_tokenizer

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    build_tiny("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def no_figure_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are made, and not drawn: for tests that do not look at pictures."""
    pytest.importorskip("altair")
    from layerscope.report import notebook

    monkeypatch.setattr(notebook, "picture", lambda chart: chart.to_json().encode())


@pytest.fixture(scope="module")
def few_experiments() -> Iterator[None]:
    """mteb fits each classifier ten times; two are enough where the score itself is not asked for,
    or is mteb's in any case."""
    from mteb.abstasks.classification import AbsTaskClassification

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AbsTaskClassification, "n_experiments", 2)
        yield


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Ten short texts of different lengths."""
    sentence = "the quick brown fox jumps over a lazy dog while seven wizards mix odd potions"
    return [f"{sentence[3 * i : 20 + 9 * i]} {i}." for i in range(10)]


@pytest.fixture(scope="session")
def cluster() -> Any:
    """A Ray cluster of two nodes. Tests that ask for it run in one process."""
    from tests.ray_cluster import two_nodes

    return two_nodes()
