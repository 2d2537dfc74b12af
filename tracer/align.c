/* Brings one rank's records onto rank 0's clock: whole intervals, each with its launch, by the role
 * of its CTA. */
#include "tracer/align.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Fits every rank's clocks. Ranks of one boot share CLOCK_MONOTONIC: their line is the identity,
 * exactly. */
int align_clocks(struct trace_data *d)
{
    static const uint8_t unknown[16];
    d->clocks = calloc(d->ranks, sizeof *d->clocks);
    if (!d->clocks)
        return -ENOMEM;
    for (uint32_t r = 0; r < d->ranks; r++) {
        const struct trace_part *p = &d->parts[r];
        struct trace_rank_clock *c = &d->clocks[r];
        int same =
            r == 0 || (memcmp(p->boot, unknown, 16) != 0 && !memcmp(p->boot, d->parts[0].boot, 16));
        c->host_used = calloc(p->host_samples + 1, 1);
        c->gpu_used = calloc(p->gpu_samples + 1, 1);
        if (!c->host_used || !c->gpu_used)
            return -ENOMEM;
        int rc = same ? 0 : clock_fit(&c->host, p->host_clock, p->host_samples, c->host_used);
        rc = rc ? rc : clock_fit(&c->gpu, p->gpu_clock, p->gpu_samples, c->gpu_used);
        if (rc)
            return rc;
        c->host.samples = p->host_samples;
    }
    return 0;
}

/* A host time of rank r on rank 0's clock, and an event's time. */
int64_t align_host(const struct trace_data *d, uint32_t r, uint64_t t)
{
    const int64_t limit =
        (int64_t)TRACE_MAX_TIME; /* false samples may map anywhere; differences must not overflow */
    int64_t mapped = d->clocks[r].host.used ? clock_map(&d->clocks[r].host, t) : (int64_t)t;
    return mapped > limit ? limit : mapped < -limit ? -limit : mapped;
}

static int64_t align_map_event(const struct trace_data *d, uint32_t r, uint64_t t)
{
    return align_host(d, r, d->clocks[r].gpu.used ? (uint64_t)clock_map(&d->clocks[r].gpu, t) : t);
}

/* The plan of a launch: record `at` of a track names it by the low bits of its id. Of several plans
 * that have these it is the one with the flags that the track waits for or raises before its next
 * launch; 0: there are no such flags. A record that names no plan means the only one. */
static uint32_t align_launch_plan(const struct trace_part *p, const struct mk_track *t, uint32_t at)
{
    uint32_t plan = p->plan_count == 1 ? p->plans[0].id : 0, named = 0;
    for (uint32_t i = 0; i < p->plan_count; i++)
        if ((p->plans[i].id & 15) == mk_event_cause_of(&t->events[at]) && !named++)
            plan = p->plans[i].id;
    if (named < 2)
        return plan;
    for (uint32_t j = at + 1; j < t->count; j++) {
        const uint32_t kind = mk_event_kind_of(&t->events[j]);
        if (kind == MK_EV_LAUNCH)
            break;
        for (uint32_t i = 0; i < p->plan_count && (kind == MK_EV_WAIT || kind == MK_EV_SIGNAL); i++)
            if (mk_event_argument(&t->events[j]) - p->plans[i].flag_base < p->plans[i].flag_count)
                return p->plans[i].id;
    }
    return 0;
}

static int align_launch_order(const void *x, const void *y)
{
    const struct align_launch *a = x, *b = y;
    return MK_ORDER(a->what, b->what) ?: MK_ORDER(a->start, b->start);
}

/* Whether two plans have ids with the same low bits. */
static int align_plans_alike(const struct trace_part *p)
{
    uint32_t bits = 0, twice = 0;
    for (uint32_t i = 0; i < p->plan_count; i++) {
        twice |= bits & 1u << (p->plans[i].id & 15);
        bits |= 1u << (p->plans[i].id & 15);
    }
    return twice != 0;
}

/* Appends the launches of one track to l[*count ..], those whose plan is known; no `l`: counts
 * all. */
