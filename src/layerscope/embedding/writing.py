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
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.command import Command
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.data.readers import Row, changed
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

META, _MARK, _CUT = b"layerscope", b"mark", b"cut"
BLOCK, REMOTE_BLOCK = 4096, 65_536  # texts in a part; workers load the model for every block
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
    offline: bool = False,
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
    ways: dict[str, Any] = {
        "engine": engine,
        "offline": offline,
        "progress": progress,
    }
    command = Command("embed", options, **ways, function=embed)
    place = Path(out)
    if place.is_symlink() and place.exists():  # of a link, what it points to is replaced
        place = place.resolve()
    if place.suffix != ".parquet":
        raise InvalidValueError(f"vectors are written to a .parquet file, not to {place.name!r}.")
    if isinstance(readout, str):
        readout = Readout.parse(readout)
    if readout is not None and readout.centering != "none":
        raise InvalidValueError(
            f"the readout {readout.name} is fitted on texts: let `improve` make a folder, and embed with that."
        )
    stream = TextStream(data, column=column, offline=offline, encoding=encoding)
    digest, total, numbers = hashlib.sha256(), 0, Numbers()
    for row in stream.rows():  # before the model is loaded: a file that cannot be read is found out
        digest.update(_told(row))
        numbers.add(row)
        total += 1
    with lock_beside(place.resolve(), "embedding") as work, command:
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=readout, max_length=max_length
        )
        texts = {**stream.source, "sha256": digest.hexdigest()}
        facts = {**encoder.facts, "texts": texts, "layerscope": VERSION}
        deciding = decisive({name: facts[name] for name in facts if name != "layerscope"})
        key = config_key(deciding)
        parts = Parts(work, encoder, key, command.engine.remote, numbers.columns_of_text())
        atomic.remove_parts(place.parent, of=(f".{place.name}",))
        if place.exists():
            there = facts_of(place).get("key")
            if there is None:  # somebody's own, such as the very texts
                raise RunFolderError(
                    f"{place} is not a file that embed wrote, and stays. Choose another out=."
                )
            if there != key and not overwrite:
                raise RunFolderError(
                    f"{place} exists and holds other vectors or texts. Choose another out=, or overwrite=True."
                )
            if not overwrite:
                log.info("%s is there already: %s rows", place, f"{total:,}")
                parts.clear()  # of a run that was killed at its very end
                return place
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
        read_again = hashlib.sha256()
        for number, block in enumerate(in_blocks(stream.rows(), parts.size)):
            for row in block:
                read_again.update(_told(row))
            parts.add(number, block, command)
        if read_again.digest() != digest.digest():
            raise DataError(changed(data if isinstance(data, str | Path) else stream.name))
        parts.join(place, {**facts, "key": key, "rows": total, "cut": parts.cut})
    encoder.say_cuts(parts.cut, total)
    if stream.dropped:
        log.info(
            "left out: %s", ", ".join(f"{count} {why}" for why, count in stream.dropped.items())
        )
    return place


def facts_of(file: Path) -> dict[str, Any]:
    """What a file that `embed` wrote says of itself; nothing for another."""
    import pyarrow.parquet as pq

    try:
        told = (pq.read_schema(file).metadata or {}).get(META)
        found = json.loads(told) if told else {}
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # pyarrow's own errors are of these kinds
        raise DataError(f"{file} is not a readable parquet file: {one_line(str(error))}") from error
    return found if isinstance(found, dict) else {}


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
        self.work, self.encoder = work, encoder
        self.columns_of_text = columns_of_text
        fit = _BLOCK_BYTES // (4 * encoder.width * len(encoder.names))
        self.size = max(64, min(fit, REMOTE_BLOCK if remote else BLOCK))
        self.key = f"{key}-{self.size}"
        self.files: list[Path] = []
        self.cut = 0  # texts that were too long
        atomic.remove_parts(work)  # of writers that were killed: nobody else writes here

    def add(self, number: int, rows: Sequence[Row], command: Command) -> None:
        """Encode the rows of a block, unless a part holds them already."""
        import pyarrow.parquet as pq

        texts = [str(row.text) for row in rows]
        mark = hashlib.sha256(b"\n".join([self.key.encode(), *map(_told, rows)])).digest()
        file = self.work / f"part-{number:06d}.parquet"
        self.files.append(file)
        facts = _facts_of_part(file)
        if facts.get(_MARK) == mark:
            command.bar.advance(len(texts))
            self.cut += int(facts[_CUT])
            return
        before = self.encoder.cut
        vectors = self.encoder.vectors(command.engine, texts, command.bar.advance)
        cut = self.encoder.cut - before
        self.cut += cut
        columns = dict(zip(self.encoder.names, vectors, strict=True))
        table = _table(rows, columns, self.columns_of_text)
        table = table.replace_schema_metadata({_MARK: mark, _CUT: str(cut)})
        atomic.write(file, lambda stream: pq.write_table(table, stream, write_page_checksum=True))

    def join(self, place: Path, facts: Mapping[str, Any]) -> None:
        """One file of all parts, which then go."""
        import pyarrow.parquet as pq

        schema = _schema([pq.read_schema(file) for file in self.files])
        schema = schema.with_metadata({META: json.dumps(atomic.plain(facts))})

        def fill(stream: Any) -> None:
            with pq.ParquetWriter(stream, schema) as writer:
                for file in self.files:
                    writer.write_table(_as(pq.read_table(file), schema))

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


