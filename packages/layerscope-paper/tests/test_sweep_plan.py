"""Plans: what the file of a sweep or a recipe may say, and what is said about the rest."""

from __future__ import annotations

import shutil
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
import yaml

from layerscope.core.runs import folder_name, is_reserved, on_disk
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope_paper.atlas.tables import stored_table
from layerscope_paper.studies import STUDIES
from layerscope_paper.studies.shared.models import folder_name as model_folder_name
from layerscope_paper.studies.shared.models import read_specs
from layerscope_paper.sweeps.plan import PlanError, read_plan
from layerscope_paper.sweeps.run import sweep

EXAMPLE = Path(__file__).parents[1] / "docs" / "sweep.yaml"


def test_models_revisions_checkpoints_corpora_and_tasks(home: Path) -> None:
    config = read_plan(
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
    models = [step.models[0] for step in config.steps[::3]]
    assert [model.label for model in models] == [
        "one",
        "org/two@a",
        "org/two@10",
        "step-20",
        "step-100",
    ]
    assert models[1].options == {"dtype": "bfloat16", "revision": "a"}
    assert (config.steps[3].model, config.steps[3].revision) == ("org/two", "a")
    assert [(corpus.label, corpus.limit) for corpus in config.corpora] == [
        ("lee", None),
        ("few", 5),
    ]
    jobs = config.steps
    assert len(jobs) == 5 * (2 + 1)
    assert len({job.name for job in jobs}) == len(jobs)
    assert [job.name for job in jobs[3:6]] == [
        "org-two@a--lee",
        "org-two@a--few",
        "org-two@a--tasks",
    ]


def test_names_of_jobs_are_never_shared(home: Path) -> None:
    config = read_plan({"models": ["a/b", "a-b"], "corpora": ["lee", "lee"]})
    names = [step.name for step in config.steps]
    assert names == ["a-b--lee", "a-b--lee-2", "a-b--lee-3", "a-b--lee-4"]


def test_names_are_different_on_every_disk(home: Path) -> None:
    """Emulated: a disk that knows no capitals and one way to write an accent, and Windows' names of
    devices."""
    plan = read_plan(
        {"models": ["org/Bert", "org/bert", "caf\u00e9", "cafe\u0301"], "corpora": ["lee"]}
    )
    names = [step.name for step in plan.steps]
    assert len({on_disk(name) for name in names}) == len(names)
    steps = [
        {"study": "extreme", "models": ["a"], "name": "First"},
        {"study": "extreme", "models": ["a"], "name": "first"},
    ]
    with pytest.raises(PlanError, match="the name 'first' is taken"):
        read_plan({"steps": steps})
    with pytest.raises(PlanError, match="'aux' is taken, or is not fit for a folder"):
        read_plan({"steps": [{**steps[0], "name": "aux"}]})


@pytest.mark.parametrize(
    "name", ["con", "NUL", "aux.txt", "Com1", "lpt9.tar.gz", "model.", "..", ".", "a/..", "x/prn"]
)
def test_folders_of_models_have_names_that_every_system_allows(name: str) -> None:
    for made in (folder_name(name), model_folder_name(name)):
        assert not is_reserved(made)
        assert Path(made).name == made
        assert made not in ("", ".", "..")


def test_models_that_differ_in_capitals_have_folders_of_their_own() -> None:
    labels = [spec.label for spec in read_specs(["org/Bert", "org/bert", "org/BERT"])]
    assert len({on_disk(model_folder_name(label)) for label in labels}) == 3


HOSTILE = [
    "../up", "..", ".", "a/b", "a\\b", "/top", "C:\\x", "con", "NUL.txt", "com\u00b9", ".git", "a\x1b[31m", "a\nb", "a\0b", "a:b",
    "a b ", "manifest.json", "Sweep.CSV", "run.lock", "x.part", "x.old", "", "x" * 200, "trailing.",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_steps_that_are_not_folders_of_the_sweep(name: str) -> None:
    step = {"study": "extreme", "models": ["a"], "name": name}
    if name:
        with pytest.raises(PlanError, match="is not fit for a folder"):
            read_plan({"steps": [step]})
    grid = read_plan({"models": [name or "m"], "corpora": [{"data": "lee", "name": name}]}).steps
    several = read_plan({"steps": [{"profile": {}, "models": ["a", "b"], "name": name}]}).steps
    for made in (step.name for step in [*grid, *several]):
        assert Path(made).name == made == PureWindowsPath(made).name
        assert made.isprintable()
        assert len(made) <= 130
        assert not is_reserved(made)
        assert not made.startswith(".")
        assert not made.casefold().endswith(
            (".json", ".parquet", ".csv", ".lock", ".part", ".old", ".damaged")
        )


def test_no_two_files_are_one_on_any_disk(model_folder: Path, tmp_path: Path) -> None:
    """Emulated: what a sweep writes, looked at as a disk does that knows neither capitals nor two
    ways to write an accent."""
    for name in ("Model", "model", "caf\u00e9", "cafe\u0301"):
        shutil.copytree(model_folder, tmp_path / name)
    (tmp_path / "texts.txt").write_text("one text\nanother text\n")
    models = [str(tmp_path / name) for name in ("Model", "model", "caf\u00e9", "cafe\u0301")]
    options = {"metrics": ["prompt_entropy"]}
    steps = [
        {
            "study": "compare",
            "models": models[:2],
            "data": str(tmp_path / "texts.txt"),
            "options": options,
        }
    ]
    plan = {
        "models": models,
        "corpora": [str(tmp_path / "texts.txt")],
        "profile": {"metrics": ["prompt_entropy"]},
        "steps": steps,
    }
    done = sweep(plan, out=tmp_path / "out", progress=False)
    assert list(done.jobs["status"]) == ["complete"] * 5
    written = list((tmp_path / "out").rglob("*"))
    assert len(written) > 20
    assert len({on_disk(str(path)) for path in written}) == len(written)
    assert not [path for path in written if is_reserved(path.name)]


def test_only_tasks() -> None:
    jobs = read_plan({"models": ["one"], "evaluate": {"tasks": ["A"]}}).steps
    assert [job.kind for job in jobs] == ["evaluate"]


def test_paths_are_relative_to_the_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "sweep.yaml"
    file.write_text(
        yaml.safe_dump(
            {"models": ["step-20", {"checkpoints": "step-*"}], "corpora": ["first.txt"]}
        ),
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    config = read_plan(file)
    assert [step.models[0].model for step in config.steps] == [
        str(home / name) for name in ("step-20", "step-20", "step-100")
    ]
    assert config.corpora[0].data == str(home / "first.txt")


def test_the_example_is_valid() -> None:
    assert len(read_plan(EXAMPLE).steps) == 4


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
        ({"models": ["x"], "corpra": ["lee"]}, "unknown key 'corpra'. Did you mean 'corpora'"),
        ({"models": ["x"], "corpora": [{"limit": 3}]}, r"corpora\[0\] needs `data`"),
        ({"models": ["x"], "corpora": [{"data": "lee", "limit": "3"}]}, r"corpora\[0\].limit must be a whole number of texts"),
        ({"models": ["x"], "profile": {"max_lenght": 3}}, "profile: unknown key 'max_lenght'. Did you mean 'max_length'"),
        ({"models": ["x"], "profile": ["views"]}, "profile must be a mapping of settings, not list"),
        ({"models": ["x"], "evaluate": {"task": "small"}}, "evaluate: unknown key 'task'. Did you mean 'tasks'"),
    ],
)  # fmt: skip
def test_messages_about_mistakes(held: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=message):
        read_plan(held)
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(held), encoding="utf-8")
    with pytest.raises(PlanError, match=f"sweep.yaml: .*{message}"):
        read_plan(file)


