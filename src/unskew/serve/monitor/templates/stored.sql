-- What a store holds as a whole: the fields of `Stored`.
WITH times AS (SELECT timestamp FROM events UNION ALL SELECT timestamp FROM recommendations)
SELECT
    (SELECT count(*) FROM all_events WHERE timestamp <= {{ latest }}) AS events,
    (SELECT count(*) FROM recommendations) AS recommendations,
    (SELECT min(timestamp) FROM times) AS "first",
    (SELECT max(timestamp) FROM times) AS "last",
    (SELECT count(*) FROM all_events WHERE timestamp > {{ latest }})
        + (SELECT count(*) FROM all_recommendations WHERE timestamp > {{ latest }}) AS future,
    (SELECT count(*) FROM recommendations WHERE fallback) AS fallbacks,
    (SELECT count(*) FROM showings) AS shown,
    (SELECT count(propensity) FROM positives) AS logged,
    (SELECT count(*) FROM positives WHERE unmatched) AS unmatched
