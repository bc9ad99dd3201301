"""A map on paper."""

from __future__ import annotations

import pytest

from layerscope.errors import InvalidValueError, UnknownNameError
from tests.report.synthetic import synthetic_map


def test_a_row_per_reading_and_the_layer_in_use_last() -> None:
    figure = synthetic_map(30, 12).plot()
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 8
    assert [title.split(" (")[0] for title in titles[3::4]] == ["today, layer 12 *", "better, layer 10 *"]
    drawn = sum(len(points.get_offsets()) for points in figure.axes[0].collections)
    assert drawn == 30


def test_layers_and_colors_are_asked_for() -> None:
    made = synthetic_map(30)
    figure = made.plot([0, 6], color="stars")
    assert [axis.get_title().split(",")[1].split(" (")[0] for axis in figure.axes[:2]] == [" layer 0", " layer 6 *"]
    assert "all alike" in figure.axes[2].get_title()
    with pytest.raises(UnknownNameError, match="topic"):
        made.plot(color="topik")
    with pytest.raises(InvalidValueError, match="0 to 6"):
        made.plot([7])
