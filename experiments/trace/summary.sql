-- The lines of `mkernel trace summary`, statement by statement: a row is a line. Beside SQLite's functions there are those of
-- trace_summary.c: time_of(ns[, like]), bytes_of(bytes), s_of(count) for "s" or "", bar_of(compute only, both, comm only).

SELECT printf('%s %s%s: %s, %s executor%s, %d node%s x %d rank%s%s', op, shape,
              (SELECT printf(' and %d other plan%s', more, s_of(more)) FROM (SELECT count(DISTINCT plan) - 1 AS more FROM launch) WHERE more > 0),
              source, executor, ', engine ' || engine, nodes,
              s_of(nodes), gpus, s_of(gpus), ', ' || nullif(fabric, '') || coalesce(' on ' || nullif(nic, ''), ''))
FROM (SELECT *, CASE source WHEN 'measured' THEN (SELECT group_concat(DISTINCT unit) FROM metric WHERE name GLOB 'plan *: engine') END
      AS engine FROM run);
SELECT printf('%d launch%s, %d event%s, %d message%s in %s; %s; clocks within %s', launches, CASE launches WHEN 1 THEN '' ELSE 'es' END,
              events, s_of(events), messages, s_of(messages), time_of(duration_ns),
              CASE WHEN dropped THEN dropped || ' DROPPED (figures are of what was kept)' ELSE 'nothing dropped' END,
              time_of(coalesce(residual_ns, 0)))
FROM (SELECT *, (SELECT count(*) FROM launch) AS launches FROM run);

