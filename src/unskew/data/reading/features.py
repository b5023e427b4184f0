"""Features of users and items, such as the category of an item, from columns of the log.

A user (an item) should have the same value in all of its rows. If it has several, the earliest is kept,
because any later one would come from the future for the rows before it. Of several values at that earliest
time, the smallest is kept.
"""

import pyarrow as pa
import pyarrow.compute as pc

from unskew.data.log.preparation import FeatureCounts
from unskew.data.log.vocabulary import FEATURE
from unskew.data.reading.columns import Column, Source
from unskew.data.reading.engines import Engine

# How numbers look in a text file, which has no types. A code such as 007 is not a number.
WHOLE = r"^\s*-?(0|[1-9][0-9]{0,17})\s*$"
NUMBER = r"^\s*-?(0|[1-9][0-9]*|(0|[1-9][0-9]*)?[.][0-9]+)([eE][+-]?[0-9]+)?\s*$"

IN_WORDS = {
    "changed": "with several values over time (the earliest is kept)",
    "late": "without a value in the first rows (a later one is used)",
    "missing": "without any value",
}


def with_features(
    engine: Engine, vocabulary: pa.Table, role: str, source: Source
) -> tuple[pa.Table, dict[str, FeatureCounts]]:
    """Add the features of all users (or items) to the table of their ids, and count what was not clear.

    role: `user` or `item`.

    The engine must have the tables `users` and `items` (id, code) and `described`, all good rows of the
    source. These include rows that are removed from the log, such as duplicates, because their values are as
    good as any. The counts of each feature are `changed`, how many users (items) have more than one value;
    `late`, how many have none in their first rows, so that their value comes from a later one; and `missing`,
    how many have no value at all.
    """
    columns = source.features.get(role, {})
    if not columns:
        return vocabulary, {}
    values = [f"{role}_{place}" for place in range(len(columns))]
    of_each = "".join(
        f""", MIN(CASE WHEN {value} IS NOT NULL THEN t END) AS first_{value},
        CASE WHEN MIN({value}) <> MAX({value}) THEN 1 ELSE 0 END AS changed_{value}"""
        for value in values
    )
    engine.table(
        "firsts", f"SELECT {role[0]} AS id, MIN(t) AS seen{of_each} FROM described GROUP BY {role[0]}"
    )
    earliest = ", ".join(f"MIN(CASE WHEN t = first_{value} THEN {value} END) AS {value}" for value in values)
    engine.table(
        "earliest",
        f"SELECT id, {earliest} FROM described JOIN firsts ON described.{role[0]} = firsts.id GROUP BY id",
    )
    taken = ", ".join(
        f"e.{value}, f.changed_{value}, CASE WHEN f.first_{value} > f.seen THEN 1 ELSE 0 END AS late_{value}"
        for value in values
    )
    found = engine.arrow(
        f"""SELECT {taken} FROM {role}s AS known JOIN earliest AS e ON known.id = e.id
        JOIN firsts AS f ON known.id = f.id ORDER BY known.code"""
    )
    counts = {}
    for value, (name, column) in zip(values, columns.items(), strict=True):
        kept = _typed(found[value].combine_chunks(), column)
        vocabulary = vocabulary.append_column(f"{FEATURE}{name}", kept)
        changed, late = (pc.sum(found[f"{count}_{value}"]).as_py() for count in ("changed", "late"))
        counts[name] = FeatureCounts(changed, late, kept.null_count)
    return vocabulary, counts


def in_sentences(features: dict[str, dict[str, FeatureCounts]]) -> list[str]:
    """One sentence per feature about what was counted. `features` is that of a log's metadata."""
    sentences = []
    for who, counted in features.items():
        for feature, counts in counted.items():
            said = [f"{n:,} {words}" for name, words in IN_WORDS.items() if (n := getattr(counts, name))]
            sentences.append(f"Feature {feature} of the {who}: {', '.join(said) or 'one value each'}.")
    return sentences


def _typed(values: pa.Array, column: Column) -> pa.Array:
    """The values in the type that they had in the source."""
    return typed_texts(values) if column.type is None else values.cast(plain(column.type))


def typed_texts(values: pa.Array) -> pa.Array:
    """Values from a text file, which become numbers if all of them look like numbers."""
    for pattern, kind in ((WHOLE, pa.int64()), (NUMBER, pa.float64())):
        if values.null_count < len(values) and pc.all(pc.match_substring_regex(values, pattern)).as_py():
            return pc.utf8_trim_whitespace(values).cast(kind)
    return values


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of the same values in a layout that Arrow can index."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.string() if pa.types.is_string_view(kind) else kind