static void align_track_launches(const struct trace_data *d, uint32_t rank,
                                 const struct mk_track *t, struct align_launch *l, uint64_t *count)
{
    for (uint32_t i = 0; i < t->count; i++) {
        const struct mk_event *e = &t->events[i];
        uint32_t plan = mk_event_kind_of(e) != MK_EV_LAUNCH ? 0
                        : l ? align_launch_plan(&d->parts[rank], t, i)
                            : 1;
        if (plan && l)
            l[*count] = (struct align_launch){align_map_event(d, rank, e->start), e->what, plan};
        *count += plan != 0;
    }
}

int align_find_launches(const struct trace_data *d, struct align_launches *out)
{
    uint64_t room = 0;
    if (!align_plans_alike(&d->parts[0]))
        return 0;
    for (int fills = 0; fills < 2; fills++) {
        for (uint32_t r = 0; r < d->ranks; r++)
            for (uint32_t n = 0; n < d->parts[r].track_count; n++)
                align_track_launches(d, r, &d->parts[r].tracks[n], out->known,
                                     fills ? &out->count : &room);
        if (!fills && !(out->known = malloc((room + 1) * sizeof *out->known)))
            return -ENOMEM;
    }
    qsort(out->known, out->count, sizeof *out->known, align_launch_order);
    return 0;
}

/* The plan of the known launch that the record may be of and whose start is the nearest; 0:
 * none. */
static uint32_t align_nearest_plan(const struct align_launches *of, uint32_t what, int64_t start)
{
    const struct align_launch *l = of->known;
    uint64_t at =
        MK_BISECT(i, of->count, l[i].what < what || (l[i].what == what && l[i].start < start));
    int after = at < of->count && l[at].what == what, before = at && l[at - 1].what == what;
    if (after && before)
        after = l[at].start - start < start - l[at - 1].start;
    return after ? l[at].plan : before ? l[at - 1].plan : 0;
}

static uint32_t align_role_of(const struct trace_data *d, uint32_t rank, uint32_t plan,
                              uint32_t cta)
{
    const struct trace_plan *p = data_plan(d, rank, plan);
    if (!p && d->parts[rank].plan_count)
        p = &d->parts[rank].plans[0];
    for (uint32_t role = 0; p && role < MK_ROLES; role++) {
        if (cta < p->problem.tuning.split.ctas[role])
            return role;
        cta -= p->problem.tuning.split.ctas[role];
    }
    return MK_COMPUTE;
}

/* Returns the launch's number, in order of discovery for now; 0: no memory. */
static uint32_t align_find_launch(struct trace_data *d, uint32_t plan, uint64_t epoch)
{
    uint32_t id = map_get(&d->launch_ids, launch_key(plan, epoch), 0);
    if (id)
        return id;
    if (mk_grow(&d->launches, d->launch_count, sizeof *d->launches))
        return 0;
    id = d->launch_count + 1;
    if (map_set(&d->launch_ids, launch_key(plan, epoch), id))
        return 0;
    d->launches[d->launch_count++] = (struct trace_launch){epoch, plan, id, INT64_MAX};
    return id;
}

/* The whole epoch of a record's low 24 bits: the nearest to the one before. */
static uint64_t align_widen(uint64_t before, uint32_t low)
{
    uint64_t epoch = (before & ~(uint64_t)0xffffff) | low;
    return before && epoch + 0x800000 < before ? epoch + 0x1000000 : epoch;
}

/* One track's records, on the common clock, intervals that touch made whole, each with its launch
 * and (in `roles`) the role of its CTA then. */
static int64_t align_events(struct trace_data *d, uint32_t rank, uint32_t track,
                            const struct align_launches *launches, struct trace_event *out,
                            uint8_t *roles)
{
    const struct trace_part *p = &d->parts[rank];
    const struct mk_track *t = &p->tracks[track];
    uint32_t cta = track / p->track_warps, plan = 0, launch = 0;
    uint64_t epoch = 0;
    uint32_t role = align_role_of(d, rank, 0, cta);
    int64_t count = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct mk_event *e = &t->events[i];
        uint32_t kind = mk_event_kind_of(e);
        if (kind == MK_EV_NONE)
            continue;
        int64_t start = align_map_event(d, rank, e->start);
        if (kind == MK_EV_LAUNCH) {
            plan = align_launch_plan(p, t, i);
            plan = plan ? plan : align_nearest_plan(launches, e->what, start);
            epoch = align_widen(epoch, mk_event_argument(e));
            launch = align_find_launch(d, plan, epoch);
            if (!launch)
                return -ENOMEM;
            role = align_role_of(d, rank, plan, cta);
        }
        if (launch && start < d->launches[launch - 1].start)
            d->launches[launch - 1].start = start;
        uint64_t end = e->start + e->ns;
        while (e->ns == UINT32_MAX && i + 1 < t->count && t->events[i + 1].what == e->what &&
               t->events[i + 1].start == end && end < TRACE_MAX_TIME) {
            e = &t->events[++i];
            end += e->ns;
        }
        int64_t stop = align_map_event(d, rank, end);
        roles[count] = (uint8_t)role;
        out[count++] = (struct trace_event){start, stop > start ? (uint64_t)(stop - start) : 0,
                                            launch, e->what};
    }
    return count;
}

