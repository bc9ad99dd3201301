"""Child processes that answer requests: in order, whatever happens to them, and without surprises
from the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from layerscope.data.workers import WorkerError, WorkerPool

ROOT = Path(__file__).parents[2]
INSTALLED = [path for path in sys.path if path.endswith("site-packages")]
PATHS = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *INSTALLED])
}  # so that workers find this very module
WAYS = pytest.mark.parametrize("imports", [None, ["json"]], ids=["each by itself", "forked"])


def answer(setup: int, request: Any) -> Any:
    if request == "fail":
        raise ValueError("no such thing")
    if request == "print":
        print("among the answers")
    return setup, request


@WAYS
@pytest.mark.parametrize("workers", [0, 2])
def test_answers_come_in_the_order_of_the_requests(workers: int, imports: list[str] | None) -> None:
    with WorkerPool(answer, 7, workers, PATHS, imports) as pool:
        assert list(pool.map(range(20))) == [(7, i) for i in range(20)]
        assert list(pool.map(["print", 1])) == [
            (7, "print"),
            (7, 1),
        ]  # what is printed is not an answer
        assert all(child.poll() is None for child in pool.children)
        assert len(pool.children) == workers


@WAYS
def test_workers_do_the_work(imports: list[str] | None) -> None:
    with WorkerPool(process_number, None, 2, PATHS, imports) as pool:
        assert set(pool.map(range(20))) <= {child.pid for child in pool.children}  # type: ignore[attr-defined]


def process_number(setup: None, request: Any) -> int:
    return os.getpid()


def test_forks_share_what_the_first_answer_made() -> None:
    with WorkerPool(made_by, {}, 2, PATHS, []) as pool:
        made = set(pool.map(range(20)))
        assert len(made) == 1
        assert not made & {child.pid for child in pool.children}  # type: ignore[attr-defined]


def made_by(setup: dict[str, int], request: Any) -> int:
    return setup.setdefault("by", os.getpid())


@WAYS
def test_what_a_dead_worker_was_asked_is_answered_here(imports: list[str] | None) -> None:
    with WorkerPool(answer, 1, 2, PATHS, imports) as pool:
        for child in pool.children:
            child.kill()
            child.wait()
        assert list(pool.map(range(6))) == [(1, i) for i in range(6)]


@WAYS
def test_a_worker_may_die_of_a_request(imports: list[str] | None) -> None:
    with WorkerPool(die_elsewhere, os.getpid(), 2, PATHS, imports) as pool:
        assert list(pool.map(["die", 1, 2])) == ["die", 1, 2]


def die_elsewhere(here: int, request: Any) -> Any:
    if request == "die" and os.getpid() != here:
        os._exit(1)
    return request


@WAYS
def test_a_setup_that_cannot_be_sent_is_used_here(imports: list[str] | None) -> None:
    setup = (i for i in ())  # a generator cannot be pickled
    with WorkerPool(answer, setup, 2, PATHS, imports) as pool:
        assert [request for _, request in pool.map(range(3))] == [0, 1, 2]


def test_without_a_nursery_everything_is_answered_here() -> None:
    with WorkerPool(answer, 1, 2, PATHS, []) as pool:
        pool._starter.join()
        assert pool._nursery is not None
        pool._nursery.process.kill()
        pool._nursery.process.wait()
        assert list(pool.map(range(6))) == [(1, i) for i in range(6)]
        assert pool.children == []


def test_a_nursery_that_nobody_asked_for_ends_with_the_pool() -> None:
    with WorkerPool(answer, 1, 2, PATHS, []) as pool:
        pass
    assert pool._nursery is not None
    assert pool._nursery.process.poll() is not None


@WAYS
def test_an_error_in_a_worker_is_raised_with_its_reason(imports: list[str] | None) -> None:
    with (
        WorkerPool(answer, 1, 2, PATHS, imports) as pool,
        pytest.raises(WorkerError, match="ValueError: no such thing"),
    ):
        list(pool.map([1, "fail"]))


@WAYS
def test_no_process_outlives_the_pool(imports: list[str] | None) -> None:
    with WorkerPool(answer, 1, 2, PATHS, imports) as pool:
        children = list(pool.children)
        assert len(children) == 2
        pool.close()  # and again when the block ends
    assert all(child.poll() is not None for child in children)


SCRIPT = """
from layerscope.data.augment import ViewPool, ViewRequest, make_views
print("started", flush=True)
with ViewPool(ViewRequest(2, 0), workers=2) as pool:
    assert pool.make(["some words to change"] * 8) == make_views(["some words to change"] * 8, 2, 0)
    assert all(child.poll() is None for child in pool.pool.children), "they died"
print("done")
"""


def test_a_script_without_a_guard_and_with_files_named_like_modules(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("pickle", "struct", "random", "numpy"):
        (folder / f"{name}.py").write_text(
            "raise SystemExit('imported from the current folder')", encoding="utf-8"
        )
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "started\ndone\n", done.stderr
    assert "worker" not in done.stderr


@WAYS
def test_workers_end_when_their_parent_is_killed(imports: list[str] | None) -> None:
    script = (
        "import sys, time\nfrom layerscope.data.workers import WorkerPool\n"
        "from layerscope.data.augment import answer_views, ViewRequest\n"
        f"pool = WorkerPool(answer_views, ViewRequest(2, 0), 2, None, {imports})\nlist(pool.map([['a text']] * 4))\n"
        "nursery = [] if pool._nursery is None else [pool._nursery.process]\n"
        "print(*[child.pid for child in [*pool.children, *nursery]], flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 + (imports is not None)
    parent.kill()
    parent.wait()
    for _ in range(600):
        if not any(_is_running(pid) for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail("a worker is still there")


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
