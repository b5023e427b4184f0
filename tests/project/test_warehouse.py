"""The SQL of the dbt example gives a log, by DuckDB alone."""

import re
from pathlib import Path

import duckdb

import unskew

DBT = Path(__file__).parents[2] / "examples" / "dbt"
CLICKS = DBT.parent / "clicks.csv"


def test_the_model_of_dbt_gives_a_log(tmp_path: Path) -> None:
    text = (DBT / "models" / "unskew_events.sql").read_text(encoding="utf-8")
    sql = text.replace('{{ var("raw_events") }}', str(CLICKS))
    sql = re.sub(r"\{\{ config\(.*?\) \}\}", "", sql)
    assert "{{" not in sql
    events = duckdb.sql(sql).to_arrow_table()
    log = unskew.prepare(events, tmp_path / "log", type="event_type", target="purchase", context="view,cart")
    ((bought,),) = duckdb.sql(f"SELECT count(*) FROM '{CLICKS}' WHERE event_type = 'purchase'").fetchall()
    assert log.positives + log.metadata.removed.duplicates == bought
