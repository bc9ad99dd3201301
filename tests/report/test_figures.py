"""Figures: a panel per metric, a line per run, files of several kinds, and a clear error without
matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError
from layerscope.metrics import main_metrics
from layerscope.profiling import Profile
from layerscope.report.drawing import save_figure
from layerscope.report.sections.profile import plot_profiles

pytest.importorskip("matplotlib")


def panels(figure) -> list:  # type: ignore[no-untyped-def, type-arg]
    return [axis for axis in figure.axes if axis.get_visible()]


def test_a_panel_per_metric(run: Profile) -> None:
    from matplotlib.figure import Figure

    figure = run.plot()
    assert isinstance(figure, Figure)
    assert len(panels(figure)) == len(main_metrics())
    figure = plot_profiles([run], ["dime", "curvature", "prompt_entropy"], columns=2)
    assert [axis.get_title(loc="left") for axis in panels(figure)] == [
        "DiME",
        "Curvature",
        "Prompt entropy",
    ]
    assert len(figure.axes) == 4  # the last place stays empty


def test_a_line_per_run_and_sink_setting(run: Profile) -> None:
    figure = plot_profiles([run, run], ["prompt_entropy", "dime"], x="layer")
    entropy, dime = panels(figure)
    assert len(entropy.lines) == 4
    assert len(dime.lines) == 2
    assert entropy.lines[0].get_xdata().tolist() == [0, 1, 2, 3]
    assert entropy.lines[0].get_ydata().tolist() == [3.0, 3.1, 1.25, 3.0]
    assert entropy.lines[1].get_ydata().tolist() == [3.0, 3.1, 3.2, 3.0]
    assert entropy.lines[1].get_linestyle() != "-"
    assert [text.get_text() for text in entropy.texts] == ["layer 2: the sink"] * 2
    depth = panels(plot_profiles([run], ["dime"]))[0]
    assert depth.lines[0].get_xdata().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_files(run: Profile, tmp_path: Path, suffix: str, start: bytes) -> None:
    target = tmp_path / "new" / f"figure.{suffix}"
    assert save_figure(plot_profiles([run], ["dime"]), target) == target
    assert target.read_bytes().startswith(start)


def test_names_are_no_markup(run: Profile, tmp_path: Path) -> None:
    save_figure(plot_profiles([run], ["dime"]), tmp_path / "a.svg")
    assert "<script>" not in (tmp_path / "a.svg").read_text()


def test_mistakes(run: Profile, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'layer'"):
        plot_profiles([run], x="layers")
    with pytest.raises(UnknownNameError, match="Did you mean 'dime'"):
        plot_profiles([run], ["dim"])
    with pytest.raises(UnknownNameError, match=r"unknown figure format '\.doc'"):
        save_figure(plot_profiles([run], ["dime"]), tmp_path / "a.doc")
    with pytest.raises(LayerscopeError, match="no runs with metrics"):
        plot_profiles([])
    run.table = run.table[run.table["metric"] == "dime"]
    with pytest.raises(UnknownNameError, match="metric in these runs 'curvature'"):
        plot_profiles([run], ["curvature"])


def test_without_matplotlib(run: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[report\]'"):
        run.plot()
