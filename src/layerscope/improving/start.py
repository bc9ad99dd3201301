"""The public function `improve`: check the request, draw the sample, start the flow that fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from layerscope.blocks import (
    Encoder,
    FasterEncoder,
    Request,
    Texts,
    TrainRequest,
    make_faster,
    reads_last_state,
)
from layerscope.cache import cache_dir
from layerscope.choose.labels import read_labels
from layerscope.command import Command
from layerscope.core.heads import LEAST_TEXTS
from layerscope.engines import Engine
from layerscope.errors import (
    DataError,
    InvalidValueError,
    LayerscopeError,
    NonFiniteStatesError,
)
from layerscope.exporting.card import license_of
from layerscope.exporting.servers import SERVERS, check_servers
from layerscope.improving.candidates import Reader, Run, make_grid, template_names
from layerscope.improving.fit import training_folder, working_folder
from layerscope.improving.flow import improve_texts
from layerscope.improving.judging import JudgeOption, check_judge
from layerscope.improving.request import (
    ImproveRequest,
    Pairs,
    check_request,
    check_search,
    draw_sample,
    is_done,
    read_search,
)
from layerscope.improving.result import Improved
from layerscope.models import LoadedModel
from layerscope.models.load import source_at_commit
from layerscope.progress import OnRows, Progress, progress_bar
from layerscope.store.folder import config_key
from layerscope.vectors import VectorStore


def improve(
    model: str | Path | LoadedModel | torch.nn.Module,
    data: str | Path | Iterable[str],
    *,
    out: str | Path | None = None,
    column: str | None = None,
    encoding: str | None = None,
    queries: Any = None,
    pairs: Pairs | None = None,
    labels: str | Path | None = None,
    judge: JudgeOption | None = "minilm-l6",
    budget: float | None = None,
    keep: float | None = None,
    servers: Sequence[str] = (),
    templates: Sequence[str] | None = None,
    sample: int = 1000,
    max_length: int = 256,
    seed: int = 0,
    center_on: str = "auto",
    time: float | None = None,
    train: bool | Mapping[str, Any] | None = False,
    texts: bool = True,
    tokenizer: Any = None,
    store: str | Path | None = None,
    store_size: int | None = 10 * 2**30,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    on_rows: OnRows | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Improved | FasterEncoder:
    """Make a sentence encoder faster, or find the layer and readout of a language model that serve
    these texts best; export the result as a sentence-transformers folder.

    **A sentence encoder** (given by name or folder) keeps its readout and loses blocks: those that
    its own vectors of these texts need least are left out, and the others are refitted by least
    squares to do their work as well. Without a limit the cheapest is taken that agrees well enough.
    With `train` the kept blocks are trained too, to give the whole encoder's vectors; with
    `queries` it has to rank these texts for each query as the whole encoder does. `budget`, `keep`
    and `labels` (which only measure the result) are for it; other options of the choice are not.

    **A language model:** every layer under every readout is judged on a sample of the texts. So are
    heads: linear maps of a layer's plain reading, fitted so that similarities agree with those of
    the best prompt, and judged on texts that they were not fitted on. Of the candidates that score
    practically the same, the cheapest is chosen. The default (last layer, mean of the tokens) stays
    if the evidence is weak. The result can encode right away; with `out` it is also written there
    and verified.

    - `data`: strings, a data frame, a file (with its `column` and `encoding`), a folder of
      documents, a catalogued corpus or a hub dataset. About `sample` texts, drawn at random, are
      judged on.
    - `judge`: the sentence encoder that candidates should agree with; `none` uses the model's own
      consistency. Or an object with a method `judge`.
    - `queries`: questions, as a file or strings: choose how they find these texts, each side read
      in its own way. `pairs`: a file of queries and documents (texts or ids) that belong together,
      which then judge as well.
    - `labels`: a file with a few labeled examples, which then judge as well.
    - `templates`: the templates of the readouts to try.
    - `budget`: the largest share of the baseline's computation per text (last layer, no prompt)
      that the choice may cost.
    - `keep`: for a sentence encoder, how well the result has to agree with the whole encoder: the
      correlation of the similarities of all pairs of texts that fitted nothing.
    - `servers`: programs that have to open the folder, such as `["tei", "vllm"]`
      (`layerscope verify --for`): other readouts are no candidates, and a graph or GGUF file that
      they need is written.
    - `center_on`: the texts that a mean or a head is fitted on: `sample` (those judged on), `all`
      (of more than 50,000, a part drawn at random), or `auto` (half as many again as those judged
      on).
    - `train`: train the blocks that are kept too (of a language model with a head), in at most
      `time` minutes (30 if not given). Without a budget the model keeps half of its blocks. Or
      settings of sentence-transformers' trainer: `train={"per_device_train_batch_size": 64}`.
    - `on_rows`: a function such as `wandb.log`, called with the numbers of a training's steps.
    - `texts`: whether the result may hold texts, in the map and in five examples.

    Options of the model (dtype, device, revision, adapters, …) and of the engine (address, workers,
    gpus_per_worker, batch_size) are plain keywords; `engine` is a name or an `Engine`.

        better = layerscope.improve("smollm2-135m", texts, out="better")
        better.encode(["how do I reset my card?"])
    """
    command = Command(
        "improve",
        options,
        engine=engine,
        progress=progress,
        show=partial(progress_bar, always=True),
        function=improve,
    )
    is_search = queries is not None
    if pairs is not None and not is_search:
        raise InvalidValueError(
            "pairs= say which documents answer which queries: give queries= too."
        )
    request = ImproveRequest(
        templates=tuple(template_names(templates, labels=labels is not None, search=is_search)),
        judge=check_judge(judge),
        labels=labels,
        budget=budget,
        keep=keep,
        servers=tuple(servers),
        sample=sample,
        max_length=max_length,
        seed=seed,
        center_on=center_on,
        time=time,
        train=train if isinstance(train, Mapping) else {} if train else None,
        texts=texts,
        out=None if out is None else Path(out),
        overwrite=overwrite,
    )
    check_request(request)
    make_grid(request.templates, has_cls=False, has_norm=True)  # which checks the templates
    if is_search and not isinstance(model, str | Path):
        check_search(request)  # a name may be that of an encoder, which is known when it is loaded
    labeled = None if labels is None else read_labels(labels)
    with working_folder(request.out) as work, command:
        reading: dict[str, Any] = {"column": column, "encoding": encoding}
        search = None
        if is_search:
            search = read_search(queries, data, pairs, sample=sample, seed=seed, **reading)
            drawn = search.sample
        else:
            drawn = draw_sample(
                data, size=sample, further=request.further_texts, seed=seed, **reading
            )
        if request.train is not None and len(drawn.texts) < LEAST_TEXTS:
            raise DataError(
                f"{len(drawn.texts)} texts are too few to train on: it takes {LEAST_TEXTS}. Give "
                "more (sample= limits them), or leave out train=."
            )
        loaded = command.load(model, tokenizer)
        check_model(loaded)
        reader = Reader(
            loaded,
            VectorStore(Path(store) if store else cache_dir() / "embeddings", store_size),
            max_length,
            batch_size=command.where.batch_size,
            engine=command.engine,
            recipe=command.recipe,
        )
        run = Run(
            request=request,
            source=model,
            sample=drawn,
            search=search,
            labels=labeled,
            reader=reader,
            bar=command.bar,
            started=perf_counter(),
            work=work,
            on_rows=on_rows,
        )
        folder = encoder_folder(run)
        if folder is not None:
            if pairs is not None:
                raise InvalidValueError("pairs= is not for sentence encoders: leave it out.")
            return improve_encoder(run, folder)
        if is_search:
            check_search(request)
        if keep is not None:
            raise LayerscopeError(
                f"keep= is for sentence encoders given by name, and {loaded.name} is none. Give "
                "budget= for a lighter model."
            )
        if is_done(request, run.config):
            assert request.out is not None
            return Improved.load(request.out)
        try:
            return improve_texts(run)
        except NonFiniteStatesError as error:
            raise NonFiniteStatesError(f"{loaded.name}: {error}") from error


def check_model(model: LoadedModel) -> None:
    """Refuse a model that reads no texts."""
    if model.kind != "texts":
        raise LayerscopeError(
            f"{model.name} reads {model.kind}; improve is for models that read texts."
        )
    if model.tokenizer is None:
        raise LayerscopeError(
            f"{model.name} has no tokenizer. Give one: improve(module, texts, tokenizer=…)."
        )


# Sentence encoders


def encoder_folder(run: Run) -> Path | None:
    """Return the folder of a sentence encoder whose blocks can be left out; None for other models.

    An encoder that is none of these is refused: it was trained for its own reading.
    """
    model = run.model
    identity = model.identity
    if not identity.get("sentence_encoder"):
        return None
    problem = ""
    if identity.get("exported"):
        problem = "it is an export of layerscope: improve the model that it was cut from"
    elif identity.get("untrained"):
        problem = "its weights are as before any training: no reading of it means anything"
    elif not isinstance(run.source, str | Path) or model.n_blocks < 2:
        problem = "give its name or folder, and one with two blocks or more"
    else:
        folder = source_at_commit(run.source, model).path
        if reads_last_state(folder):
            return folder
        problem = "it does not read the state after its last block"
    raise LayerscopeError(
        f"{model.name} is a sentence encoder that improve cannot make faster: {problem}."
    )


def improve_encoder(run: Run, folder: Path) -> FasterEncoder:
    """Make an encoder faster on a sample; a run that is finished in `out` is read back.

    With queries the texts of the sample are the documents that they should find.
    """
    request = run.request
    sample = run.sample
    _check_opens(folder, request.servers)
    queries = [] if run.search is None else run.search.queries
    texts = Texts.divide(sample.name, sample.facts, [*sample.texts, *sample.further], queries)
    config = run.config
    if request.out is not None and is_done(request, config):
        return FasterEncoder.load(request.out)
    encoder = Encoder.open(folder, run.model.device, run.model.dtype, request.max_length)
    with training_folder(run.work) as checkpoints:
        training = None
        if request.train is not None:
            place = checkpoints / config_key(config)[:16]
            place.mkdir(exist_ok=True)
            training = TrainRequest(place, request.time, request.train, run.on_rows)
        result = make_faster(
            encoder,
            texts,
            Request(request.budget, request.keep, request.seed, training),
            run.model.identity,
            run.bar,
            labels=run.labels,
            license_name=license_of(run.model, folder),
            config=config,
        )
    if request.out is not None:
        run.bar.begin(f"writing {request.out}|folder", 1)
        result.save(request.out, request.overwrite)
        run.bar.advance(1)
    return result


def _check_opens(folder: Path, servers: tuple[str, ...]) -> None:
    """Raise if servers do not open an encoder's folder: nor will they with fewer blocks."""
    problems = check_servers(folder, servers) if servers else {}
    words = [
        f"{SERVERS[name].title}: {'; '.join(reasons)}"
        for name, reasons in problems.items()
        if reasons
    ]
    if words:
        raise LayerscopeError(
            f"the encoder does not open there as it is, nor with fewer blocks. {' '.join(words)}."
        )
