"""A sweep's file: what it may say, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from layerscope.sweeps.checks import SweepFileError
from layerscope.sweeps.jobs import make_jobs
from layerscope.sweeps.read import read_sweep

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.yaml"


def test_models_revisions_checkpoints_corpora_and_tasks(home: Path) -> None:
    config = read_sweep(
        {
            "models": [
                "one",
                {"name": "org/two", "revisions": ["a", 10], "dtype": "bfloat16"},
                {"checkpoints": str(home / "step-*")},
            ],
            "corpora": ["lee", {"data": "lee", "limit": 5, "name": "few"}],
            "profile": {"views": 3, "permutations": 4},
            "evaluate": {"tasks": "small"},
        }
    )
    assert [model.label for model in config.models] == ["one", "org/two@a", "org/two@10", "step-20", "step-100"]
    assert config.models[1].options == {"dtype": "bfloat16"}
    assert [(corpus.label, corpus.limit) for corpus in config.corpora] == [("lee", None), ("few", 5)]
    jobs = make_jobs(config)
    assert len(jobs) == 5 * (2 + 1)
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.name for job in jobs[3:6]] == ["org-two@a--lee", "org-two@a--few", "org-two@a--tasks"]


def test_names_of_jobs_are_never_shared(home: Path) -> None:
    config = read_sweep({"models": ["a/b", "a-b"], "corpora": ["lee", "lee"]})
    names = [job.name for job in make_jobs(config)]
    assert names == ["a-b--lee", "a-b--lee-2", "a-b--lee-3", "a-b--lee-4"]


def test_only_tasks() -> None:
    jobs = make_jobs(read_sweep({"models": ["one"], "evaluate": {"tasks": ["A"]}}))
    assert [job.kind for job in jobs] == ["evaluate"]


def test_paths_are_meant_from_where_the_file_is(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "sweep.yaml"
    file.write_text(
        yaml.safe_dump({"models": ["step-20", {"checkpoints": "step-*"}], "corpora": ["first.txt"]}), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    config = read_sweep(file)
    assert [model.spec for model in config.models] == [str(home / name) for name in ("step-20", "step-20", "step-100")]
    assert config.corpora[0].data == str(home / "first.txt")


def test_the_example_is_valid() -> None:
    assert len(make_jobs(read_sweep(EXAMPLE))) == 4


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({}, "`models` is missing: a list of catalogue names"),
        ({"models": "one"}, "models must be a list, not str 'one'"),
        ({"models": []}, "models is an empty list"),
        ({"models": [3]}, r"models\[0\] must be a name, or a mapping with the key `name`, not int 3"),
        ({"models": [{"nam": "x"}]}, r"models\[0\]: unknown key 'nam'. Did you mean 'name'\? Valid: adapters"),
        ({"models": [{"dtype": "float16"}]}, r"models\[0\] needs a `name`"),
        ({"models": [{"name": "x", "revisions": []}]}, r"models\[0\].revisions is an empty list"),
        ({"models": [{"name": "x", "revisions": [None]}]}, r"models\[0\].revisions\[0\] must be a name, not empty"),
        ({"models": [{"name": "x", "checkpoints": "y"}]}, "which are folders"),
        ({"models": [{"checkpoints": "/no/such/*"}]}, r"no folder matches '/no/such/\*'"),
        ({"models": ["x"], "corpus": ["lee"]}, "unknown key 'corpus'. Did you mean 'corpora'"),
        ({"models": ["x"], "corpora": [{"limit": 3}]}, r"corpora\[0\] needs `data`"),
        ({"models": ["x"], "corpora": [{"data": "lee", "limit": "3"}]}, r"corpora\[0\].limit must be a whole number of texts"),
        ({"models": ["x"], "profile": {"max_lenght": 3}}, "profile: unknown key 'max_lenght'. Did you mean 'max_length'"),
        ({"models": ["x"], "profile": ["views"]}, "profile must be a mapping of settings, not list"),
        ({"models": ["x"], "evaluate": {"task": "small"}}, "evaluate: unknown key 'task'. Did you mean 'tasks'"),
        ({"models": ["x"], "offline": "yes"}, "offline must be true or false, not str 'yes'"),
    ],
)  # fmt: skip
def test_what_is_said_about_mistakes(held: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SweepFileError, match=message):
        read_sweep(held)
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(held), encoding="utf-8")
    with pytest.raises(SweepFileError, match=f"sweep.yaml: .*{message}"):
        read_sweep(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SweepFileError, match="cannot be read: No such file"):
        read_sweep(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("models: [one", encoding="utf-8")
    with pytest.raises(SweepFileError, match=r"is not valid YAML: .* line 1"):
        read_sweep(bad)
    bad.write_text("- one", encoding="utf-8")
    with pytest.raises(SweepFileError, match="the file must be a mapping"):
        read_sweep(bad)