-- The ideal's share of the median launch, with its range over launches; a share that is smaller than what launches differ by is none.
SELECT printf('median launch: slowest rank %s, ideal %s (%s)', time_of(ns), time_of(ideal, ns),
              CASE WHEN (SELECT max(basis = 'peak') FROM launches) THEN 'at the machine''s peak rates' ELSE 'if nothing ever waited' END) ||
       CASE WHEN count = 1 THEN printf(', ideal / slowest rank %.1f %% (of one launch)', share)
            WHEN told THEN printf(', ideal / slowest rank %.1f %%
  %.1f to %.1f %% over %d launches', share, least_share, most_share, count)
            ELSE printf('
  their ratio says nothing, as launches differ by more: %s to %s over %d launches', time_of(least_ns, ns), time_of(most_ns, ns), count)
       END || printf('
  first start to last end %s; slowest launch: slowest rank %s', time_of(whole, longest), time_of(longest))
FROM (SELECT max(value) FILTER (WHERE place = 100) AS ns, max(value) FILTER (WHERE place = 101) AS ideal,
             max(value) FILTER (WHERE place = 102) AS share, max(value) FILTER (WHERE place = 103) AS whole,
             max(value) FILTER (WHERE place = 104) AS longest FROM figures WHERE section = 'launch'), launch_spread
WHERE ns IS NOT NULL;

-- Of several plans, as of a training step, each with the slowest ranks' time.
SELECT '
launches by plan                      count       total      median       ideal' FROM (SELECT count(DISTINCT plan) AS plans FROM launch) WHERE plans > 1;
SELECT printf('  %-32s  %7d  %10s  %10s  %10s', op || ' ' || shape, count, time_of(total), time_of(slowest_ns), time_of(ideal_ns))
FROM (SELECT *, row_number() OVER (PARTITION BY plan ORDER BY slowest_ns) AS place, count(*) OVER (PARTITION BY plan) AS count,
             sum(slowest_ns) OVER (PARTITION BY plan) AS total FROM launches) l JOIN plan p ON p.id = l.plan
WHERE place = count / 2 + 1 AND (SELECT count(DISTINCT plan) FROM launch) > 1 ORDER BY total DESC LIMIT 20;

SELECT '
overlap, % of launch time' || CASE WHEN count(*) > 8 THEN ' (ranks with the most exposed communication)' ELSE '' END || '
  rank  compute only   both  comm only   idle' FROM overlap;
SELECT printf('  %4d  %12.1f  %5.1f  %9.1f  %5.1f  %s', rank, compute_only, both, comm_only, idle, bar_of(compute_only, both, comm_only))
FROM (SELECT * FROM (SELECT * FROM overlap o ORDER BY o.comm_only DESC LIMIT 8) ORDER BY rank);
SELECT CASE WHEN (SELECT count(*) FROM overlap) > 1 AND compute_only IS NOT NULL THEN
            printf('   all  %12.1f  %5.1f  %9.1f  %5.1f  %s
', compute_only, both, comm_only, idle, bar_of(compute_only, both, comm_only)) ELSE '' END ||
       CASE WHEN exposed IS NULL THEN '  no communication was recorded'
            ELSE printf('  exposed communication: %.1f %% of it, on the worst rank %.1f %%  (# compute, @ both, = communication)', exposed,
                        (SELECT max(exposed) FROM exposed)) END
FROM (SELECT max(value) FILTER (WHERE place = 200) AS compute_only, max(value) FILTER (WHERE place = 201) AS both,
             max(value) FILTER (WHERE place = 202) AS comm_only, max(value) FILTER (WHERE place = 203) AS idle,
             max(value) FILTER (WHERE place = 204) AS exposed FROM figures WHERE section = 'overlap');

SELECT '
CTAs in launches, %     tile   copy  reduce  command   wait   other';
SELECT printf('  %-18s  %7.1f %6.1f %7.1f %8.1f %6.1f %7.1f', role, tile, copy, reduce, command, wait,
              max(0, 100 - tile - copy - reduce - command - wait))
FROM (SELECT role, coalesce(max(share) FILTER (WHERE kind = 'tile'), 0) AS tile, coalesce(max(share) FILTER (WHERE kind = 'copy'), 0) AS copy,
             coalesce(max(share) FILTER (WHERE kind = 'reduce'), 0) AS reduce, coalesce(max(share) FILTER (WHERE kind = 'command'), 0) AS command,
             coalesce(max(share) FILTER (WHERE kind = 'wait'), 0) AS wait FROM role_share GROUP BY role_id);

SELECT '
stalls by role and cause          count       total    longest' || CASE WHEN coalesce(max(ns), 0) > 0 THEN '' ELSE '
  no CTA waited' END FROM stalls;
SELECT printf('  %-12s  %-13s  %9d  %10s %10s', role, cause, sum(count), time_of(sum(ns)), time_of(max(longest_ns)))
FROM stalls GROUP BY role, cause HAVING sum(ns) > 0 ORDER BY sum(ns) DESC LIMIT 6;

SELECT CASE WHEN messages THEN '
messages by stage                 count      median        p99    longest' ELSE '
messages: none crossed the network' END FROM run;
SELECT printf('  %-26s  %10d  %10s %10s %10s', name, count, time_of(median_ns), time_of(p99_ns), time_of(max_ns))
FROM stage WHERE (SELECT messages FROM run);

SELECT '
worst stalls' || CASE WHEN EXISTS (SELECT * FROM worst_stalls) THEN '' ELSE '
  none' END;
SELECT printf('  %9s at %9s  rank %d CTA %d (%s) for %s%s', time_of(ns), time_of(start), rank, cta, role,
              coalesce(nullif(waited_for, ''), cause), ', message ' || message)
FROM worst_stalls LIMIT 5;

SELECT '
critical path: ' || coalesce((SELECT group_concat(printf('%.1f %% %s (%s)', share, what, role), ', ')
                              FROM (SELECT * FROM critical_share LIMIT 4)), 'none');
SELECT 'busiest link: ' || coalesce((SELECT printf('%s %s of rank %d, %s, busy %.1f %% of the run, %s/s while busy', kind, direction, rank,
                                                   bytes_of(bytes), busy, bytes_of(bytes * 1e9 / max(1, busy_ns)))
                                     FROM busiest_link LIMIT 1), 'none was used');
SELECT printf('dropped: rank %d, %s: %d', rank, "where", dropped) FROM drops ORDER BY dropped DESC LIMIT 4;
-- A GPU's clock is mapped as it runs: its samples are not kept.
SELECT printf('worst clock: rank %d''s %s clock, within %s%s; order inside that is not known', rank, domain, time_of(residual_ns),
              CASE WHEN samples THEN printf(' (%d of %d samples)', used, samples) ELSE '' END)
FROM clock_quality WHERE residual_ns > 0 ORDER BY residual_ns DESC LIMIT 1;
