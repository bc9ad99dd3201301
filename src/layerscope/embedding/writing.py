"""`embed`: the vectors of any number of texts in one parquet file, with the columns that the texts
came with.

Texts are read in blocks, each of which is written to a part of its own before the next is read:
memory does not grow with their number, and a run that was killed goes on where it stopped. At the
end the parts become one file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.command import Command
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.data.records import Row, changed
from layerscope.embedding.encoders import Encoder, Layers, decisive, in_blocks, open_encoder
from layerscope.engines import Engine
from layerscope.errors import (
    DataError,
    InvalidValueError,
    RunFolderError,
    one_line,
)
from layerscope.progress import Progress
from layerscope.store import atomic
from layerscope.store.folder import config_key
from layerscope.store.locks import lock_beside
from layerscope.version import VERSION

META = b"layerscope"
_MARK = b"mark"
_CUT = b"cut"
BLOCK = 4096  # texts in a part
REMOTE_BLOCK = 65_536  # more: workers load the model for every block
_BLOCK_BYTES = 128 * 2**20  # of vectors in a part, whatever the layers and their width

log = logging.getLogger("layerscope")


def embed(
    model: Any,
    data: Any,
    out: str | Path,
    *,
    column: str | None = None,
    encoding: str | None = None,
    layers: Layers = None,
    readout: str | Readout | None = None,
    max_length: int | None = None,
    tokenizer: Any = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> Path:
    """Write the vectors of texts to a parquet file: a row per text with its other columns and
    `vector`, or `layer_10`, ….

    - `model`: a folder that `improve` or `export` wrote, any sentence encoder, or a model with
      `layers` and a `readout`.

    Rows without a text are left out. The same call goes on with a run that was killed, and reads
    nothing twice.

        layerscope.embed("better", "reviews.csv", "vectors.parquet")
    """
    command = Command("embed", options, engine=engine, progress=progress, function=embed)
    place = Path(out)
    if place.is_symlink() and place.exists():  # of a link, what it points to is replaced
        place = place.resolve()
    if place.suffix != ".parquet":
        raise InvalidValueError(f"vectors are written to a .parquet file, not to {place.name!r}.")
    if isinstance(readout, str):
        readout = Readout.parse(readout)
    if readout is not None and readout.centering != "none":
        raise InvalidValueError(
            f"the readout {readout.name} is fitted on texts: let `improve` make a folder, and "
            "embed with that."
        )
    stream = TextStream(data, column=column, encoding=encoding)
    digest = hashlib.sha256()
    total = 0
    exact = ExactNumbers()
    for row in stream.rows():  # before the model is loaded: a file that cannot be read is noticed
        digest.update(_row_bytes(row))
        exact.add(row)
        total += 1
    with lock_beside(place.resolve(), "embedding") as work, command:
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=readout, max_length=max_length
        )
        facts = {**encoder.facts, "texts": {**stream.source, "sha256": digest.hexdigest()}}
        key = config_key(decisive(facts))
        parts = Parts(work, encoder, key, command.engine.remote, exact.columns_of_text())
        atomic.remove_parts(place.parent, of=(f".{place.name}",))
        if place.exists() and not overwrite:
            _refuse_other(place, key)
            log.info("%s is there already: %s rows", place, f"{total:,}")
            parts.clear()  # of a run that was killed at its very end
            return place
        if place.exists():
            _refuse_other(place)
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
        second_digest = hashlib.sha256()
        for number, block in enumerate(in_blocks(stream.rows(), parts.size)):
            for row in block:
                second_digest.update(_row_bytes(row))
            parts.add(number, block, command)
        if second_digest.digest() != digest.digest():
            raise DataError(changed(data if isinstance(data, str | Path) else stream.name))
        cut = sum(part.cut for part in parts.finished)
        parts.join(place, {**facts, "layerscope": VERSION, "key": key, "rows": total, "cut": cut})
    encoder.warn_of_cuts(cut, total)
    if stream.dropped:
        dropped = ", ".join(f"{count} {why}" for why, count in stream.dropped.items())
        log.info("left out: %s", dropped)
    return place


def _refuse_other(file: Path, key: str | None = None) -> None:
    """Raise where a file is not one that `embed` wrote, or not that of a key."""
    written_key = facts_of(file).get("key")
    if written_key is None:  # somebody's own, such as the very texts
        raise RunFolderError(
            f"{file} is not a file that embed wrote, and stays. Choose another out=."
        )
    if key is not None and written_key != key:
        raise RunFolderError(
            f"{file} exists and holds other vectors or texts. Choose another out=, or "
            "overwrite=True."
        )


def facts_of(file: Path) -> dict[str, Any]:
    """Return what a file that `embed` wrote says of itself; nothing for another."""
    import pyarrow.parquet as pq

    try:
        text = (pq.read_schema(file).metadata or {}).get(META)
        facts = json.loads(text) if text else {}
    except (OSError, ValueError, RecursionError) as error:  # pyarrow's own are of these kinds
        raise DataError(f"{file} is not a readable parquet file: {one_line(str(error))}") from error
    return facts if isinstance(facts, dict) else {}


@dataclass(frozen=True)
class Part:
    """A block of texts that is finished, and how many of them were too long."""

    file: Path
    cut: int


class Parts:
    """The blocks of texts that are finished, a file each, which says what it holds."""

    def __init__(
        self,
        work: Path,
        encoder: Encoder,
        key: str,
        remote: bool,
        columns_of_text: Container[str] = (),
    ) -> None:
        self.work = work
        self.encoder = encoder
        self.columns_of_text = columns_of_text
        fitting = _BLOCK_BYTES // (4 * encoder.width * len(encoder.names))
        self.size = max(64, min(fitting, REMOTE_BLOCK if remote else BLOCK))
        self.key = f"{key}-{self.size}"
        self.finished: list[Part] = []
        atomic.remove_parts(work)  # of writers that were killed: nobody else writes here

    def add(self, number: int, rows: Sequence[Row], command: Command) -> None:
        """Encode the rows of a block, unless a part holds them already."""
        import pyarrow.parquet as pq

        texts = [str(row.text) for row in rows]
        mark = hashlib.sha256(b"\n".join([self.key.encode(), *map(_row_bytes, rows)])).digest()
        file = self.work / f"part-{number:06d}.parquet"
        facts = _facts_of_part(file)
        if facts.get(_MARK) == mark:
            command.bar.advance(len(texts))
            self.finished.append(Part(file, int(facts[_CUT])))
            return
        embedded = self.encoder.embed(command.engine, texts, command.bar.advance)
        columns = dict(zip(self.encoder.names, embedded.vectors, strict=True))
        table = _table(rows, columns, self.columns_of_text)
        table = table.replace_schema_metadata({_MARK: mark, _CUT: str(embedded.cut)})
        atomic.write(file, lambda stream: pq.write_table(table, stream, write_page_checksum=True))
        self.finished.append(Part(file, embedded.cut))

    def join(self, place: Path, facts: Mapping[str, Any]) -> None:
        """Write one file of all parts, which then go."""
        import pyarrow.parquet as pq

        schema = _common_schema([pq.read_schema(part.file) for part in self.finished])
        schema = schema.with_metadata({META: json.dumps(atomic.plain(facts))})

        def fill(stream: Any) -> None:
            with pq.ParquetWriter(stream, schema) as writer:
                for part in self.finished:
                    writer.write_table(_cast(pq.read_table(part.file), schema))

        atomic.write(place, fill)
        self.clear()

    def clear(self) -> None:
        """Remove the parts."""
        for file in self.work.glob("part-[0-9]*.parquet"):
            file.unlink()


def _facts_of_part(file: Path) -> dict[bytes, bytes]:
    """Return what a part says of itself, once its checksums were compared; nothing where it is
    missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        return {}
    try:
        table = pq.read_table(file, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException):
        log.warning("%s is damaged: its texts are read again", file)
        return {}
    return table.schema.metadata or {}


