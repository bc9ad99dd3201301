"""Metrics that another package adds are measured, kept, printed, drawn and reported like the
package's own."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import layerscope
from layerscope.core.plugins import PluginError
from layerscope.data import Corpus
from layerscope.errors import LayerscopeError
from layerscope.metrics import (
    Estimate,
    Metric,
    MetricInfo,
    Options,
    SiteVectors,
    expand_names,
    on_log_scale,
)
from layerscope.metrics.prompt_metrics import CURVATURE, measure_curvature
from layerscope.metrics.registry import REGISTRY
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import ProfileTask, ShardWork, make_plan
from layerscope.report.profile import print_run
from layerscope.training.watch import choose_metrics
from tests.tiny import tiny_model

TEXTS = [
    "A cat sat on the mat.",
    "Rivers run to the sea.",
    "One.",
    "Stars are far away from here.",
    "Two and two is four.",
]

MODULE = """
import torch

from layerscope.metrics import Estimate, Metric, MetricInfo


def measure_norm(states, mask, options):
    return torch.where(mask, states.norm(dim=-1), 0).sum(-1) / mask.sum(-1).clamp(min=1)


NORM = Metric(
    MetricInfo(
        name="outer_norm", title="Outer norm", level="tokens", unit="length", higher_means="tokens are longer",
        bounds="at least 0", citation="outside", sinks=("keep", "drop"),
        heading="outer\\nnorm", order=15, log_scale=True, compare_sinks=True,
    ),
    measure=measure_norm,
)


def mean_of(lengths, site):
    return Estimate(lengths.mean(), len(lengths), site.width, (lengths - lengths.mean()) / len(lengths))


LENGTH = Metric(
    MetricInfo(
        name="outer_length", title="Outer length", level="pooled", unit="length", higher_means="vectors are longer",
        bounds="at least 0", citation="outside",
    ),
    estimate=lambda site, options: mean_of(site.rows.double().norm(dim=-1).numpy(), site),
)


