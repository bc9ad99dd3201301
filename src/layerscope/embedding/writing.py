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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from layerscope.command import Command
from layerscope.core.readout import Readout
from layerscope.data.corpus import TextStream
from layerscope.data.records import Row, changed
from layerscope.embedding.encoders import Encoder, Layers, in_blocks, open_encoder, without_name
from layerscope.engines import Engine
from layerscope.errors import DataError, InvalidValueError, RunFolderError, one_line
from layerscope.progress import Progress
from layerscope.store import atomic
from layerscope.store.atomic import lock_beside
from layerscope.store.folder import config_key
from layerscope.version import VERSION

META = b"layerscope"
_MARK = b"mark"
_CUT = b"cut"
BLOCK = 4096  # texts in a part
REMOTE_BLOCK = 65_536  # more: workers load the model for every block
_SMALLEST_BLOCK = 64
_BLOCK_BYTES = 128 * 2**20  # of vectors in a part, whatever the layers and their width
_EXACT_DIGITS = 15
"""The digits of a decimal number that a 64-bit number keeps."""
_EXACT_INTEGER = 2**53
_MIXED = (pa.ArrowException, OverflowError, UnicodeError)
"""The errors of values that no type holds together."""

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
    if place.is_symlink() and place.exists():  # the target of a link is replaced, not the link
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
    columns = OtherColumns()
    # The texts are read once before the model is loaded: a file that cannot be read is noticed.
    for rows in in_blocks(stream.rows(), BLOCK):
        digest.update(_row_bytes(rows))
        columns.add(rows)
        total += len(rows)
    with lock_beside(place.resolve(), "embedding") as work, command:
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=readout, max_length=max_length
        )
        facts = {**encoder.facts, "texts": {**stream.source, "sha256": digest.hexdigest()}}
        key = config_key(without_name(facts))
        atomic.remove_parts(place.parent, of=(f".{place.name}",))
        atomic.remove_parts(work)  # of writers that were killed
        if place.exists():
            _check_replaceable(place, None if overwrite else key)
            if not overwrite:
                log.info("%s is there already: %s rows", place, f"{total:,}")
                _clear(work)
                return place
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", total)
        size = block_size(encoder.width * len(encoder.names), command.engine.remote)
        files = []
        cut = 0
        second_digest = hashlib.sha256()
        for number, rows in enumerate(in_blocks(stream.rows(), size)):
            content = _row_bytes(rows)
            second_digest.update(content)
            file = work / f"part-{number:06d}.parquet"
            mark = hashlib.sha256(f"{key}-{size}".encode() + content).digest()
            cut += _write_part(file, mark, rows, columns, encoder, command)
            files.append(file)
        if second_digest.digest() != digest.digest():
            raise DataError(changed(data if isinstance(data, str | Path) else stream.name))
        record = {**facts, "layerscope": VERSION, "key": key, "rows": total, "cut": cut}
        _join(files, place, record)
        _clear(work)
    encoder.warn_of_cuts(cut, total)
    if stream.dropped:
        dropped = ", ".join(f"{count} {reason}" for reason, count in stream.dropped.items())
        log.info("left out: %s", dropped)
    return place


