-- Items and users with the time of their first positive or event, also in the past of the store.
CREATE TABLE items AS
    SELECT item_id, CAST(row_number() OVER (ORDER BY item_id) - 1 AS INTEGER) AS code,
        min("first") AS "first", min(own) AS own, CAST(sum("before") AS BIGINT) AS "before"
    FROM (
        SELECT item_id, min(timestamp) AS "first", min(timestamp) AS own, 0 AS "before"
        FROM positives GROUP BY item_id
        UNION ALL SELECT DISTINCT item_id, NULL, NULL, 0 FROM showings
        UNION ALL SELECT item_id, "first", NULL, positives FROM past_items
    ) AS every GROUP BY item_id;
CREATE TABLE users AS
    SELECT user_id, min("first") AS "first", min(own) AS own
    FROM (
        SELECT user_id, min(timestamp) AS "first", min(timestamp) AS own FROM events GROUP BY user_id
        UNION ALL SELECT user_id, "first", NULL FROM past_users
    ) AS every GROUP BY user_id;
