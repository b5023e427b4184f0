-- The lists of an A/B test and what came of them, from the tables of `open_impressions`.
CREATE TABLE test_lists AS
    WITH answers AS (
        SELECT e.user_id, e.impression_id, min(e.timestamp) AS answered
        FROM events AS e JOIN showings AS s USING (user_id, impression_id, item_id)
        WHERE e.positive AND s.recommended
        GROUP BY ALL
    )
    SELECT r.variant, r.user_id, r.recommendation_id, r.timestamp, r.took_ms, r.fallback, r.version, a.answered
    FROM recommendations AS r
    LEFT JOIN answers AS a ON a.user_id = r.user_id AND a.impression_id = r.recommendation_id
    WHERE r.variant IS NOT NULL AND r.timestamp >= {{ since }};
-- A user who had lists of several variants belongs to none of them.
CREATE TABLE test_users AS
    SELECT user_id, any_value(variant) AS variant, min(timestamp) AS first, max(timestamp) AS last,
        row_number() OVER (ORDER BY user_id) - 1 AS number
    FROM test_lists GROUP BY user_id HAVING count(DISTINCT variant) = 1;
