"""Published data sets whose files are not plain tables: MIND, Open Bandit, KuaiRand and Amazon's ratings."""

import re
from dataclasses import replace

import pyarrow as pa

from unskew.core.errors import BadInput
from unskew.data.log.preparation import Reading
from unskew.data.reading.columns import Column, Source, columns_of
from unskew.data.reading.engines import FILE, Scan, identifier
from unskew.data.reading.files import check_width


def mind(name: str, files: list[str], reading: Reading) -> Source:
    """MIND's behaviors.tsv. Each line has an impression such as `N1-0 N2-1` (N1 was shown and not clicked, N2
    was clicked) and the clicks of the user before the log began, in order but without dates.

    Every file numbers its impressions from 1, so the time becomes a part of their names.
    """
    features = reading.item_features or reading.user_features
    for setting, what in ((reading.tests, "named tests"), (features, "features")):
        if setting is not None:
            without = f"MIND's format has no columns for {what}"
            raise BadInput(f"{name}: {without}; read it as a table with such a column")
    columns = ["impression", "user", "time", "history", "impressions"]
    schema, tolerant = pa.schema([(column, pa.string()) for column in columns]), reading.skip_bad_rows
    scan = Scan("text", schema, columns, tuple(files), "\t", "", header=False, tolerant=tolerant)
    check_width(files[0], len(columns), "\t")

    def derive(relation: str, keep: str) -> str:
        seconds = 'CAST(unix_micros(american_time("time")) / 1000000 AS BIGINT)'
        shown = f'(SELECT impression, "user", history, impressions{keep}, {seconds} AS t FROM {relation})'
        pair = "'^(.*)-([01])$'"
        none_kept = keep and ", NULL AS " + keep.removeprefix(", ")
        # Later impressions repeat the history, so only that of a user's first impression is read. Its clicks
        # get dates one second apart, ending just before the first impression of the whole log.
        return f"""(
            SELECT impression || '@' || CAST(t AS STRING) AS impression, "user",
                regexp_extract(shown, {pair}, 1) AS item, t,
                TRY_CAST(regexp_extract(shown, {pair}, 2) AS DOUBLE) AS clicked{keep}
            FROM (
                SELECT impression, "user", t{keep}, explode(split(trim(impressions), ' ')) AS shown
                FROM {shown} AS listed
            ) AS pairs
            UNION ALL
            SELECT CAST(NULL AS STRING) AS impression, "user", split_part(history, ' ', k) AS item,
                first - words + k - 1 AS t, 1.0 AS clicked{none_kept}
            FROM (
                SELECT "user", history, words, first, explode(sequence(1, words)) AS k
                FROM (
                    SELECT "user", history, length(history) - length(replace(history, ' ', '')) + 1 AS words
                    FROM (
                        SELECT "user", trim(COALESCE(history, '')) AS history,
                            row_number() OVER (PARTITION BY "user" ORDER BY t, COALESCE(history, '')) AS place
                        FROM {shown} AS a WHERE t IS NOT NULL
                    ) AS b WHERE place = 1 AND history <> ''
                ) AS past CROSS JOIN (SELECT min(t) AS first FROM {shown} AS c) AS start
            ) AS clicks WHERE split_part(history, ' ', k) <> ''
        )"""

    roles = {"user": Column('"user"', "text", "user"), "item": Column("item", "text", "impressions")}
    roles |= {"time": Column("t", "int", "time"), "label": Column("clicked", "float", "impressions")}
    roles |= {"impression_id": Column("impression", "text", "impression")}
    return Source(name, scan, roles, derive=derive)


def open_bandit(name: str, scan: Scan, reading: Reading) -> Source:
    """Open Bandit has features of users instead of ids: all rows with the same features become one user."""
    features = [place for place, column in enumerate(scan.names) if column.startswith("user_feature_")]
    if not features and reading.user is None:
        raise BadInput(
            f"{name}: no columns 'user_feature_*', so this is not Open Bandit; name the format and the "
            "columns"
        )
    source = columns_of(scan, replace(reading, user=reading.user or scan.names[features[0]]), name)
    if reading.user is None:
        parts = ", ".join(identifier(scan.schema.names[place]) for place in features)
        source.roles["user"] = Column(f"concat_ws('|', {parts})", "text", "user_feature_*")
    # The folders are POLICY/CAMPAIGN/CAMPAIGN.csv.
    return _exposed_by_name(source, "(^|/)random/[^/]+/[^/]+$", "the folder's name")


def kuairand(source: Source) -> Source:
    """KuaiRand keeps the randomly exposed rows in files of their own, `log_random*`."""
    return _exposed_by_name(source, "(^|/)log_random[^/]*$", "the file's name")


def _exposed_by_name(source: Source, pattern: str, what: str) -> Source:
    """The rows of files whose names match a pattern were exposed at random, unless a column says so."""
    if "exposed" not in source.roles:
        condition = f"CASE WHEN regexp_like({FILE}, '{pattern}') THEN 1 ELSE 0 END"
        source.roles["exposed"] = Column(condition, "int", what)
    return source


def amazon(source: Source) -> Source:
    """Amazon's ratings go from 1 to 5, and 4 and 5 are positive unless the caller says otherwise."""
    return replace(source, positive=4 if source.positive is None else source.positive, labels=(1, 5))


def is_amazon_rating(fields: list[str]) -> bool:
    """Whether the first line is one of Amazon's ratings, whose files have no header."""
    return len(fields) == 4 and bool(re.fullmatch(r"[1-5](\.0)?", fields[2])) and fields[3].strip().isdigit()


def amazon_columns(fields: list[str]) -> list[str]:
    """The names of the columns of Amazon's ratings, from the fields of the first line."""
    # The files of 2014 have the user first, those of 2018 the item. A product code has exactly ten
    # characters; the code of a reviewer never has.
    first = ["item", "user"] if len(fields[0]) == 10 != len(fields[1]) else ["user", "item"]
    return [*first, "rating", "timestamp"]
