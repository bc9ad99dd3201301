"""`improve` for a search: queries and documents, with and without pairs, from files to a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.choose import Scores
from layerscope.choose.judges import scores_of_items
from layerscope.core.readout import Readout
from layerscope.errors import DataError, LayerscopeError
from layerscope.improving.candidates import pair_readouts
from layerscope.improving.flow import decide_on_others
from layerscope.improving.judging import RankingJudge, ranking_scores
from layerscope.improving.request import read_search
from layerscope.improving.words import page_words
from layerscope.report.improve import candidate_rows
from tests.improving.test_improve import WORDS, judge
from tests.tiny import tiny_model

__all__ = ["judge"]
pytestmark = pytest.mark.usefixtures("stored")

MANY = [f"{word}{ending}" for word in WORDS for ending in ("", "s", "y", "ish")]


def some_search(count: int = 60) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Documents, and a query for each that has some of its words in another order."""
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(MANY, 8, replace=False)) for _ in range(count)]
    queries = ["where " + " ".join(rng.permutation(text.split())[:5]) for text in documents]
    return queries, documents, list(zip(queries, documents, strict=True))


def searched(model, **options):
    queries, documents, pairs = some_search()
    # all templates: on the command line, in `test_improve_command`
    given = {
        "queries": queries,
        "pairs": pairs,
        "judge": "none",
        "max_length": 120,
        "progress": False,
        **options,
    }
    given.setdefault("templates", ["one-word", "answer"])
    return layerscope.improve(model, documents, **given)


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


def prefer(monkeypatch: pytest.MonkeyPatch, query: str, centering: str, layer: int = 2) -> None:
    """Whatever is measured, one candidate is far ahead."""
    judge = RankingJudge.judge

    def ahead(self, candidates, *, seed=0):
        scores = judge(self, candidates, seed=seed)
        lead = np.zeros(len(scores.values))
        for i, item in enumerate(candidates.candidates):
            names = (item.query.template, item.readout.centering, item.readout.final_norm)
            if (*names, item.layer, item.transform) == (query, centering, "applied", layer, "none"):
                lead[i] = 3
        return Scores(scores.values + lead, scores.draws + lead[:, None], scores.source)

    monkeypatch.setattr(RankingJudge, "judge", ahead)


def test_queries_find_their_documents_more_often_by_pairs(llama, here, tmp_path: Path) -> None:
    better = searched(llama, out=tmp_path / "better")
    evidence = better.manifest["evidence"]
    assert evidence["score_name"] == "nDCG@10"
    assert evidence["judge"] == "60 pairs"
    assert evidence["after"] > evidence["before"]
    assert evidence["interval"][0] > 0
    assert evidence["queries"] == 30
    queries, documents, _ = some_search()
    found = [better.search(query, documents, top=1)["text"][0] for query in queries]
    assert sum(one == other for one, other in zip(found, documents, strict=True)) > 30
    assert "30 queries that did not choose" in str(better)
    assert "nDCG@10" in better.report(tmp_path / "page.html").read_text()
    again = layerscope.load_run(tmp_path / "better")
    assert np.allclose(again.encode_query(queries[:3]), better.encode_query(queries[:3]), atol=1e-4)
    assert np.allclose(again.encode(documents[:3]), better.encode(documents[:3]), atol=1e-4)
    assert not np.allclose(
        better.encode_query(documents[:3]), better.encode(documents[:3]), atol=1e-3
    )  # each by its own mean


def test_both_sides_are_named_and_the_chosen_row_is_marked(
    llama, here, monkeypatch, tmp_path: Path
) -> None:
    prefer(monkeypatch, "answer", "corpus")
    better = searched(llama, out=tmp_path / "better")
    name = "answer+one-word/last/applied/keep/corpus"
    marked = better.table[better.table["chosen"]].iloc[0]
    rows = candidate_rows(better)
    assert (marked["readout"], marked["layer"]) == (name, 2)
    chosen = rows[rows["place"] == "chosen"].iloc[0]
    assert chosen["readout"] == "answer+one-word prompt, centered"
    assert chosen["score"] == marked["score"]
    # an export of the documents' side takes this
    assert better.choice.readout == "one-word/last/applied/keep/corpus"
    headline = "Reading layer 2 of 3 (answer prompt, centered) (documents: one-word prompt) raises"
    assert f"{headline} the nDCG@10" in str(better)
    numbers = next(line for line in page_words(better) if "gain" in line)
    assert numbers.startswith("nDCG@10: ")
    assert numbers.endswith("on 30 queries that did not choose")
    some = searched(llama, pairs=some_search()[2][:40])  # of the others nothing is known
    assert "on 20 queries that did not choose" in str(some)


