"""The public function `improve`: open what it is given, and start the flow that fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from layerscope.blocks.result import FasterEncoder
from layerscope.cache import cache_dir
from layerscope.choose.labels import read_labels
from layerscope.command import Command
from layerscope.engines import Engine
from layerscope.errors import InvalidValueError, LayerscopeError, NonFiniteStatesError
from layerscope.improving.candidates import template_names
from layerscope.improving.encoder import improve_encoder, keep_encoder, shortened_folder
from layerscope.improving.flow import improve_texts
from layerscope.improving.judging import JudgeOption, check_judge
from layerscope.improving.pairs import Pairs, read_search
from layerscope.improving.reader import Reader, draw_sample
from layerscope.improving.request import ImproveRequest, Run, working_folder
from layerscope.improving.result import Improved
from layerscope.improving.search import improve_search
from layerscope.models import LoadedModel
from layerscope.progress import OnRows, Progress, progress_bar
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
    - `budget`: the largest share of today's computation per text (last layer, no prompt) that the
      choice may cost.
    - `keep`: for a sentence encoder, how well the result has to agree with the whole encoder: the
      correlation of the similarities of all pairs of texts that fitted nothing.
    - `servers`: programs that have to open the folder, such as `["tei", "vllm"]`
      (`layerscope verify --for`): other readouts are no candidates, and a graph or GGUF file that
      they need is written.
    - `center_on`: the texts that a mean or a head is fitted on: `sample` (those judged on), `all`
      (of more than 50,000, a part drawn at random), or `auto` (as many as take a quarter of the
      time of the choice). `time`: minutes to read further texts for the fit, instead.
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
        is_search=is_search,
        out=None if out is None else Path(out),
        overwrite=overwrite,
    )
    if not isinstance(model, str | Path):
        request.check_search()  # a name may be that of an encoder, which is known when it is loaded
    labeled = None if labels is None else read_labels(labels)
    with working_folder(request.out) as work, command:
        reading: dict[str, Any] = {"column": column, "encoding": encoding}
        search = None
        if is_search:
            search = read_search(queries, data, pairs, sample=sample, seed=seed, **reading)
            drawn = search.documents_as_sample()
        else:
            drawn = draw_sample(data, size=sample, more=request.further_texts, seed=seed, **reading)
        request.check_sample(drawn)
        loaded = command.load(model, tokenizer)
        request.check_model(loaded)
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
        folder = shortened_folder(run)
        if folder is not None and pairs is None:
            return improve_encoder(run, folder)
        request.check_search()
        if keep is not None:
            raise LayerscopeError(
                f"keep= is for sentence encoders given by name, and {loaded.name} is none. Give "
                "budget= for a lighter model."
            )
        if request.out is not None and request.is_done(run.config):
            return Improved.load(request.out)
        try:
            if loaded.identity.get("sentence_encoder"):
                return keep_encoder(run)
            return improve_texts(run) if search is None else improve_search(run, search)
        except NonFiniteStatesError as error:
            raise NonFiniteStatesError(f"{loaded.name}: {error}") from error
