"""Files of requests: millions of users or histories, read a block at a time.

A file is CSV, Parquet or JSON lines. Each row is a request: a `user_id`, or a `history` of item ids, oldest
first. Histories may have `times`, as many as items, as ISO dates or in ticks of the log's clock, and the row
may have an `id`, under which its list comes back; otherwise `history` is its number, from 0. It may also have
`rules` of its own (a list of texts, or one text), which are added to those of all rows. In CSV, `history`,
`times` and `rules` are JSON lists, such as ["tea", "milk"].
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv

from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import BLOCK, Ranker, Recommendations

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

FORMATS = {".csv": "csv", ".parquet": "parquet", ".jsonl": "json", ".ndjson": "json"}
COLUMNS = ("user_id", "history", "times", "id", "rules")
ITEM_COLUMNS = ("item_id", "item", "id")  # of a file of candidates, in order of preference


def read_candidates(file: Path) -> list[Any]:
    """The ids of a file of candidates: its column of items, or the lines of a text file."""
    if file.suffix == ".txt":
        try:
            lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{file}: cannot be read ({error})", field="candidates") from None
        return [line for line in lines if line]
    rows = _rows(file)
    column = next((name for name in ITEM_COLUMNS if name in rows.schema.names), None)
    if column is None:
        listed = ", ".join(map(repr, rows.schema.names))
        raise BadInput(f"{file}: no column 'item_id'; its columns are {listed}", field="candidates")
    try:
        return [value for value in rows.to_table(columns=[column])[column].to_pylist() if value is not None]
    except pa.ArrowInvalid as error:
        raise BadInput(f"{file}: cannot be read ({error})", field="candidates") from None


def check(file: Path) -> "Dataset":
    """The rows of a file of requests, which are not read yet."""
    rows = _rows(file)
    names = rows.schema.names
    if ("user_id" in names) == ("history" in names):
        raise BadInput(
            f"{file}: expected a column user_id or a column history, one of the two; its columns are "
            f"{', '.join(names)}"
        )
    return rows


def _rows(file: Path) -> "Dataset":
    """The rows of a file, which are not read yet. In CSV, everything is text."""
    if file.suffix not in FORMATS:
        raise BadInput(f"{file}: expected a name that ends with {', '.join(FORMATS)}")
    if not file.is_file():
        raise BadInput(f"{file}: there is no such file")
    from pyarrow import dataset  # it imports pandas, which takes long

    try:
        rows = dataset.dataset(file, format=FORMATS[file.suffix])
        names = rows.schema.names
        if file.suffix == ".csv":
            # Ids are text: 007 is not 7. The type of the log's ids decides what they mean.
            text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            rows = dataset.dataset(file, format=dataset.CsvFileFormat(convert_options=text))
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{file}: cannot be read ({error})") from None
    return rows


def lists_of(file: Path, ranker: Ranker, options: RecommendOptions) -> Iterator[Recommendations]:
    """The lists of all requests of a file, a block of requests at a time. Not more than a block of rows is in
    memory, whatever the length of the file."""
    rows = check(file)
    names = [name for name in COLUMNS if name in rows.schema.names]
    total, first = rows.count_rows(), 0
    with progress("recommend", total) as job:
        try:
            for batch in rows.to_batches(columns=names, batch_size=BLOCK, batch_readahead=2):
                for block, rules in _by_rules(file, batch, first):
                    numbers = list(range(first, first + block.num_rows))
                    yield _block(file, block, numbers, ranker, _with_rules(file, first, rules, options))
                    first += block.num_rows
                    job.advance(block.num_rows)
        except pa.ArrowInvalid as error:
            raise BadInput(f"{file}: cannot be read ({error})") from None


def _by_rules(
    file: Path, batch: pa.RecordBatch, first: int
) -> Iterator[tuple[pa.RecordBatch, tuple[str, ...]]]:
    """Consecutive rows with the same rules of their own, and these."""
    given = batch.column("rules").to_pylist() if "rules" in batch.schema.names else [None] * batch.num_rows
    start = 0
    for rules, same in groupby(given):
        end = start + len(list(same))
        plain = isinstance(rules, str) and not rules.lstrip().startswith("[")
        texts = [rules] if plain else _list(f"{file}, row {first + start + 1}", "rules", rules)
        yield batch.slice(start, end - start), tuple(texts)
        start = end


def _with_rules(
    file: Path, first: int, rules: tuple[str, ...], options: RecommendOptions
) -> RecommendOptions:
    """The options of rows that have rules of their own."""
    try:
        return replace(options, rules=(*rules, *options.rules)) if rules else options
    except BadInput as error:
        raise BadInput(f"{file}, row {first + 1}: {error}", field=error.field) from None


def _block(
    file: Path, batch: pa.RecordBatch, numbers: list[int], ranker: Ranker, options: RecommendOptions
) -> Recommendations:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    if "user_id" in columns:
        for number, user in zip(numbers, columns["user_id"], strict=True):
            if user is None:
                raise BadInput(f"{file}, row {number + 1}: no user_id")
        return ranker.for_users(columns["user_id"], options)
    nothing = [None] * len(numbers)
    given = zip(numbers, columns["history"], columns.get("times", nothing), strict=True)
    lists = ranker.for_histories([_history(file, *row) for row in given], options)
    names = columns.get("id", numbers)
    back = pa.array([names[at] for at in lists.table["history"].to_pylist()])
    table = lists.table.set_column(0, "id" if "id" in columns else "history", back)
    return Recommendations(table, lists.users_unknown, lists.items_unknown)


def _history(file: Path, number: int, items: Any, times: Any) -> list[Any]:
    """One history, as the ranker takes it."""
    where = f"{file}, row {number + 1}"
    items, times = (_list(where, name, value) for name, value in (("history", items), ("times", times)))
    if times and len(times) != len(items):
        raise BadInput(f"{where}: {len(items)} items and {len(times)} times; expected as many")
    if not all(isinstance(time, int | str | datetime) for time in times):
        raise BadInput(f"{where}: expected ISO dates or whole numbers, in ticks of the log's clock, as times")
    return list(zip(items, times, strict=True)) if times else items


def _list(where: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None if value else []
        if value is None:
            raise BadInput(f'{where}: expected {name} as a JSON list, such as ["tea", "milk"]')
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"{where}: expected a list as {name}, found {value!r}")
    return value
