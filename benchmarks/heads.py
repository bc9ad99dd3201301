"""What a head is worth on texts that nothing was fitted on: fifteen tasks, several numbers of
texts, layers and teachers.

The items of every task are split once: some are scored with their labels, the texts of the others
are what heads are fitted on, without labels; no text is in both. `read` keeps what the model and
the encoder make of all texts; `score` fits and scores.

    python benchmarks/heads.py read MODEL --data ../shared/data/mteb --out readings       # MODEL and minilm-l6; wants a GPU
    python benchmarks/heads.py score NAME --data ../shared/data/mteb --out readings       # writes readings/NAME.csv
    python benchmarks/heads.py train MODEL --data ../shared/data/mteb --out readings      # readings/NAME.student.*.csv; a GPU
    python benchmarks/heads.py score NAME --only curve general     # writes readings/NAME.general.csv
    python benchmarks/heads.py table readings/*.csv                # or `compact`, of what --only measured

`general` (before `read`) writes readings/general.json: texts of the catalogue, which `read` then
reads too. With --only, `score` measures how a head grows with texts of other domains (`curve`), and
what general texts bring to few of one's own (`general`).

`train` trains one student, half of the blocks, on the texts to fit on of all tasks, as `improve
--train` does.

With --small a part of it runs without a GPU: six tasks, fewer items, 1,000 texts to fit on.

Measures are the quick ones of `improve_tasks.py`. Layers are listed, not chosen; the layer of the
summary is named in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))
import improve_tasks
from improve_tasks import Task

from layerscope.core.heads import WIDTH, General, Ridge, make_target, unit
from layerscope.improving.heads import choose_weight

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ENCODER = "minilm-l6"
GENERAL = "general.json"
POOL = 10_000
COUNTS = (100, 250, 500, 1000, 2500, POOL)
SMALL = (
    "Banking77Classification", "EmotionClassification", "RedditClustering", "STS14", "STSBenchmark", "TwitterSemEval2015",
)  # fmt: skip
SMALL_ITEMS, SMALL_POOL = {"PAIRS": 400, "TEXTS": 800, "TEST": 500}, 1000
CURVE = (100, 250, 1000, 2500, 10_000, 25_000, 50_000)
FEW = (30, 100, 250, 1000)
SEEDS = (0, 1, 2)
MORE_PROMPTS = ("one-word", "topic", "intent")
KNOWN = {
    30: {
        "prompt": ("step-by-step", 29, "raw"),
        "layers": (1, 2, 5, 8, 10, 15, 20, 30),
        "layer": 10,
        "half": 15,
    },
    18: {
        "prompt": ("one-word", 16, "applied"),
        "layers": (1, 2, 4, 6, 8, 9, 10, 12, 18),
        "layer": 10,
        "half": 9,
    },
}
"""By the number of blocks: the prompt that teaches and its layer, the layers that are compared, and
the one of the summary."""


@cache
def split(place: Path, small: bool = False) -> tuple[Task, list[str]]:
    """A task of some of the items, and the texts of the others in random order."""
    rng = np.random.default_rng([0, sum(map(ord, place.name))])
    for name, count in SMALL_ITEMS.items() if small else ():
        setattr(improve_tasks, name, count)
    test, train = _rows(place, "test"), _rows(place, "train")
    if "sentences" in test[0]:
        row = test[0]
        order = rng.permutation(len(row["sentences"]))
        cut = min(improve_tasks.TEXTS, len(order) // 2)
        scored = {key: [row[key][i] for i in order[:cut]] for key in ("sentences", "labels")}
        task = improve_tasks._clustering(place.name, [scored], rng)
        pool = [row["sentences"][i] for i in order[cut:]] + _texts(test[1:])
    elif "text" in test[0]:
        order = rng.permutation(len(test))
        cut = min(improve_tasks.TEST, len(order) // 2)
        task = improve_tasks._classification(place.name, [test[i] for i in order[:cut]], train, rng)
        pool = _texts([test[i] for i in order[cut:]])
    else:
        if isinstance(test[0].get("sentence1"), list):  # one row that holds all pairs
            keys = ("sentence1", "sentence2", "labels")
            test = [
                dict(zip(keys, values, strict=True))
                for values in zip(*(test[0][key] for key in keys), strict=True)
            ]
        order = rng.permutation(len(test))
        cut = min(improve_tasks.PAIRS, len(order) // 2)
        make = improve_tasks._reranking if "query" in test[0] else improve_tasks._pairs
        task = make(place.name, [test[i] for i in order[:cut]], rng)
        pool = _texts([test[i] for i in order[cut:]])
    own = {normal(text) for text in task.texts}
    left = [
        text
        for text in dict.fromkeys(pool + _texts(train))
        if normal(text) not in own and text.strip()
    ]
    return task, [left[i] for i in rng.permutation(len(left))[: SMALL_POOL if small else POOL]]


def normal(text: str) -> str:
    """A text without case, spaces and punctuation: data sets that are drawn from each other differ
    in them."""
    return "".join(character for character in text.casefold() if character.isalnum()) or text


def _rows(place: Path, kind: str) -> list[dict]:
    return (
        improve_tasks._rows(place, kind)
        if any(file.name.startswith(kind) for file in place.glob("*.jsonl.gz"))
        else []
    )


def _texts(rows: Sequence[dict]) -> list[str]:
    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for one in value:
                yield from strings(one)

    keys = ("sentence1", "sentence2", "text", "query", "positive", "negative", "sentences")
    return [text for row in rows for key in keys if key in row for text in strings(row[key])]


def places(data: Path, small: bool = False) -> list[Path]:
    """The folders of the tasks."""
    return sorted(
        place for place in data.iterdir() if place.is_dir() and (not small or place.name in SMALL)
    )


def write_general(out: Path) -> None:
    """General texts of the catalogue, in random order: of the parts of its tasks that nothing is
    scored on."""
    from layerscope.improving.general import general_texts

    out.mkdir(parents=True, exist_ok=True)
    (out / GENERAL).write_text(json.dumps(general_texts(())))


def read(model: str, data: Path, out: Path, small: bool = False) -> None:
    """Vectors of all texts: the mean at some layers, the prompt's last token, and the encoder's, in
    half precision."""
    from layerscope.capture import expand_sites
    from layerscope.core.templates import get_template
    from layerscope.evaluation.encode import TextEncoder
    from layerscope.models import load

    torch.set_float32_matmul_precision("high")
    splits = [split(place, small) for place in places(data, small)]
    texts = list(dict.fromkeys(text for task, pool in splits for text in task.texts + pool))
    if (out / GENERAL).is_file():
        texts = list(dict.fromkeys(texts + json.loads((out / GENERAL).read_text())))
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "texts.json").write_text(json.dumps(texts))
    loaded = load(model)
    known = KNOWN.get(loaded.n_blocks, {"layers": (loaded.n_blocks,)})
    wanted = [
        (
            "plain",
            list(known["layers"]),
            "mean/applied",
            256 if "prompt" not in known else 96,
            "plain",
        )
    ]
    if "prompt" in known:
        template, layer, norm = known["prompt"]
        others = [] if small else [name for name in MORE_PROMPTS if name != template][:2]
        wanted += [
            (name, [layer], f"last/{norm}", 126, f"prompt{i or ''}")
            for i, name in enumerate([template, *others])
        ]
    for template, layers, kind, length, file in wanted:
        start = time.perf_counter()
        sites = [site for site in expand_sites(None, loaded.anatomy) if site.layer in layers]
        encoder = TextEncoder(
            loaded, get_template(template), sites, [kind], length, 512 if DEVICE == "cuda" else None
        )
        rows = np.empty((len(layers), len(texts), loaded.width), dtype=np.float16)
        for first in range(0, len(texts), 8192):
            some = order[first : first + 8192]
            rows[:, some] = encoder.run(encoder.read([texts[i] for i in some]), lambda n: None)[0][
                kind
            ]
        np.save(out / f"{loaded.name}.{file}.npy", rows)
        print(
            f"{loaded.name} {template}: {len(texts)} texts, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    (out / f"{loaded.name}.json").write_text(json.dumps({"blocks": loaded.n_blocks}))


class Readings:
    """What `read` kept of a model: its plain vectors, those under prompts, and the encoder's."""

    def __init__(self, name: str, out: Path) -> None:
        self.name, self.known = (
            name,
            KNOWN[json.loads((out / f"{name}.json").read_text())["blocks"]],
        )
        self.texts = json.loads((out / "texts.json").read_text())
        self.at = {text: i for i, text in enumerate(self.texts)}
        self.general = json.loads((out / GENERAL).read_text()) if (out / GENERAL).is_file() else []
        self.layers = list(self.known["layers"])
        self.plain = np.load(out / f"{name}.plain.npy", mmap_mode="r")
        files = [f"{name}.prompt", f"{name}.prompt1", f"{name}.prompt2", f"{ENCODER}.plain"]
        self.others = {
            file: np.load(out / f"{file}.npy", mmap_mode="r")[0]
            for file in files
            if (out / f"{file}.npy").exists()
        }

    def at_layer(self, layer: int, which: Sequence[int]) -> np.ndarray:
        """Plain vectors."""
        return np.asarray(self.plain[self.layers.index(layer)][np.asarray(which)], dtype=np.float32)

    def teachers(self, teacher: str, which: Sequence[int]) -> list[np.ndarray]:
        """The vectors of those who teach: `prompt`, `prompts` (three of them), each `and encoder`
        or not; or `encoder`."""
        names = {"prompt": ["prompt"], "prompts": ["prompt", "prompt1", "prompt2"], "encoder": []}[
            teacher.split()[0]
        ]
        files = [f"{self.name}.{name}" for name in names] + (
            [f"{ENCODER}.plain"] if "encoder" in teacher else []
        )
        found = [
            np.asarray(self.others[file][np.asarray(which)], dtype=np.float32) for file in files
        ]
        if (
            len(names) == 3 and "encoder" in teacher
        ):  # the prompts together count as much as the encoder
            found = [make_target(*found[:3], width=1 << 20), found[3]]
        return found