def test_steps_of_every_kind_beside_a_grid(home: Path) -> None:
    plan = read_plan(
        {
            "models": [str(home / "step-20")],
            "profile": {"max_length": 8},
            "defaults": {"data": str(home / "first.txt"), "limit": 3, "max_length": 16},
            "steps": [
                {
                    "study": "extreme",
                    "models": [f"{home / 'step-20'}?label=mine"],
                    "options": {"levels": [0, 1]},
                    "seed": 4,
                },
                {
                    "name": "short",
                    "profile": {"metrics": ["prompt_entropy"]},
                    "models": [str(home / "step-100")],
                },
                {"evaluate": {"tasks": "small"}, "models": ["org/a", "org/b?dtype=bfloat16"]},
                {"name": "classes", "probe": {"data": "labeled.csv"}, "models": ["org/a"]},
            ],
        }
    )
    grid, extreme, short, first, second, classes = plan.steps
    assert (grid.name, grid.kind, grid.settings) == ("step-20--lee", "profile", {"max_length": 8})
    assert (extreme.models[0].label, extreme.model, extreme.settings["seed"]) == ("mine", "mine", 4)
    assert extreme.corpus is not None
    assert (extreme.corpus.limit, extreme.settings["max_length"]) == (3, 16)
    assert (short.name, short.settings["max_length"], short.settings["metrics"]) == (
        "short",
        16,
        ["prompt_entropy"],
    )
    assert [first.name, second.name] == ["evaluate-org-a", "evaluate-org-b-dtype-bfloat16"]
    assert [step.options_of(step.models[0]).get("dtype") for step in (first, second)] == [
        None,
        "bfloat16",
    ]
    assert (classes.kind, classes.settings) == ("probe", {"data": "labeled.csv"})
    assert [step.name for step in plan.only(["extreme", "short"]).steps] == ["extreme", "short"]
    with pytest.raises(UnknownNameError, match=r"step of sweep 'shot'. Did you mean 'short'"):
        plan.only(["shot"])


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"steps": []}, "steps is an empty list"),
        ({"stesp": []}, "unknown key 'stesp'. Did you mean 'steps'"),
        ({"defaults": {"lenght": 3}}, "unknown key 'lenght'"),
        ({"steps": [{"models": []}]}, "names no `study`"),
        ({"steps": [{"study": "extreme", "profile": {}}]}, "or more than one of them"),
        (
            {"steps": [{"study": "extrem", "models": ["a"]}]},
            r"steps\[0\]: unknown study 'extrem'. Did you mean 'extreme'",
        ),
        ({"steps": [{"study": "extreme", "models": []}]}, "takes 1 model"),
        (
            {"steps": [{"study": "extreme", "models": ["a"], "options": {"level": 1}}]},
            "Did you mean 'levels'",
        ),
        ({"steps": [{"study": "extreme", "models": ["a"]}] * 2}, "'extreme' is taken"),
        (
            {"steps": [{"profile": {}, "models": ["a"], "options": {"views": 1}}]},
            "write settings of `profile` under `profile`",
        ),
        (
            {"steps": [{"probe": {"head": "knn"}, "models": ["a"]}]},
            "unknown key 'head'. Did you mean 'heads'",
        ),
        ({"models": {"a": {"layers": 3}}}, "models must be a list"),
    ],
)
def test_mistakes_in_steps_are_found_before_anything_runs(
    change: dict[str, Any], phrase: str
) -> None:
    good = {"steps": [{"study": "extreme", "models": ["a"]}]}
    with pytest.raises(LayerscopeError, match=phrase):
        read_plan({**good, **change})