/* Stable merge sort by start; runs that are in order already (the rule) cost one pass. */
static int align_sort_events(struct trace_event *e, uint64_t n)
{
    uint64_t i = 1;
    while (i < n && e[i - 1].start <= e[i].start)
        i++;
    if (i >= n)
        return 0;
    MK_FREED struct trace_event *other = malloc(n * sizeof *other);
    struct trace_event *from = e, *to = other;
    if (!other)
        return -ENOMEM;
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t lo = 0; lo < n; lo += 2 * width) {
            uint64_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n;
            for (uint64_t a = lo, b = mid, k = lo; k < hi; k++)
                to[k] =
                    a < mid && (b >= hi || from[a].start <= from[b].start) ? from[a++] : from[b++];
        }
        struct trace_event *swap = from;
        from = to, to = swap;
    }
    if (from != e)
        memcpy(e, from, n * sizeof *e);
    return 0;
}

/* CTAs of the rank's largest launch; executors may keep more tracks than that. */
static uint32_t align_most_ctas(const struct trace_part *p)
{
    uint32_t most = p->plan_count ? 0 : UINT32_MAX;
    for (uint32_t i = 0; i < p->plan_count; i++)
        most = mk_total_ctas(&p->plans[i].problem.tuning.split) > most
                   ? mk_total_ctas(&p->plans[i].problem.tuning.split)
                   : most;
    return most;
}

/* The leaves of one track: one for each role that its CTA took (plans may split CTAs differently).
 * A CTA without events is a leaf too: an empty row tells more than a missing one. */
int align_track(struct trace_data *d, uint32_t rank, uint32_t track,
                const struct align_launches *launches, struct leaf *leaves, uint32_t *count)
{
    const struct trace_part *p = &d->parts[rank];
    const struct mk_track *t = &p->tracks[track];
    MK_FREED struct trace_event *all = malloc((t->count + 1) * sizeof *all);
    MK_FREED uint8_t *roles = malloc(t->count + 1);
    int64_t n = all && roles ? align_events(d, rank, track, launches, all, roles) : -ENOMEM;
    uint32_t cta = track / p->track_warps, warp = track % p->track_warps, made = 0;
    /* an unused track: executors keep as many for every CTA, and for as many CTAs as fit */
    if (n == 0 && t->dropped == 0 && (warp > 0 || cta >= align_most_ctas(p)))
        return 0;
    for (uint32_t role = 0; n >= 0 && role < MK_ROLES; role++) {
        uint64_t mine = 0;
        for (int64_t i = 0; i < n; i++)
            mine += roles[i] == role;
        if (!mine && !(n == 0 && role == align_role_of(d, rank, 0, cta)))
            continue;
        struct leaf *l = &leaves[*count];
        *l = (struct leaf){role, cta, warp, all, mine, made ? 0 : t->dropped};
        if (mine < (uint64_t)n) {
            l->events = malloc((mine + 1) * sizeof *l->events);
            if (!l->events) {
                n = -ENOMEM;
                break;
            }
            mine = 0;
            for (int64_t i = 0; i < n; i++)
                if (roles[i] == role)
                    l->events[mine++] = all[i];
        } else {
            all = NULL; /* handed over */
        }
        (*count)++;
        made++;
        if (align_sort_events(l->events, l->count))
            n = -ENOMEM;
    }
    return n < 0 ? (int)n : 0;
}
