"""The study of nested corpora: what they hold, and when a best layer is said to move."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tiny import tiny_model

from layerscope.core.statistics import Interval, bootstrap_rows
from layerscope.errors import DataError
from layerscope_paper.studies.diversity import (
    Diversity,
    MeasuredCorpus,
    NestedCorpus,
    build_corpora,
    has_moved,
    resamples,
    word_topics,
)
from layerscope_paper.studies.run import study
from layerscope_paper.studies.shared.vectors import reciprocal_ranks

SUBJECTS = {
    "sea": [
        "harbour",
        "sailors",
        "anchor",
        "waves",
        "lighthouse",
        "vessel",
        "captain",
        "current",
        "island",
        "storm",
    ],
    "kitchen": [
        "butter",
        "onions",
        "recipe",
        "kettle",
        "oven",
        "spoon",
        "pepper",
        "flour",
        "garlic",
        "supper",
    ],
    "court": [
        "judge",
        "lawyer",
        "verdict",
        "witness",
        "appeal",
        "sentence",
        "evidence",
        "crime",
        "trial",
        "jury",
    ],
}


def corpus(per_topic: int = 12, words: int = 14) -> list[str]:
    rng = np.random.default_rng(0)
    return [
        f"{i} the " + " and ".join(rng.choice(SUBJECTS[topic], words))
        for topic in SUBJECTS
        for i in range(per_topic)
    ]


def topic_of(text: str) -> str:
    return next(topic for topic, words in SUBJECTS.items() if any(word in text for word in words))


def options(**given: object) -> dict[str, object]:
    return Diversity().fill(given)


def test_topics_are_those_the_texts_were_made_of() -> None:
    texts = corpus()
    found = word_topics(texts, 3, seed=0)
    for topic in SUBJECTS:
        assert (
            len(
                {
                    k
                    for k, text in zip(found.tolist(), texts, strict=True)
                    if topic_of(text) == topic
                }
            )
            == 1
        )
    assert len(set(found.tolist())) == 3


def test_corpora_are_nested_and_of_one_size() -> None:
    texts = corpus()
    corpora, _ = build_corpora(
        texts, options(topics=[1, 2, 3], lengths=[4, 8], copies=[0, 0.5, 0.75]), seed=0
    )
    by = {
        aspect: [c for c in corpora if c.aspect == aspect]
        for aspect in ("topic", "length", "duplication")
    }
    subjects = [{topic_of(text) for text in c.texts} for c in by["topic"]]
    assert [len(each) for each in subjects] == [1, 2, 3]
    assert subjects[0] < subjects[1] < subjects[2]
    assert {len(c.texts) for c in by["topic"]} == {12}
    short, long = by["length"]
    assert all(
        b.startswith(a) and len(a.split()) == 4
        for a, b in zip(short.texts, long.texts, strict=True)
    )
    assert [len(set(c.texts)) for c in by["duplication"]] == [9, 18, 36]
    assert {len(c.texts) for c in by["duplication"]} == {36}
    assert set(by["duplication"][0].texts) < set(by["duplication"][1].texts)


def test_too_few_texts_are_refused_with_advice() -> None:
    with pytest.raises(DataError, match=r"at least 8.*smaller lengths"):
        build_corpora(corpus(), options(aspects=["length"], lengths=[64]), seed=0)


def test_a_text_is_found_by_itself_and_copies_count_as_the_text() -> None:
    whole = np.random.default_rng(0).standard_normal((2, 4, 6))
    texts = ["a", "b", "c", "a"]
    whole[:, 3] = whole[:, 0]
    assert (reciprocal_ranks(whole, whole, texts) == 1).all()
    swapped = whole[:, [1, 0, 2, 1]]  # a asks with b's vector, b with a's
    ranks = reciprocal_ranks(swapped, whole, texts)
    assert (ranks[:, [0, 1, 3]] < 1).all()
    assert (ranks[:, 2] == 1).all()


def test_a_move_needs_intervals_apart() -> None:
    assert has_moved(Interval(2, 1, 3), Interval(7, 6, 8))
    assert not has_moved(Interval(2, 1, 7), Interval(7, 6, 8))
    assert not has_moved(Interval(2, 2, 2), Interval(3, 2, 4))


def measured(rng: np.random.Generator, peak: float, height: float) -> Interval:
    """The best layer of 40 texts whose smooth curves are best at a known layer."""
    texts, layers = 40, np.arange(13)
    truth = height * np.exp(-(((layers - peak) / 3) ** 2))
    rows = truth + np.cumsum(rng.normal(size=(texts, 13)), 1) / np.sqrt(13)
    draws = bootstrap_rows(texts, 60, int(rng.integers(10**6)))
    corpus = NestedCorpus("topic", 1, tuple(map(str, range(texts))))
    return MeasuredCorpus(
        corpus, {"found_again": rows.mean(0)}, {"found_again": rows[draws].mean(1)}
    ).best("found_again")


def test_best_layers_that_are_the_same_seldom_move_and_others_do() -> None:
    rng = np.random.default_rng(0)
    for height in (0.0, 1.0):
        found = np.mean(
            [has_moved(measured(rng, 6, height), measured(rng, 6, height)) for _ in range(60)]
        )
        assert found <= 0.07, "at most one in twenty, up to chance"
    assert (
        np.mean([has_moved(measured(rng, 3, 1.0), measured(rng, 9, 1.0)) for _ in range(30)]) > 0.8
    )


def test_layers_at_the_ceiling_are_all_best() -> None:
    corpus = NestedCorpus("duplication", 0.9, ("a", "b"))
    curve = np.array([0.9, 0.9, 1.0, 1.0, 0.9, 1.0, 1.0])
    best = MeasuredCorpus(
        corpus, {"found_again": curve}, {"found_again": np.tile(curve, (50, 1))}
    ).best("found_again")
    assert (best.low, best.high) == (2, 6)
    assert not has_moved(best, Interval(6, 6, 6))


def test_a_copy_is_no_further_evidence() -> None:
    texts = ["a", "b", "c"] * 10
    for draw in resamples(texts, 0):
        drawn, counts = np.unique(np.array(texts)[draw], return_counts=True)
        assert len(draw) == 30
        assert all(count % 10 == 0 for count in counts), "a text comes with all its copies"
        assert set(drawn) <= {"a", "b", "c"}
    distinct = [str(i) for i in range(12)]
    assert np.array_equal(np.stack(resamples(distinct, 4)), bootstrap_rows(12, 200, [4, 12])), (
        "without copies: the plain bootstrap"
    )


def test_the_study_writes_a_verdict() -> None:
    run = study(
        "diversity",
        tiny_model("llama"),
        data=corpus(),
        topics=[1, 3],
        lengths=[4, 12],
        copies=[0, 0.5],
        max_length=64,
    )
    values = run.table[run.table["kind"] == "value"]
    assert set(values["condition"]) == {"topic", "length", "duplication"}
    assert set(values["metric"]) == {"found_again", "dataset_entropy", "prompt_entropy"}
    assert values["value"].notna().all()
    copies = values[
        (values["condition"] == "duplication") & (values["metric"] == "dataset_entropy")
    ]
    few, many = (
        copies[copies["level"] == level].set_index("layer")["value"] for level in (0.5, 0.0)
    )
    assert (few < many).all()  # copies add no direction
    best = run.table[run.table["kind"] == "best layer"]
    assert len(best) == 6 * 3
    assert run.verdict[0].startswith("In short: ")
    assert len(run.plot().axes) >= 9