def test_the_gain_of_a_choice_is_corrected_for_having_been_chosen() -> None:
    """A true gain of one standard error on 30 queries."""
    rng = np.random.default_rng(0)
    corrected, plain = [], []
    for seed in range(60):
        gains = rng.normal(1 / np.sqrt(30), 1, 30)
        scores = scores_of_items("a", np.stack([np.zeros(30), gains]), seed, sides=1)
        check = decide_on_others(scores, False, seed)
        if check.chosen == 1:
            corrected.append(check.claim.gain.value)
            plain.append(gains.mean())
    assert len(corrected) > 5
    assert np.mean(corrected) < 0.8 * np.mean(plain)
    # within a budget it is taken whatever it gains, and nothing is corrected
    forced = decide_on_others(scores, True, 0)
    assert forced.chosen == 1
    assert forced.claim.gain.value == pytest.approx(gains.mean())


@pytest.mark.parametrize("centering", ["none", "corpus"])
def test_the_folder_has_prompts_by_sentence_transformers_names(
    llama, here, monkeypatch, tmp_path: Path, centering: str
) -> None:
    from sentence_transformers import SentenceTransformer

    prefer(monkeypatch, "answer", centering)
    better = searched(llama, out=tmp_path / "better")
    settings = json.loads((tmp_path / "better" / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == {
        "query": 'The answer to this question: "',
        "document": 'This sentence: "',
    }
    assert settings["default_prompt_name"] == "document"
    assert (tmp_path / "better" / "2_Router").exists() == (centering == "corpus")
    queries, documents, _ = some_search()
    model = SentenceTransformer(str(tmp_path / "better"))
    assert np.allclose(model.encode_query(queries[:4]), better.encode_query(queries[:4]), atol=1e-4)
    assert np.allclose(
        model.encode_document(documents[:4]), better.encode(documents[:4]), atol=1e-4
    )
    assert np.allclose(model.encode(documents[:4]), better.encode(documents[:4]), atol=1e-4)
    found = layerscope.search(tmp_path / "better", queries[0], documents, top=3, progress=False)
    assert found["text"].tolist() == better.search(queries[0], documents, top=3)["text"].tolist()
    with pytest.raises(AssertionError):  # which needs the query's prompt
        assert np.allclose(model.encode(queries[:4]), better.encode_query(queries[:4]), atol=1e-3)


def test_a_head_serves_both_sides(llama, judge, here, monkeypatch, tmp_path: Path) -> None:
    prefer(monkeypatch, "answer", "corpus")
    ranked = RankingJudge.judge

    def heads_win(self, candidates, *, seed=0):
        scores = ranked(self, candidates, seed=seed)
        lead = np.array([5.0 * (item.transform == "head") for item in candidates.candidates])
        return Scores(scores.values + lead, scores.draws + lead[:, None], scores.source)

    monkeypatch.setattr(RankingJudge, "judge", heads_win)
    monkeypatch.setattr("layerscope.improving.fit.LEAST_TEXTS", 50)
    better = searched(llama, judge=judge, out=tmp_path / "better")
    assert better.choice.readout == "plain/mean/applied/keep/head"
    assert "tiny-bert" in better.manifest["evidence"]["teacher"]
    queries, documents, _ = some_search()
    again = layerscope.load_run(tmp_path / "better")
    assert np.allclose(again.encode_query(queries[:3]), better.encode_query(queries[:3]), atol=1e-4)
    assert np.allclose(again.encode(documents[:3]), better.encode(documents[:3]), atol=1e-4)


def test_what_is_not_shown_to_be_better_stays_as_it_is(llama, here, tmp_path: Path) -> None:
    queries, documents, _ = some_search()
    pairs = list(zip(queries, documents[::-1], strict=True))
    kept = searched(llama, pairs=pairs, out=tmp_path / "kept")
    assert kept.manifest["evidence"]["kept_default"]
    assert kept.choice.layer == 3
    assert "30 queries that did not choose" in kept.choice.reason
    assert (
        json.loads((tmp_path / "kept" / "config_sentence_transformers.json").read_text())["prompts"]
        == {}
    )


def test_without_pairs_an_encoder_judges(llama, judge) -> None:
    both = searched(llama, judge=judge)
    assert both.evidence.judge == "60 pairs and agreement with tiny-bert"
    alone = searched(llama, judge=judge, pairs=None)
    assert alone.evidence.score_name == "agreement with tiny-bert"
    with pytest.raises(LayerscopeError, match=r"judged by a sentence encoder .* or by pairs="):
        searched(llama, pairs=None)


def test_both_sides_have_templates_that_end_alike() -> None:
    grid = [
        Readout(),
        *(Readout(name, "last", "raw") for name in ("plain", "instruct", "one-word", "answer")),
    ]
    pairs = pair_readouts(grid)
    assert pairs[0] == (Readout(), Readout())
    assert {(query.template, document.template) for query, document in pairs} == {
        ("plain", "plain"), ("instruct", "plain"), ("one-word", "one-word"), ("answer", "one-word"),
    }  # fmt: skip


@pytest.mark.parametrize("graded", [False, True])
def test_ndcg_is_mtebs(graded: bool) -> None:
    metrics = pytest.importorskip("mteb._evaluators.retrieval_metrics")
    rng = np.random.default_rng(1)
    similarity = rng.normal(size=(25, 40))
    relevant = (rng.random((25, 40)) < 0.1) * (rng.integers(1, 4, (25, 40)) if graded else 1)
    relevant[:, 0] = 1
    results = {
        f"q{i}": {f"d{j}": float(value) for j, value in enumerate(row)}
        for i, row in enumerate(similarity)
    }
    judged = {
        f"q{i}": {f"d{j}": int(value) for j, value in enumerate(row) if value}
        for i, row in enumerate(relevant)
    }
    theirs = metrics.calculate_retrieval_scores(results, judged, [10]).all_scores
    ours = ranking_scores(similarity, relevant)
    assert np.allclose(ours, [theirs[f"q{i}"]["ndcg_cut_10"] for i in range(25)], atol=1e-6)


def test_pairs_name_texts_or_ids(tmp_path: Path) -> None:
    queries, documents, _ = some_search()
    (tmp_path / "queries.csv").write_text(
        "id,text\n" + "".join(f"q{i},{text}\n" for i, text in enumerate(queries))
    )
    (tmp_path / "documents.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(documents))
    )
    (tmp_path / "pairs.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t{i % 3}\n" for i in range(60))
    )
    files = [tmp_path / name for name in ("queries.csv", "documents.jsonl", "pairs.tsv")]
    asked = read_search(*files)
    assert asked.facts["pairs"]["used"] == 40  # a score of 0 is no pair
    assert sorted(asked.documents) == sorted(documents)
    at = asked.queries.index(queries[5]), asked.documents.index(documents[5])
    assert asked.relevant[at] == 2
    assert asked.relevant.sum() == 60
    few = read_search(*files, sample=24)
    assert len(few.queries) <= 20
    assert few.relevant.any()
    assert all(
        few.documents[j] == documents[queries.index(few.queries[i])]
        for i, j in np.argwhere(few.relevant > 0)
    )
    halves = asked.halves(0)
    assert sorted(np.concatenate(halves)) == list(range(60))
    assert [int(asked.paired[half].sum()) for half in halves] == [20, 20]


def test_ids_of_the_other_side_do_not_count_and_none_names_two_texts(tmp_path: Path) -> None:
    queries, documents, _ = some_search()
    files = [tmp_path / name for name in ("queries.csv", "documents.csv", "pairs.csv")]
    files[0].write_text(
        "query_id,doc_id,text\n"
        + "".join(f"{i},{59 - i},{text}\n" for i, text in enumerate(queries))
    )
    files[1].write_text(
        "query_id,doc_id,text\n"
        + "".join(f"{59 - i},{i},{text}\n" for i, text in enumerate(documents))
    )
    files[2].write_text("query_id,doc_id\n" + "".join(f"{i},{i}\n" for i in range(60)))
    asked = read_search(*files)
    assert asked.relevant.sum() == 60
    assert all(
        documents.index(asked.documents[j]) == queries.index(asked.queries[i])
        for i, j in np.argwhere(asked.relevant > 0)
    )
    files[1].write_text(
        "id,text\n" + "".join(f"{i // 2},{text}\n" for i, text in enumerate(documents))
    )
    files[2].write_text("query_id,doc_id\n" + "".join(f"{i},{i}\n" for i in range(30)))
    with pytest.raises(DataError, match="'0' names two different document texts in documents"):
        read_search(*files)


def test_queries_whose_documents_do_not_fit_are_not_counted() -> None:
    queries, documents, _ = some_search()
    pairs = [(query, documents[(i + j) % 60]) for i, query in enumerate(queries) for j in range(30)]
    assert read_search(queries, documents, pairs, sample=120).paired.all()
    with pytest.raises(
        DataError, match=r"at least 10 are needed whose documents fit into sample=40 \(\d do\)"
    ):
        read_search(queries, documents, pairs, sample=40)


QUERIES, DOCUMENTS, PAIRS = some_search()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queries": None}, "give queries= too"),
        ({"train": True}, "train= is not for a search"),
        ({"labels": "labels.csv"}, "labels= is not for a search"),
        ({"queries": DOCUMENTS, "pairs": None}, "the same texts"),
        ({"queries": QUERIES[:3], "pairs": None}, "has 3 of the 20 different queries"),
        ({"pairs": [*PAIRS, ("who", DOCUMENTS[0])]}, "name 1 query texts .* such as 'who'"),
        ({"pairs": [(QUERIES[0], "what")]}, "name 1 document texts or ids"),
        ({"pairs": PAIRS[:9]}, "of 9 different queries; at least 10"),
        ({"pairs": [(QUERIES[0], DOCUMENTS[0], 0)]}, "no pair"),
        ({"pairs": [("one",)]}, "is no query, document"),
    ],
)
def test_what_cannot_be_searched_is_refused(llama, options, words: str) -> None:
    with pytest.raises(LayerscopeError, match=words):
        searched(llama, **options)


def test_a_file_of_pairs_has_its_columns(llama, tmp_path: Path) -> None:
    wrong = tmp_path / "pairs.csv"
    wrong.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="needs the columns query and document"):
        searched(llama, pairs=wrong)