def _row_bytes(row: Row) -> bytes:
    """Return a row as bytes, for a fingerprint."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return json.dumps(row, skipkeys=True, default=plain).encode()


class ExactNumbers:
    """The columns whose numbers would lose digits if they were written as numbers.

    They are those with a decimal of many digits, and those with both decimals and whole numbers
    that no 64-bit decimal can hold.
    """

    def __init__(self) -> None:
        self._decimals: set[str] = set()
        self._large: set[str] = set()
        self._long: set[str] = set()

    def add(self, row: Row) -> None:
        """Look at the numbers of a row, also inside lists and objects."""
        for name, value in row.others.items():
            if not isinstance(value, str):
                self._look(str(name), value)

    def _look(self, name: str, value: Any) -> None:
        if isinstance(value, float):
            self._decimals.add(name)
            if str(value) != float.__repr__(value) and len(str(value)) > _EXACT_DIGITS:
                self._long.add(name)
        elif isinstance(value, int):
            if abs(value) > 2**53:
                self._large.add(name)
        elif isinstance(value, Mapping | list):
            for inner in value.values() if isinstance(value, Mapping) else value:
                self._look(name, inner)

    def columns_of_text(self) -> frozenset[str]:
        """Return the names of these columns."""
        return frozenset(self._long | (self._decimals & self._large))


_EXACT_DIGITS = 15  # of a 64-bit decimal


def _table(
    rows: Sequence[Row],
    vectors: Mapping[str, np.ndarray],
    columns_of_text: Container[str] = (),
) -> Any:
    """Return a table of texts, their other columns and vectors. A column of mixed kinds is written
    as text, and so are `columns_of_text`.

    A column with a name that is needed here is called `…_given`.
    """
    import pyarrow as pa

    taken = {"text", *vectors}
    columns: dict[str, Any] = {"text": pa.array([str(row.text) for row in rows])}
    for name in dict.fromkeys(name for row in rows for name in row.others):
        values = [row.others.get(name) for row in rows]
        is_taken = re.sub("(_given)+$", "", name) in taken
        column = _encodable(f"{name}_given" if is_taken else name)
        try:
            columns[column] = pa.array(values, pa.string() if name in columns_of_text else None)
        except (pa.ArrowException, OverflowError, UnicodeError):
            texts = [None if value is None else _encodable(value) for value in values]
            columns[column] = pa.array(texts)
    for name, matrix in vectors.items():
        flat = pa.array(np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
    return pa.table(columns)


def _encodable(value: Any) -> str:
    """Return a value as text that can be encoded: half of a character is none."""
    return str(value).encode("utf-8", "replace").decode()


def _common_schema(schemas: Sequence[Any]) -> Any:
    """Return the columns of all parts, vectors last. One that has other types in other parts is
    written as numbers, or else as text."""
    import pyarrow as pa

    types_by_column: dict[str, set[Any]] = {}
    for schema in schemas:
        for field in schema:
            types_by_column.setdefault(field.name, set()).update({field.type} - {pa.null()})
    fields = []
    for name, types in types_by_column.items():
        numbers = all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in types)
        kind = pa.float64() if types and numbers else pa.string()
        fields.append(pa.field(name, next(iter(types)) if len(types) == 1 else kind))
    return pa.schema(sorted(fields, key=lambda field: pa.types.is_fixed_size_list(field.type)))


def _cast(table: Any, schema: Any) -> Any:
    """Return a part's table with the columns and types of the whole."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = pa.nulls(table.num_rows)
        if field.name in table.column_names:
            column = table.column(field.name)
        if pa.types.is_floating(field.type):
            column = column.cast(field.type, safe=False)
        elif column.type != field.type:
            texts = [None if value is None else str(value) for value in column.to_pylist()]
            column = pa.array(texts, field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)


def vectors_in(
    file: Path, name: str, width: int
) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """Yield the vectors of a file that `embed` wrote, a group of rows at a time, and the rows'
    other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # What a damaged file raises, of many kinds.
    damage = (OSError, ValueError, LookupError, AttributeError, OverflowError, pa.ArrowException)
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=BLOCK):
                group = pa.Table.from_batches([batch])
                column = group.column(name).combine_chunks()
                flat = column.flatten().to_numpy(zero_copy_only=False)
                vectors = flat.reshape(len(column), -1)
                if vectors.shape[1:] != (width,) or not np.isfinite(vectors).all():
                    raise ValueError(f"its vectors are not {width} numbers each")
                others = [
                    field.name
                    for field in group.schema
                    if not pa.types.is_fixed_size_list(field.type)
                ]
                yield vectors, group.select(others).to_pylist()
    except damage as error:
        raise DataError(
            f"{file} does not hold the vectors that `embed` writes: {one_line(str(error))}. "
            "Embed again."
        ) from error
