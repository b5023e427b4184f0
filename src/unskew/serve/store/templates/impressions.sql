-- The tables of `open_impressions`.
CREATE VIEW all_events AS SELECT * FROM {{ events }};
CREATE VIEW all_recommendations AS SELECT * FROM {{ recommendations }};
CREATE VIEW recommendations AS
    SELECT *, model = '{{ fallback }}' OR starts_with(model, '{{ fallback }}:') AS fallback {{ extra }}
    FROM all_recommendations WHERE timestamp <= {{ latest }};
CREATE VIEW events AS
    SELECT *, type IN ({{ positive }}) AS positive, type IN ({{ shown }}) AS shown, CASE
        WHEN recommendation_id IS NOT NULL THEN recommendation_id
        WHEN impression IS NOT NULL OR type IN ({{ shown }}) THEN 'event ' || event_id
    END AS impression_id {{ extra }}
    FROM all_events WHERE timestamp <= {{ latest }};
CREATE TABLE showings AS
    WITH recommended AS (
        SELECT user_id, recommendation_id AS impression_id, item.item_id AS item_id, timestamp,
            item.propensity AS propensity, item.exposed AS exposed, position
        FROM (
            SELECT * EXCLUDE (items), unnest(items) AS item, generate_subscripts(items, 1) AS position
            FROM recommendations
        ) AS listed
    ),
    reported AS (
        SELECT user_id, impression_id, item_id, timestamp, propensity, position, 1 AS source, sequence
        FROM events WHERE shown
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, NULL, position, 2, sequence
        FROM (
            SELECT * EXCLUDE (impression, item_id, position), unnest(impression) AS item_id,
                generate_subscripts(impression, 1) AS position
            FROM events WHERE impression IS NOT NULL
        ) AS listed
    ),
    -- An item counts once in an impression, by what is known best about it.
    distinct_reported AS (
        SELECT * FROM reported QUALIFY row_number() OVER (
            PARTITION BY user_id, impression_id, item_id ORDER BY source, timestamp, sequence, position
        ) = 1
    ),
    all_showings AS (
        SELECT *, TRUE AS recommended FROM recommended
        UNION ALL
        SELECT user_id, impression_id, item_id, timestamp, propensity, FALSE, position, FALSE
        FROM distinct_reported ANTI JOIN recommended USING (user_id, impression_id, item_id)
    ),
    answers AS (
        SELECT DISTINCT user_id, impression_id, item_id FROM events
        WHERE positive AND impression_id IS NOT NULL
    )
    SELECT s.*, a.item_id IS NOT NULL AS clicked {{ extra }}
    FROM all_showings AS s LEFT JOIN answers AS a USING (user_id, impression_id, item_id);
CREATE TABLE positives AS
    WITH matched AS (
        SELECT p.user_id, p.item_id, p.timestamp,
            CASE WHEN s.recommended THEN s.propensity ELSE coalesce(p.propensity, s.propensity) END
                AS propensity,
            coalesce(s.exposed, FALSE) AS exposed, coalesce(s.recommended, FALSE) AS recommended,
            -- A user to whom something else was recommended was not shown this item.
            s.item_id IS NULL AND k.recommendation_id IS NOT NULL AS unmatched,
            CASE WHEN NOT unmatched THEN p.impression_id END AS impression_id,
            CASE WHEN s.recommended THEN s.position ELSE coalesce(p.position, s.position) END AS position
        FROM (SELECT * FROM events WHERE positive) AS p
        LEFT JOIN showings AS s ON s.user_id = p.user_id AND s.impression_id = p.impression_id
            AND s.item_id = p.item_id
        LEFT JOIN (SELECT DISTINCT recommendation_id FROM recommendations) AS k
            ON k.recommendation_id = p.recommendation_id
    )
    SELECT * {{ extra }} FROM matched;