def _row_bytes(rows: Sequence[Row]) -> bytes:
    """Return rows as bytes, for a fingerprint."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    texts = [json.dumps(row, skipkeys=True, default=plain) for row in rows]
    return "".join(texts).encode()


def _check_replaceable(file: Path, key: str | None) -> None:
    """Raise for a file that `embed` did not write, or not with this key."""
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


def _clear(work: Path) -> None:
    """Remove the parts."""
    for file in work.glob("part-[0-9]*.parquet"):
        file.unlink()


def block_size(numbers: int, is_remote: bool) -> int:
    """Return how many texts a part holds, of which each has so many numbers."""
    fitting = _BLOCK_BYTES // (4 * numbers)
    return max(_SMALLEST_BLOCK, min(fitting, REMOTE_BLOCK if is_remote else BLOCK))


def _write_part(
    file: Path,
    mark: bytes,
    rows: Sequence[Row],
    columns: OtherColumns,
    encoder: Encoder,
    command: Command,
) -> int:
    """Encode the rows of a block and write its part, unless an earlier run did.

    The mark says which rows and encoder a part is of. Returns how many texts were cut.
    """
    facts = _facts_of_part(file)
    if facts.get(_MARK) == mark:
        command.bar.advance(len(rows))
        return int(facts[_CUT])
    texts = [str(row.text) for row in rows]
    embedded = encoder.embed(command.engine, texts, command.bar.advance)
    vectors = dict(zip(encoder.names, embedded.vectors, strict=True))
    table = columns.table(rows, vectors)
    table = table.replace_schema_metadata({_MARK: mark, _CUT: str(embedded.cut)})
    atomic.write(file, lambda out: pq.write_table(table, out, write_page_checksum=True))
    return embedded.cut


def _join(files: Sequence[Path], place: Path, facts: Mapping[str, Any]) -> None:
    """Write one file of all parts."""
    metadata = {META: json.dumps(atomic.plain(facts))}
    schema = pq.read_schema(files[0]).with_metadata(metadata)

    def fill(out: Any) -> None:
        with pq.ParquetWriter(out, schema) as writer:
            for file in files:
                writer.write_table(pq.read_table(file).replace_schema_metadata(metadata))

    atomic.write(place, fill)


def _facts_of_part(file: Path) -> dict[bytes, bytes]:
    """Return the mark of a part, once its checksums were compared; nothing if it is missing or
    damaged."""
    if not file.is_file():
        return {}
    try:
        table = pq.read_table(file, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException):
        log.warning("%s is damaged: its texts are read again", file)
        return {}
    return table.schema.metadata or {}


def facts_of(file: Path) -> dict[str, Any]:
    """Return the facts in a file that `embed` wrote; nothing for another file."""
    try:
        text = (pq.read_schema(file).metadata or {}).get(META)
        facts = json.loads(text) if text else {}
    except (OSError, ValueError, RecursionError) as error:  # pyarrow's own are of these kinds
        raise DataError(f"{file} is not a readable parquet file: {one_line(str(error))}") from error
    return facts if isinstance(facts, dict) else {}


def vectors_in(
    file: Path, name: str, width: int
) -> Iterator[tuple[np.ndarray, list[dict[str, Any]]]]:
    """Yield the vectors of a file that `embed` wrote, a group of rows at a time, and the rows'
    other columns."""
    # The errors of a damaged file are of many kinds.
    damage = (OSError, ValueError, LookupError, AttributeError, OverflowError, pa.ArrowException)
    try:
        with pq.ParquetFile(file) as table:
            for group in table.iter_batches(batch_size=BLOCK):
                column = group.column(name)
                vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
                if vectors.shape[1] != width or not np.isfinite(vectors).all():
                    raise ValueError(f"its vectors are not {width} numbers each")
                is_vector = pa.types.is_fixed_size_list
                names = [field.name for field in group.schema if not is_vector(field.type)]
                yield vectors, group.select(names).to_pylist()
    except damage as error:
        raise DataError(
            f"{file} does not hold the vectors that `embed` writes: {one_line(str(error))}. "
            "Embed again."
        ) from error


class OtherColumns:
    """The columns beside the texts, each with the type that keeps the values of all rows.

    Whole numbers beside decimals are written as decimals, and other mixtures as text. So are
    numbers that would lose digits: decimals of many digits, and large whole numbers beside
    decimals.
    """

    def __init__(self) -> None:
        self._types: dict[str, set[pa.DataType]] = {}
        self._numbers: dict[str, set[str]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Take a block of rows into account."""
        for name in dict.fromkeys(name for row in rows for name in row.others):
            values = [row.others.get(name) for row in rows]
            self._numbers.setdefault(name, set()).update(_number_kinds(values))
            try:
                kind = pa.array(values).type
            except _MIXED:
                kind = pa.string()
            self._types.setdefault(name, set()).add(kind)

    def table(self, rows: Sequence[Row], vectors: Mapping[str, np.ndarray]) -> pa.Table:
        """Return a table of texts, their other columns and vectors.

        A column with a name that is needed here is called `…_given`.
        """
        columns: dict[str, Any] = {"text": pa.array([str(row.text) for row in rows])}
        for name in self._types:
            is_taken = re.sub("(_given)+$", "", str(name)) in ("text", *vectors)
            label = _encodable(f"{name}_given" if is_taken else name)
            columns[label] = _array([row.others.get(name) for row in rows], self._type(name))
        for name, matrix in vectors.items():
            flat = pa.array(np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
        return pa.table(columns)

    def _type(self, name: str) -> pa.DataType:
        types = self._types[name] - {pa.null()}
        kinds = self._numbers[name]
        if "long" in kinds or {"decimal", "large"} <= kinds:
            return pa.string()
        if len(types) <= 1:
            return types.pop() if types else pa.null()
        are_numbers = all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in types)
        return pa.float64() if are_numbers and "large" not in kinds else pa.string()


def _number_kinds(value: Any) -> Iterator[str]:
    """Yield which numbers a value holds that matter for its type, also inside lists and objects."""
    if isinstance(value, float):
        yield "decimal"
        digits = str(value)  # a decimal that was read from JSON knows all its digits
        if digits != float.__repr__(value) and len(digits) > _EXACT_DIGITS:
            yield "long"
    elif isinstance(value, int) and abs(value) > _EXACT_INTEGER:
        yield "large"
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _number_kinds(inner)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.string():
        return pa.array([None if value is None else _encodable(value) for value in values], kind)
    return pa.array(values, kind)


def _encodable(value: Any) -> str:
    """Return a value as text that can be encoded: half of a character is none."""
    return str(value).encode("utf-8", "replace").decode()