def score_task(
    name: str, place: Path, data: Path, out: Path, small: bool, only: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """All rows of one task, or `only` some."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    readings, (task, pool) = Readings(name, out), split(place, small)
    layers, main = readings.layers, readings.known["layer"]
    scored, fit = ([readings.at[text] for text in some] for some in (task.texts, pool))
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], np.ndarray]] = []

    def add(what: str, vectors: np.ndarray, **facts: Any) -> None:
        waiting.append(
            (
                {"model": name, "task": task.name, "what": what, **facts},
                unit(vectors).astype(np.float32),
            )
        )

    def score_all() -> None:
        for width in sorted({vectors.shape[1] for _, vectors in waiting}):
            some = [(facts, vectors) for facts, vectors in waiting if vectors.shape[1] == width]
            for first in range(0, len(some), 16):
                part = some[first : first + 16]
                values = task.score(
                    torch.tensor(np.stack([vectors for _, vectors in part]), device=DEVICE)
                ).tolist()
                rows.extend(
                    {**facts, "score": value}
                    for (facts, _), value in zip(part, values, strict=True)
                )

    (prompt,) = readings.teachers("prompt", scored)
    add("today", readings.at_layer(layers[-1], scored))
    add("prompt", prompt - readings.teachers("prompt", fit)[0].mean(0))
    add("encoder", readings.teachers("encoder", scored)[0])

    def head(
        what: str,
        at: Sequence[int],
        which: Sequence[int],
        teacher: str,
        more: Sequence[int] = (),
        **facts: Any,
    ) -> None:
        """Through a head at some layers; `more` are texts of other domains, which count a tenth
        each."""
        both = [*which, *more]
        target = make_target(*readings.teachers(teacher, both))
        rows, tested = (
            np.concatenate([_scaled(readings, layer, who, both) for layer in at], axis=1)
            for who in (both, scored)
        )
        if more:
            own, weight = len(which), np.sqrt(0.1)
            mean = rows[:own].mean(0)
            rows = np.concatenate([rows[:own] - mean, weight * (rows[own:] - rows[own:].mean(0))])
            target = np.concatenate(
                [
                    target[:own] - target[:own].mean(0),
                    weight * (target[own:] - target[own:].mean(0)),
                ]
            )
            tested = tested - mean
        add(
            what,
            Ridge(rows, target).head()(tested),
            layer=at[-1],
            texts=len(which),
            teacher=teacher,
            **facts,
        )

    group = _group(place.name)
    other = [place for place in places(data, small) if _group(place.name) != group]
    own = set(scored) | set(fit)
    others = (
        readings.at[text]
        for one in other
        for text in split(one, small)[1][: None if only else 1500]
    )
    away = [i for i in dict.fromkeys(others) if i not in own]

    def far(what: str, which: Sequence[int], teacher: str, count: int) -> None:
        matrix = fit_many(readings.at_layer(main, which), readings.teachers(teacher, which))
        given = readings.at_layer(main, scored) - readings.at_layer(main, which).mean(0)
        add(
            what, given @ matrix, layer=main, texts=len(which), teacher=teacher, seed=0, count=count
        )

    def curve(teacher: str) -> None:
        """With nothing of the domain, and with all of it and others up to a number of texts."""
        for count in CURVE:
            if count <= len(away) or count == CURVE[-1]:
                far("head, domains never seen", away[:count], teacher, count)
            if count > POOL and (len(fit) + len(away) >= count or count == CURVE[-1]):
                far(
                    "head, own and other domains alike",
                    [*fit, *away[: count - len(fit)]],
                    teacher,
                    count,
                )

    def general(teacher: str) -> None:
        """A few texts of one's own, and general ones that count as much as helps on those of one's
        own that are left out."""
        tested, known = (
            readings.at_layer(main, scored),
            {normal(text) for text in [*task.texts, *pool]},
        )
        catalogue = [readings.at[text] for text in readings.general if normal(text) not in known]
        sources = {"2,000 of other domains": away[:2000], "10,000 of other domains": away[:POOL]}
        sources |= (
            {"2,000 of the catalogue": catalogue[:2000], "all of the catalogue": catalogue}
            if catalogue
            else {}
        )
        draws = {
            seed: [fit[i] for i in np.random.default_rng([seed, 1]).permutation(len(fit))]
            for seed in SEEDS
        }
        for seed, count in product(SEEDS, FEW):
            head("head", [main], draws[seed][:count], teacher, seed=seed, count=count)
        for kind, more in sources.items():
            vectors, taught = readings.at_layer(main, more), readings.teachers(teacher, more)
            alone = fit_many(vectors, taught)
            for seed, count in product(
                SEEDS if kind == "2,000 of the catalogue" else SEEDS[:1], FEW
            ):
                drawn = draws[seed][:count]
                rows = readings.at_layer(main, drawn)
                facts = {
                    "layer": main,
                    "texts": len(drawn),
                    "teacher": teacher,
                    "seed": seed,
                    "count": count,
                }
                made, found = choose_weight(
                    rows, readings.teachers(teacher, drawn), vectors, taught
                )
                told = {"weight": found.weight, "before": found.before, "after": found.after}
                add(f"head, {kind} too, weighed", made(tested), **facts, **told)
                add(f"head, {kind} alone", (tested - rows.mean(0)) @ alone, **facts)

    if only:
        order = np.random.default_rng(0).permutation(len(away))
        tested = {normal(text) for text in task.texts}
        away = [away[i] for i in order if normal(readings.texts[away[i]]) not in tested]
        for teacher in ("prompt", "prompt and encoder"):
            for part in only:
                {"curve": curve, "general": general}[part](teacher)
        score_all()
        print(name, task.name, len(rows), flush=True)
        return rows
    for teacher in ("prompt", "prompt and encoder"):
        for seed in SEEDS:
            drawn = [fit[i] for i in np.random.default_rng([seed, 1]).permutation(len(fit))]
            for count in COUNTS:
                if (seed and count not in (1000, POOL)) or (
                    count > 1000 and len(drawn) <= 1000 and (small or count < POOL)
                ):
                    continue
                head("head", [main], drawn[:count], teacher, seed=seed, count=count)
                if count == 1000 and seed == 0:
                    for layer in layers:
                        if layer != main:
                            head("head", [layer], drawn[:count], teacher, seed=seed, count=count)
                if count in (1000, POOL) and seed == 0:
                    two = [layers[0], main]
                    head("head, two layers", two, drawn[:count], teacher, seed=seed, count=count)
                    head(
                        "head, other domains too",
                        [main],
                        drawn[:count],
                        teacher,
                        away,
                        seed=seed,
                        count=count,
                    )
                    head(
                        "head, two layers, other domains too",
                        two,
                        drawn[:count],
                        teacher,
                        away,
                        seed=seed,
                        count=count,
                    )
                    if not small:
                        many = teacher.replace("prompt", "prompts")
                        head("head", [main], drawn[:count], many, seed=seed, count=count)
        head("head, on the texts it was fitted on", [main], scored, teacher, seed=0, count=0)
        head("head, domains never seen", [main], away, teacher, seed=0, count=POOL)
    score_all()
    print(name, task.name, len(rows), flush=True)
    return rows


def fit_many(vectors: np.ndarray, teachers: Sequence[np.ndarray]) -> np.ndarray:
    """The matrix of the head of many texts: the same as `Ridge` has, with the products on the GPU
    where there is one."""
    rows, *said = (
        torch.tensor(given, dtype=torch.float64, device=DEVICE) for given in (vectors, *teachers)
    )
    rows, said = (
        rows - rows.mean(0),
        [torch.nn.functional.normalize(given - given.mean(0), dim=-1) for given in said],
    )
    target = torch.cat(said, 1) / len(said) ** 0.5
    target -= target.mean(0)
    _, directions = np.linalg.eigh((target.T @ target).cpu().numpy())
    known = General(
        (rows.T @ rows).cpu().numpy(),
        (rows.T @ target).cpu().numpy() @ directions[:, ::-1][:, :WIDTH],
    )
    matrix = (
        Ridge(
            np.zeros((1, rows.shape[1])),
            np.zeros((1, known.cross.shape[1])),
            general=known,
            weight=1,
        )
        .head()
        .matrix
    )
    assert matrix is not None
    return matrix


def _scaled(
    readings: Readings, layer: int, which: Sequence[int], fitted: Sequence[int]
) -> np.ndarray:
    """Vectors of a layer, of the same mean length whatever the layer."""
    lengths = np.linalg.norm(readings.at_layer(layer, fitted[:1000]), axis=1)
    return readings.at_layer(layer, which) / lengths.mean()


def train(
    model: str, data: Path, out: Path, teacher: str, seed: int, options: dict[str, Any]
) -> None:
    """A student of half of the blocks, on the texts to fit on of all tasks and none that is scored,
    as `improve` trains one."""
    from layerscope.capture import expand_sites
    from layerscope.core.templates import get_template
    from layerscope.evaluation.encode import TextEncoder
    from layerscope.improving.student import train_student
    from layerscope.models import load
    from layerscope.progress import Silent

    splits = [split(place) for place in places(data)]
    tested = {normal(text) for task, _ in splits for text in task.texts}
    texts = list(
        dict.fromkeys(text for _, pool in splits for text in pool if normal(text) not in tested)
    )
    loaded = load(model)
    readings = Readings(loaded.name, out)
    layer, which = readings.known["half"], [readings.at[text] for text in texts]
    target = make_target(*readings.teachers(teacher, which))
    start = time.perf_counter()
    minutes = options.pop("minutes", None)
    done = train_student(
        loaded, layer, texts, readings.at_layer(layer, which), target, max_length=96, seed=seed, minutes=minutes,
        settings=options, bar=Silent(),
    )  # fmt: skip
    print(
        f"{loaded.name}, seed {seed}, {time.perf_counter() - start:.0f} s: {done.words}\n{done.facts['curve']}",
        flush=True,
    )
    sites = [site for site in expand_sites(None, done.model.anatomy) if site.layer == layer]
    encoder = TextEncoder(
        done.model,
        get_template("plain"),
        sites,
        ["mean/applied"],
        96,
        512 if DEVICE == "cuda" else None,
    )
    rows = []
    for task, _ in splits:
        vectors = encoder.run(encoder.read(task.texts), lambda n: None)[0]["mean/applied"][0]
        given = torch.tensor(unit(done.head(vectors)), dtype=torch.float32, device=DEVICE)[None]
        facts = {
            "model": loaded.name,
            "task": task.name,
            "what": "student",
            "score": float(task.score(given)[0]),
        }
        rows.append(
            {
                **facts,
                "layer": layer,
                "texts": done.facts["texts"],
                "teacher": teacher,
                "seed": seed,
                "count": done.facts["steps"],
            }
        )
    file = f"{loaded.name}.student.{teacher.replace(' ', '-')}.{seed}.csv"
    pd.DataFrame(rows).to_csv(out / file, index=False, float_format="%.4f")


def _group(name: str) -> str:
    return "STS" if name.startswith("STS") else name


def table(files: Sequence[Path]) -> None:
    """Means over the tasks, with the least gain over today."""
    rows = pd.concat([pd.read_csv(file) for file in files])
    for name, of in rows.groupby("model"):
        print(f"\n{name}: mean of {of['task'].nunique()} tasks")
        today = of[of["what"] == "today"].set_index("task")["score"]
        keys = ["what", "teacher", "count", "layer", "seed"]
        for key, some in of.groupby(keys, dropna=False, sort=False):
            each = some.set_index("task")["score"]
            gain = (each - today[each.index]).min()
            told = ", ".join(
                f"{k} {v:g}" if isinstance(v, float) else f"{v}"
                for k, v in zip(keys, key, strict=True)
                if v == v
            )
            print(
                f"{told:60} {each.mean():6.2f}   least gain over today {gain:+.1f}   ({len(each)} tasks)"
            )


def compact(files: Sequence[Path]) -> None:
    """The rows of `--only`, as tables by the number of texts: means over tasks and seeds, the least
    gain over today of any."""
    rows = pd.concat([pd.read_csv(file) for file in files])
    today = rows[rows["what"] == "today"].set_index(["model", "task"])["score"]
    rows = rows.join(today.rename("today"), on=["model", "task"]).assign(
        gain=lambda of: of["score"] - of["today"]
    )
    for (name, teacher), of in rows.dropna(subset=["teacher"]).groupby(["model", "teacher"]):
        for counts in (FEW, CURVE):
            found = of[of["what"].str.contains("never seen|alike") == (counts is CURVE)]
            print(
                f"\n| {name}, {teacher} | {' | '.join(f'{count:,}' for count in counts)} |\n|---|{'---|' * len(counts)}"
            )
            for what, some in found.groupby("what", sort=False):
                each = [some[some["count"] == count] for count in counts]
                cells = [
                    f"{one['score'].mean():.1f} ({one['gain'].min():+.1f})" if len(one) else ""
                    for one in each
                ]
                print(f"| {what} | {' | '.join(cells)} |")
    told = rows.dropna(subset=["weight"]).groupby(["model", "what", "teacher", "count"])
    facts = {"weight": ["median", "min", "max"], "before": "mean", "after": "mean"}
    print(f"\n{told[list(facts)].agg(facts).round(3).to_string()}")


def main() -> None:
    """Read, score, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["general", "read", "score", "train", "table", "compact"])
    parser.add_argument("names", nargs="*", help="models, or files of rows")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mteb"))
    parser.add_argument("--out", type=Path, default=Path("readings"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["curve", "general"],
        default=[],
        help="of `score`: these rows alone",
    )
    parser.add_argument(
        "--teacher",
        default="prompt and encoder",
        help="of `train`: prompt, prompts, encoder, or with 'and encoder'",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--options",
        type=json.loads,
        default={},
        help="of `train`: settings of the trainer, as JSON",
    )
    args = parser.parse_args()
    if args.step in ("table", "compact"):
        (table if args.step == "table" else compact)([Path(name) for name in args.names])
    elif args.step == "general":
        write_general(args.out)
    elif args.step == "read":
        for name in args.names:
            read(name, args.data, args.out, args.small)
    elif args.step == "train":
        for name in args.names:
            train(name, args.data, args.out, args.teacher, args.seed, dict(args.options))
    else:
        every = places(args.data, args.small)
        for name in (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
        ):  # the workers share the cores
            os.environ[name] = str(max(1, (os.cpu_count() or 1) // args.workers))
        jobs = [
            (name, place, args.data, args.out, args.small, args.only)
            for name in args.names
            for place in every
        ]
        with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as workers:
            found = pd.DataFrame(
                [row for rows in workers.map(score_task, *zip(*jobs, strict=True)) for row in rows]
            )
        for name, of in found.groupby("model"):
            of.to_csv(
                args.out / f"{name}{'.general' if args.only else ''}.csv",
                index=False,
                float_format="%.4f",
            )


if __name__ == "__main__":
    main()
