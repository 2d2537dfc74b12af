-- Predicted beside measured times of plans: their errors, and whether plans of a shape come in the right order. validate.c fills `plan`; a row of
-- a query is a line of `mkernel sim --validate`, figure(digits, number[, '+']) is that or "-". Of two plans that differ by less than 5 % no measurement tells which is faster.

-- slow: how slow a plan was for its shape, drift taken out where the table says so (of_best). x, y: places by slow and by predicted, equal ones in the
-- middle of theirs, from the middle place.
CREATE TABLE placed AS
SELECT *, row_number() OVER (PARTITION BY shape ORDER BY error) - 1 AS place, count(*) OVER s AS plans, min(predicted) OVER s AS likes,
       min(slow) OVER s AS best, CASE WHEN min(of_best) OVER s > 0 THEN 1 ELSE min(slow) OVER s END AS whole,
       rank() OVER (PARTITION BY shape ORDER BY slow) - 1 + (count(*) OVER (PARTITION BY shape, slow) - count(*) OVER s) / 2.0 AS x,
       rank() OVER (PARTITION BY shape ORDER BY predicted) - 1 + (count(*) OVER (PARTITION BY shape, predicted) - count(*) OVER s) / 2.0 AS y
FROM (SELECT *, abs(predicted / ms - 1) AS error, CASE WHEN of_best > 0 THEN of_best ELSE ms END AS slow FROM plan)
WINDOW s AS (PARTITION BY shape);
CREATE INDEX placed_shape ON placed (shape, slow);

-- liked: measured time of the plan that is predicted best over the best's; the mean of plans predicted alike, so that the table's order does not
-- choose between them. rank: Spearman's correlation. formula: the formula's plan; said: one that names the shape.
CREATE TABLE of_shape AS
SELECT g.*, l.said, l.ranks, l.number, l.op, f.predicted / f.ms - 1 AS default_error, b.ms AS best_ms,
       CASE WHEN f.predicted <= likes_least * 1.05 THEN f.slow / f.whole ELSE liked END AS taken -- core/model/choose.c leaves the formula for 5 % alone
FROM (SELECT shape, count(*) AS plans, avg(error) FILTER (WHERE place IN ((plans - 1) / 2, plans / 2)) AS median, avg(error) AS mean, min(likes) AS likes_least,
             CASE WHEN count(*) > 2 AND sum(x * x) > 0 AND sum(y * y) > 0 THEN sum(x * y) / sqrt(sum(x * x) * sum(y * y)) END AS rank,
             avg(slow / whole) FILTER (WHERE predicted <= likes * 1.001) AS liked, max(id) FILTER (WHERE is_default) AS formula,
             min(id) FILTER (WHERE slow = best) AS fastest, min(id) AS first FROM placed GROUP BY shape) g
JOIN plan l ON l.id = coalesce(formula, first) JOIN plan b ON b.id = fastest LEFT JOIN placed f ON f.id = formula;

CREATE TABLE pairs AS
SELECT a.shape, count(*) AS apart, sum(a.predicted > b.predicted) AS ordered
FROM placed a JOIN placed b ON b.shape = a.shape AND a.slow > b.slow * 1.05 GROUP BY a.shape;

-- Of each operator, and (name all) of all; near: plans within 1.6 of their shape's best.
CREATE VIEW error AS
SELECT 'plan' AS kind, number, op, error FROM placed UNION ALL
SELECT 'near', p.number, p.op, error FROM placed p JOIN of_shape s USING (shape) WHERE p.ms <= 1.6 * s.best_ms UNION ALL
SELECT 'default', number, op, abs(default_error) FROM of_shape WHERE default_error IS NOT NULL;
CREATE TABLE spread AS
SELECT name, kind, count(*) AS count, avg(error) AS mean, max(error) AS worst, avg(error) FILTER (WHERE place IN ((n - 1) / 2, n / 2)) AS median
FROM (SELECT *, row_number() OVER (PARTITION BY name, kind ORDER BY error) - 1 AS place, count(*) OVER (PARTITION BY name, kind) AS n
      FROM (SELECT op AS name, kind, error FROM error UNION ALL SELECT 'all', kind, error FROM error)) GROUP BY name, kind;
CREATE TABLE total AS
SELECT t.*, p.count AS plans, p.median, p.mean, p.worst, n.median AS near_median, n.mean AS near_mean, coalesce(d.count, 0) AS defaults,
       d.median AS default_median, d.worst AS default_worst
FROM (SELECT name, min(number) AS number, count(*) AS shapes, avg(rank) AS rank, sum(coalesce(apart, 0)) AS apart, sum(coalesce(ordered, 0)) AS ordered,
             sum(plans > 1) AS choices, sum(plans > 1 AND liked <= 1.05) AS liked_within, sum(plans > 1 AND taken <= 1.05) AS taken_within
      FROM (SELECT op AS name, * FROM of_shape UNION ALL SELECT 'all', * FROM of_shape) LEFT JOIN pairs USING (shape) GROUP BY name) t
JOIN spread p ON p.name = t.name AND p.kind = 'plan' JOIN spread n ON n.name = t.name AND n.kind = 'near'
LEFT JOIN spread d ON d.name = t.name AND d.kind = 'default';

-- ---- lines ----

SELECT '
errors in per cent; right: share of pairs of plans that differ by more than 5 % that are predicted in their order; liked: the plan predicted to be best, its measured time over the best''s; taken: the same where the formula''s plan is left for 5 % only
op         shape              ranks plans   median   mean   default   rank  right   liked   taken';
SELECT printf('%-10s %-18s %-5s %5d %8s %6s %9s %6s %6s %7s %7s', op, said, ranks, plans, figure(1, 100 * median), figure(1, 100 * mean),
              figure(1, 100 * default_error, '+'), figure(2, rank), figure(2, 1.0 * ordered / apart), figure(3, liked), figure(3, taken))
FROM of_shape LEFT JOIN pairs USING (shape) ORDER BY shape;
SELECT '';
SELECT printf('%-10s %d plans of %d shapes: error median %s %%, mean %s %%, worst %s %%; of plans within 1.6 of the best %s and %s %%
%-10s default plans: median %s %%, worst %s %%; rank correlation within a shape %s; of %d pairs that differ by more than 5 %% %d are predicted in their order; the plan liked best within 1.05 of the best at %d of %d, the one that would be taken at %d',
              name, plans, shapes, figure(1, 100 * median), figure(1, 100 * mean), figure(0, 100 * worst), figure(1, 100 * near_median),
              figure(1, 100 * near_mean), '', figure(1, 100 * default_median), figure(1, 100 * default_worst), figure(2, rank), apart, ordered,
              liked_within, choices, taken_within)
FROM total ORDER BY name = 'all', number;