def test_the_papers_recipe_reads_the_published_revisions() -> None:
    published = set(stored_table("metrics")["revision"]) | set(stored_table("scores")["revision"])
    steps = {step.name: step for step in read_plan("paper").steps}
    assert published - {"main"} <= set(steps["training"].options["steps"])
    named = {spec.options.get("revision") for step in steps.values() for spec in step.models}
    assert named == {None}, "no commit of a published model is known"


def test_the_papers_recipe_says_whose_data_have_moved() -> None:
    mteb = pytest.importorskip("mteb")
    scores = stored_table("scores")
    known = scores.groupby("task")["dataset_revision"].unique()
    moved = [
        task
        for task, revisions in known.items()
        if mteb.get_task(task).metadata.revision not in revisions
    ]
    assert len(known) == 32
    assert len([task for task in moved if "Amazon" in task]) == 2
    assert len([task for task in moved if "MTOP" in task]) == 2
    assert len(moved) == 8


def test_the_papers_recipe_has_every_study() -> None:
    plan = read_plan("paper")
    # the theorems need no model
    of_the_paper = {name for name, study in STUDIES.all().items() if study.paper} - {"theory"}
    assert {step.study for step in plan.steps if step.study} >= of_the_paper, (
        "a study that the recipe leaves out"
    )
    assert plan.name == "paper"
    by_name = {step.name: step for step in plan.steps}
    for name in ("architectures", "llm2vec", "scale", "training"):
        assert {"infonce", "lidar", "dime"} <= set(by_name[name].options["metrics"])
    assert by_name["training"].options["steps"][-1] == "step143000"
    small = {step.study for step in read_plan("paper-small").steps}
    assert small >= {"compare", "scale", "extreme", "sublayers", "reasoning", "scores"}
    for each in (plan, read_plan("paper-small")):
        assert {step.kind for step in each.steps} == {
            "study",
            "probe",
            "profile",
        }  # Fig. 14: accuracy, and entropies
        of_images = [
            step.settings
            for step in each.steps
            if step.kind == "profile" and "data" in step.settings
        ]
        assert of_images
        assert all(
            step["data"] and {"prompt_entropy", "dataset_entropy"} <= set(step["metrics"])
            for step in of_images
        )
    assert any("LLM2Vec" in spec.label for spec in by_name["scores"].models)  # Table 2
    # as the published metrics were made: their final norm, and once with the released code's
    # settings
    assert by_name["architectures"].settings["final_norm"] == "hf"
    released = [step.settings for name, step in by_name.items() if name.startswith("published-")]
    assert [settings["group"] for settings in released] == [64] * 3
    assert any("aimv2" in step.name for step in plan.steps)
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'papr'. Did you mean 'paper'"):
        read_plan("papr")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no file"):
        read_plan(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("models: [one", encoding="utf-8")
    with pytest.raises(PlanError, match=r"is not valid YAML: .* line 1"):
        read_plan(bad)
    bad.write_text("- one", encoding="utf-8")
    with pytest.raises(PlanError, match="the file must be a mapping"):
        read_plan(bad)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir ['made']", "!!python/name:os.system", "!own thing"]
)
def test_a_tag_in_a_plan_runs_nothing(
    tmp_path: Path, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(f"models: [one]\ncorpora: {tag}\n", encoding="utf-8")
    with pytest.raises(PlanError, match="is not valid YAML") as caught:
        read_plan(tmp_path / "plan.yaml")
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]