APART = Metric(
    MetricInfo(
        name="outer_apart", title="Outer distance", level="views", unit="length", higher_means="views differ more",
        bounds="at least 0", citation="outside", main=False,
    ),
    estimate=lambda site, options: mean_of((site.views[:, 0] - site.views[:, 1]).double().norm(dim=-1).numpy(), site),
)
"""
NAMES = ["outer_norm", "outer_length", "outer_apart"]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that declares its metrics as entry points; the registry looks again."""
    site = tmp_path / "site"
    (site / "outside_metrics-1.0.dist-info").mkdir(parents=True)
    (site / "outside_metrics.py").write_text(MODULE, encoding="utf-8")
    metadata = "Metadata-Version: 2.1\nName: outside-metrics\nVersion: 1.0\n"
    (site / "outside_metrics-1.0.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
    points = "[layerscope.metrics]\nouter_norm = outside_metrics:NORM\nothers = outside_metrics\n"
    (site / "outside_metrics-1.0.dist-info" / "entry_points.txt").write_text(
        points, encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(site))
    REGISTRY.load()
    for name in ("_things", "_sources", "_broken"):
        monkeypatch.setattr(REGISTRY, name, dict(getattr(REGISTRY, name)))
    monkeypatch.setattr(REGISTRY, "_loaded", False)
    yield
    sys.modules.pop("outside_metrics", None)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a metric known for the length of a test."""
    REGISTRY.load()
    return lambda metric: monkeypatch.setitem(REGISTRY._things, metric.info.name, metric)


def facts(name: str, **more: Any) -> MetricInfo:
    given = {
        "title": name,
        "level": "tokens",
        "unit": "",
        "higher_means": "more",
        "citation": "",
        "bounds": "any",
        **more,
    }
    return MetricInfo(name=name, **given)


def measure_mean_norm(states: Tensor, mask: Tensor, options: Options) -> Tensor:
    return torch.where(mask, states.norm(dim=-1), 0).sum(-1) / mask.sum(-1).clamp(min=1)


MEAN_NORM = Metric(
    facts("mean_norm", sinks=("keep", "drop")),
    measure=measure_mean_norm,
)


def test_metrics_of_another_package_show_everywhere(outside: None, tmp_path: Path) -> None:
    model = tiny_model()
    run = layerscope.profile(
        model,
        TEXTS,
        metrics=["prompt_entropy", *NAMES],
        views=2,
        out=tmp_path / "run",
        final_norm="applied",
        progress=False,
    )
    assert set(run.table["metric"]) == {"prompt_entropy", *NAMES}
    assert run.curve("outer_norm", sink="drop")["ci_low"].notna().all()
    assert np.isfinite(run.table.loc[run.table["metric"].isin(NAMES), "value"]).all()
    # the tokens' values are those that `measure` gives, prompt by prompt
    prompts = run.prompts.groupby("site", sort=False)[
        ["outer_norm", "outer_norm_sink_dropped"]
    ].mean()
    for sink, column in (("keep", "outer_norm"), ("drop", "outer_norm_sink_dropped")):
        curve = run.curve("outer_norm", sink=sink).set_index("site")["value"]
        np.testing.assert_allclose(prompts[column].loc[curve.index], curve, rtol=1e-12)
    assert (
        run.manifest["conventions"]["plugins"]["outer_norm"]
        == "outside_metrics.measure_norm (outside-metrics 1.0)"
    )

    console = Console(file=StringIO(), width=150)
    print_run(run, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "outer" in printed
    assert "Outer distance" in printed  # not a main one: among the curves alone
    titles = [chart["title"]["text"] for chart in run.plot().to_dict()["concat"]]
    assert {"Prompt entropy", "Outer norm", "Outer length"} <= set(titles)
    assert titles.index("Outer norm") == 1  # by its order
    assert on_log_scale("outer_norm")
    page = layerscope.write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    for title in ("Outer norm", "Outer length", "Outer distance"):
        assert title in page
    again = layerscope.Profile.load(tmp_path / "run")
    assert again.table.equals(run.table)


def test_the_built_in_numbers_do_not_depend_on_a_metric_beside_them(known: Any) -> None:
    known(MEAN_NORM)
    model, names = tiny_model(), ["prompt_entropy", "curvature", "sink_ratio", "dataset_entropy"]
    alone = layerscope.profile(model, TEXTS, metrics=names, progress=False)
    beside = layerscope.profile(model, TEXTS, metrics=[*names, "mean_norm"], progress=False)
    held = beside.table[beside.table["metric"] != "mean_norm"].reset_index(drop=True)
    assert held.equals(alone.table)


def test_values_are_those_of_measure_on_the_states(known: Any) -> None:
    known(MEAN_NORM)
    model = tiny_model()
    run = layerscope.profile(model, TEXTS, metrics=["mean_norm"], final_norm="raw", progress=False)
    for i, text in enumerate(TEXTS):
        ids = torch.tensor([model.tokenize([text]).ids[0]])
        with torch.inference_mode():
            hidden = model.module(input_ids=ids, output_hidden_states=True).hidden_states
        norms = hidden[1][0].double().norm(dim=-1)  # layer 1
        row = run.prompts[(run.prompts["prompt"] == i) & (run.prompts["layer"] == 1)].iloc[0]
        assert row["mean_norm"] == pytest.approx(float(norms.mean()), rel=1e-5)
        rest = (norms.sum() - norms.max()) / (len(norms) - 1)
        assert row["mean_norm_sink_dropped"] == pytest.approx(float(rest), rel=1e-5)


def test_a_metric_made_from_a_built_in_one_is_measured_by_itself(known: Any) -> None:
    def twice(states: Tensor, mask: Tensor, options: Options) -> Tensor:
        return 2 * measure_curvature(states, mask, options)

    known(Metric(replace(CURVATURE.info, name="twice_curvature"), measure=twice))
    run = layerscope.profile(
        tiny_model(), TEXTS, metrics=["curvature", "twice_curvature"], progress=False
    )
    once, twice_as_much = (
        run.curve(name)["value"].to_numpy() for name in ("curvature", "twice_curvature")
    )
    np.testing.assert_allclose(twice_as_much, 2 * once, rtol=1e-5)


def test_workers_measure_it_where_it_is_not_installed(
    known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(MEAN_NORM)
    model, config = tiny_model(), make_config(metrics=["mean_norm"])

    class Recipe:
        memory = 0

        def __reduce__(self) -> Any:
            return Recipe, ()

        def open(self) -> Any:
            return model

    corpus = Corpus.of(TEXTS)
    task: Any = ProfileTask(model, corpus, config, recipe=Recipe())  # type: ignore[arg-type]
    work = ShardWork(task, make_plan(task.reader, 4))
    plugins = pickle.loads(pickle.dumps(work.plugins))
    assert plugins == [MEAN_NORM]
    monkeypatch.setattr(
        REGISTRY, "_things", {k: v for k, v in REGISTRY._things.items() if k != "mean_norm"}
    )
    work.open()
    try:
        shard = work.run(np.arange(4), lambda n: None)
    finally:
        work.close()
    assert {"mean_norm.keep", "mean_norm.drop"} <= set(shard.numbers)
    assert np.isfinite(shard.numbers["mean_norm.keep"]).all()


def wrong(answer: Any) -> Metric:
    """A metric that measures what a test says."""
    return Metric(facts("wrong"), measure=lambda states, mask, options: answer(states, mask))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda states, mask: states.norm(dim=-1),
            r"one real number per prompt, a tensor of shape \(3,\)",
        ),
        (lambda states, mask: 1.0, "it returned float"),
        (
            lambda states, mask: torch.full((len(states),), torch.nan),
            "gives NaN, which",
        ),
        (lambda states, mask: states.norm(dim=-1).mean(-1), "reads padding"),
        (
            lambda states, mask: states.no_such_thing,
            "tried on random samples, failed: AttributeError",
        ),
    ],
)
def test_what_is_wrong_is_told_before_a_model_is_run(
    known: Any, answer: Any, says: str, tmp_path: Path
) -> None:
    known(wrong(answer))
    with pytest.raises(PluginError, match=says):
        layerscope.profile("no-such-model", TEXTS, metrics=["wrong"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def too_many(answer: str) -> Metric:
    """A metric that fails for more vectors than the trial has, or gives no value."""

    def estimate(site: SiteVectors, options: Options) -> Estimate:
        if len(site) == 24:
            return Estimate(1.0, 24, site.width)
        if answer == "raise":
            raise RuntimeError("cannot do that")
        return Estimate(np.nan, len(site), site.width)

    return Metric(facts("too_many", level="pooled"), estimate=estimate)


@pytest.mark.parametrize(
    ("answer", "says"),
    [("raise", "RuntimeError: cannot do that"), ("nan", "has no value there")],
)
def test_a_metric_that_fails_at_the_end_loses_only_itself(
    known: Any, answer: str, says: str
) -> None:
    known(too_many(answer))
    run = layerscope.profile(
        tiny_model(), TEXTS, metrics=["dataset_entropy", "too_many"], progress=False
    )
    assert run.curve("dataset_entropy")["value"].notna().all()
    assert run.curve("too_many")["value"].isna().all()
    assert any(says in warning and "too_many" in warning for warning in run.manifest["warnings"])


def test_a_run_that_a_metric_stopped_goes_on_where_it_was(
    known: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = [f"{'word ' * (k % 9 + 2)}{k}" for k in range(150)]
    calls = []

    def fails_late(states: Tensor, mask: Tensor) -> Tensor:
        calls.append(len(states))
        if len(calls) > 200:
            raise RuntimeError("not today")
        return mask.sum(-1).double()

    known(wrong(fails_late))
    monkeypatch.setattr("layerscope.profiling.encode.choose_shard_size", lambda *args: 32)
    settings: dict[str, Any] = {
        "metrics": ["wrong"],
        "out": tmp_path / "run",
        "batch_size": 2,
        "progress": False,
    }
    with pytest.raises(
        PluginError,
        match=r"metric 'wrong' failed at .*: RuntimeError: not today\. .*choose other metrics",
    ):
        layerscope.profile(tiny_model(), texts, **settings)
    known(wrong(lambda states, mask: mask.sum(-1).double()))
    run = layerscope.profile(tiny_model(), texts, **settings)
    assert run.manifest["seconds"]["resumed_prompts"] >= 32
    assert (run.prompts["wrong"] == run.prompts["tokens"]).all()


def largest_norm(states: Tensor) -> Tensor:
    """The longest token of one prompt."""
    return states.norm(dim=-1).max()


def mean_length(states: Tensor, mask: Tensor) -> Tensor:
    """Of a batch."""
    return torch.where(mask, states.norm(dim=-1), 0).sum(-1) / mask.sum(-1)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test makes known is forgotten after it."""
    REGISTRY.load()
    monkeypatch.setattr(REGISTRY, "_things", dict(REGISTRY._things))


def test_a_function_is_a_metric_of_its_name(forgotten: None) -> None:
    model = tiny_model()
    run = layerscope.profile(
        model,
        TEXTS,
        metrics=["curvature", largest_norm, mean_length, MEAN_NORM],
        final_norm="raw",
        progress=False,
    )
    assert list(dict.fromkeys(run.table["metric"])) == [
        "curvature",
        "largest_norm",
        "mean_length",
        "mean_norm",
    ]
    own, same = (run.curve(name)["value"].to_numpy() for name in ("mean_length", "mean_norm"))
    np.testing.assert_allclose(own, same, rtol=1e-6)
    for i, text in enumerate(TEXTS):
        with torch.inference_mode():
            ids = torch.tensor([model.tokenize([text]).ids[0]])
            states = model.module(input_ids=ids, output_hidden_states=True).hidden_states[1][0]
        row = run.prompts[(run.prompts["prompt"] == i) & (run.prompts["layer"] == 1)].iloc[0]
        assert row["largest_norm"] == pytest.approx(float(states.norm(dim=-1).max()), rel=1e-5)
    assert run.curve("largest_norm")["ci_low"].notna().all()
    assert run.manifest["conventions"]["plugins"]["largest_norm"].startswith(
        "tests.plugins.test_metrics.largest_norm (code "
    )
    # it is measured where it is named, and nowhere else
    assert "largest_norm" not in expand_names("all")
    assert expand_names(largest_norm) == ["largest_norm"]
    assert "largest_norm" not in {metric.info.name for metric in choose_metrics(None, Options())}


def test_names_may_have_commas(forgotten: None) -> None:
    run = layerscope.profile(
        tiny_model(), TEXTS, metrics="curvature, prompt_entropy", progress=False
    )
    assert set(run.table["metric"]) == {"curvature", "prompt_entropy"}


def test_another_function_of_the_same_name_is_another_run(forgotten: None, tmp_path: Path) -> None:
    def scaled(by: float) -> Any:
        def size(states: Tensor) -> Tensor:
            return by * states.abs().max()

        return size

    once = layerscope.profile(
        tiny_model(), TEXTS, metrics=[scaled(1.0)], out=tmp_path / "run", progress=False
    )
    again = layerscope.profile(
        tiny_model(), TEXTS, metrics=[scaled(1.0)], out=tmp_path / "run", progress=False
    )
    assert again.table.equals(once.table)
    with pytest.raises(LayerscopeError, match=r"holds another run, which differs in .*size"):
        layerscope.profile(
            tiny_model(), TEXTS, metrics=[scaled(2.0)], out=tmp_path / "run", progress=False
        )
    # whoever opens the run later need not have the function
    del REGISTRY._things["size"]
    loaded = layerscope.load_run(tmp_path / "run")
    assert loaded.curve("size")["value"].equals(once.curve("size")["value"])
    assert "size" in layerscope.write_report([loaded], tmp_path / "report.html").read_text(
        encoding="utf-8"
    )


def curvature(states: Tensor) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda states: 1.0, "a function with a name of its own"),
        (7, "7 is not a metric: give a name, a Metric, or a function"),
        (curvature, r"two metrics are called 'curvature': .*Rename one of them"),
    ],
)
def test_what_is_no_metric_is_refused(forgotten: None, given: Any, told: str) -> None:
    with pytest.raises(PluginError, match=told):
        layerscope.profile("no-such-model", TEXTS, metrics=[given])


def test_a_function_that_gives_no_number_is_refused(forgotten: None) -> None:
    def rows(states: Tensor) -> Tensor:
        return states.norm(dim=-1)

    def three(states: Tensor, mask: Tensor, more: Tensor) -> Tensor:
        return states

    with pytest.raises(
        PluginError,
        match=r"'rows' must return one number for the states .* a tensor of shape \(24,\)",
    ):
        layerscope.profile("no-such-model", TEXTS, metrics=[rows])
    with pytest.raises(PluginError, match="'three': the function takes 3 arguments"):
        layerscope.profile("no-such-model", TEXTS, metrics=[three])
