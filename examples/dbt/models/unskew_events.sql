{{ config(materialized="external", location="unskew_events.parquet") }}

-- One row per event, with the columns that `unskew prepare` knows. No counts, and no values that were not known
-- at the time of the event.
SELECT
    user_id,
    item_id,
    CAST(timestamp AS TIMESTAMPTZ) AS timestamp,
    event_type,
    category
FROM '{{ var("raw_events") }}'
WHERE user_id IS NOT NULL
  AND item_id IS NOT NULL
  AND event_type IN ('view', 'cart', 'purchase')