def _told(row: Row) -> bytes:
    """A row as bytes, for a fingerprint."""
    plain = json.dumps(
        row,
        skipkeys=True,
        default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value),
    )
    return plain.encode()


class Numbers:
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
    """A table of texts, their other columns and vectors; a column of mixed kinds is written as
    text, and so are `columns_of_text`.

    A column with a name that is needed here is called `…_given`.
    """
    import pyarrow as pa

    def as_text(value: Any) -> str:
        return str(value).encode("utf-8", "replace").decode()  # half of a character is none

    names = dict.fromkeys(name for row in rows for name in row.others)
    taken = {"text", *vectors}
    columns: dict[str, Any] = {"text": pa.array([str(row.text) for row in rows])}
    for name in names:
        values = [row.others.get(name) for row in rows]
        kept = as_text(f"{name}_given" if re.sub("(_given)+$", "", name) in taken else name)
        try:
            kind = pa.string() if name in columns_of_text else None
            columns[kept] = pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeError):
            columns[kept] = pa.array(
                [None if value is None else as_text(value) for value in values]
            )
    for name, found in vectors.items():
        flat = pa.array(np.ascontiguousarray(found, dtype=np.float32).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, found.shape[1])
    return pa.table(columns)


def _vectors(table: Any, name: str) -> np.ndarray:
    """A column of vectors as an array (rows, D)."""
    whole = table.column(name).combine_chunks()
    return whole.flatten().to_numpy(zero_copy_only=False).reshape(len(whole), -1)


def _schema(schemas: Sequence[Any]) -> Any:
    """Columns of all parts, vectors last; one that has other types in other parts is told as
    numbers, or else as text."""
    import pyarrow as pa

    def common(found: set[Any]) -> Any:
        numbers = all(pa.types.is_integer(one) or pa.types.is_floating(one) for one in found)
        return (
            next(iter(found))
            if len(found) == 1
            else pa.float64()
            if found and numbers
            else pa.string()
        )

    kinds: dict[str, set[Any]] = {}
    for schema in schemas:
        for one in schema:
            kinds.setdefault(one.name, set()).update({one.type} - {pa.null()})
    fields = [pa.field(name, common(found)) for name, found in kinds.items()]
    return pa.schema(sorted(fields, key=lambda one: pa.types.is_fixed_size_list(one.type)))


def _as(table: Any, schema: Any) -> Any:
    """A part's table with the columns and types of the whole."""
    import pyarrow as pa

    columns = []
    for one in schema:
        column = (
            table.column(one.name) if one.name in table.column_names else pa.nulls(table.num_rows)
        )
        if pa.types.is_floating(one.type):
            column = column.cast(one.type, safe=False)
        elif column.type != one.type:
            column = pa.array(
                [None if value is None else str(value) for value in column.to_pylist()], one.type
            )
        columns.append(column)
    return pa.table(columns, schema=schema)


def vectors_in(
    file: Path, name: str, width: int
) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """The vectors of a file that `embed` wrote, a group of rows at a time, and the rows' other
    columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=BLOCK):
                whole = pa.Table.from_batches([batch])
                others = [
                    one.name for one in whole.schema if not pa.types.is_fixed_size_list(one.type)
                ]
                vectors = _vectors(whole, name)
                if vectors.shape[1:] != (width,) or not np.isfinite(vectors).all():
                    raise ValueError(f"its vectors are not {width} numbers each")
                yield vectors, whole.select(others).to_pylist()
    except (
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        OverflowError,
        pa.ArrowException,
    ) as error:
        raise DataError(
            f"{file} does not hold the vectors that `embed` writes: {one_line(str(error))}. Embed again."
        ) from error
