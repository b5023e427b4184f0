-- The figures of each window from the number {{ first }} on, one row per window; null is not known.
CREATE VIEW event_figures AS
    SELECT "window", count(*) AS events, count(*) FILTER (positive) AS positives,
        count(DISTINCT user_id) AS users, count(DISTINCT item_id) FILTER (positive) AS items
    FROM events WHERE "window" >= {{ first }} GROUP BY "window";
CREATE VIEW recommendation_figures AS
    SELECT "window", count(*) AS recommendations, avg(CAST(fallback AS DOUBLE)) AS fallback
    FROM recommendations WHERE "window" >= {{ first }} GROUP BY "window";
CREATE VIEW showing_figures AS
    SELECT "window", count(*) AS shown,
        avg(CAST(clicked AS DOUBLE)) FILTER (recommended) AS click_rate,
        avg(CAST(exposed AS DOUBLE)) FILTER (recommended) AS random,
        median((timestamp - "first") / 86400000000.0) FILTER ("first" <= timestamp) AS age_shown
    FROM showings JOIN items USING (item_id) WHERE "window" >= {{ first }} GROUP BY "window";
-- Kish's effective sample size, (sum w)^2 / sum w^2, as a fraction of the rows.
CREATE VIEW positive_figures AS
    SELECT "window", count(propensity) AS logged,
        sum(1 / propensity) ** 2 / sum(1 / propensity ** 2) / nullif(count(propensity), 0) AS ess,
        median((timestamp - "first") / 86400000000.0) AS age_clicked
    FROM positives JOIN items USING (item_id) WHERE "window" >= {{ first }} GROUP BY "window";
-- A new user or item came first in this store, and was not known before either.
{% for name in ["users", "items"] %}
CREATE VIEW new_{{ name }} AS
    SELECT {{ own }} AS "window", count(*) AS new_{{ name }}
    FROM {{ name }} WHERE {{ own }} = {{ first_ever }} AND {{ own }} >= {{ first }} GROUP BY 1;
{% endfor %}
CREATE VIEW figures AS
    SELECT * FROM event_figures
    {% for view in ["recommendation_figures", "showing_figures", "positive_figures", "new_users", "new_items"] %}
    FULL JOIN {{ view }} USING ("window")
    {% endfor %}
    ;
CREATE TABLE counted AS
    SELECT "window", code, sum(shown) AS shown, sum(clicked) AS clicked FROM (
        SELECT "window", item_id, 1 AS shown, 0 AS clicked FROM showings WHERE "window" >= {{ first }}
        UNION ALL SELECT "window", item_id, 0, 1 FROM positives WHERE "window" >= {{ first }}
    ) AS every JOIN items USING (item_id) GROUP BY ALL;
