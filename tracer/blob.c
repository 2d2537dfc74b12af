/* A rank's part of a trace as bytes, and the way back from bytes that may be damaged or hostile.
 *
 * Sections follow each other, each begun at a multiple of 16: head, track table, events, messages,
 * clock samples, plans; a plan is its head, then tiles, chunks and flags. The records are the
 * structs themselves: all ranks of a job run the same build on the same kind of CPU (the
 * bootstrap's version check), and `head.layout` catches what differs all the same. */
#include "tracer/part.h"

#include "core/comm/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRACKS (1u << 16)
#define MAX_CTAS (1u << 16)
#define MAX_BYTES ((uint64_t)1 << 40)

struct head {
    char magic[8];
    uint64_t bytes;
    uint32_t layout; /* sizes of the records, folded */
    uint32_t nodes, gpus, rank;
    uint32_t track_count, track_warps, plan_count, host_samples, gpu_samples, unused;
    uint64_t message_count, messages_dropped, gpu_residual, padding;
    uint8_t boot[16];
    char host[64], device[128];
};

struct track_head {
    uint64_t dropped;
    uint32_t count, unused;
};

struct plan_head {
    struct trace_plan plan; /* its pointers mean: is there (non-NULL) or not */
};

static const char magic[8] = "mktrace1";

static uint32_t layout(void)
{
    return (uint32_t)(sizeof(struct head) << 24 ^ sizeof(struct mk_event) << 18 ^
                      sizeof(struct mk_message) << 12 ^ sizeof(struct plan_head) << 9 ^
                      sizeof(struct mk_tile) << 5 ^ sizeof(struct mk_flag_meaning));
}

/* Bytes written one after the other; the first pass (at NULL) only counts them. */
struct writer {
    char *at;
    size_t bytes;
};

static void blob_put(struct writer *w, const void *data, size_t bytes)
{
    if (w->at && bytes)
        memcpy(w->at + w->bytes, data, bytes);
    w->bytes += bytes;
}

static void blob_align(struct writer *w)
{
    static const char zeros[16];
    blob_put(w, zeros, (16 - w->bytes % 16) % 16);
}

static void blob_put_section(struct writer *w, const void *data, size_t bytes)
{
    blob_put(w, data, bytes);
    blob_align(w);
}

static void blob_write_part(struct writer *w, const struct trace_part *p, size_t total)
{
    struct head h = {.bytes = total,
                     .layout = layout(),
                     .nodes = p->topo.nodes,
                     .gpus = p->topo.gpus,
                     .rank = p->topo.rank,
                     .track_count = p->track_count,
                     .track_warps = p->track_warps,
                     .plan_count = p->plan_count,
                     .host_samples = p->host_samples,
                     .gpu_samples = p->gpu_samples,
                     .message_count = p->message_count,
                     .messages_dropped = p->messages_dropped,
                     .gpu_residual = p->gpu_residual};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.boot, p->boot, sizeof h.boot);
    memcpy(h.host, p->host, sizeof h.host);
    memcpy(h.device, p->device, sizeof h.device);
    blob_put_section(w, &h, sizeof h);
    for (uint32_t i = 0; i < p->track_count; i++) {
        struct track_head t = {.dropped = p->tracks[i].dropped, .count = p->tracks[i].count};
        blob_put(w, &t, sizeof t);
    }
    for (uint32_t i = 0; i < p->track_count; i++)
        blob_put(w, p->tracks[i].events, p->tracks[i].count * sizeof(struct mk_event));
    blob_put_section(w, p->messages, p->message_count * sizeof *p->messages);
    blob_put_section(w, p->host_clock, p->host_samples * sizeof *p->host_clock);
    blob_put_section(w, p->gpu_clock, p->gpu_samples * sizeof *p->gpu_clock);
    for (uint32_t i = 0; i < p->plan_count; i++) {
        struct plan_head plan = {.plan = p->plans[i]};
        if (p->topo.rank)
            plan.plan.tiles = NULL, plan.plan.chunks = NULL;
        blob_put_section(w, &plan, sizeof plan);
        if (plan.plan.tiles)
            blob_put_section(w, plan.plan.tiles, plan.plan.tile_count * sizeof *plan.plan.tiles);
        if (plan.plan.chunks)
            blob_put_section(w, plan.plan.chunks, plan.plan.chunk_count * sizeof *plan.plan.chunks);
        blob_put_section(w, plan.plan.flags, plan.plan.flag_count * sizeof *plan.plan.flags);
    }
}

int part_pack(const struct trace_part *part, void **blob, size_t *bytes)
{
    struct writer w = {0};
    blob_write_part(&w, part, 0);
    size_t total = w.bytes;
    w = (struct writer){.at = malloc(total)};
    if (!w.at)
        return -ENOMEM;
    blob_write_part(&w, part, total);
    *blob = w.at;
    *bytes = total;
    return 0;
}

/* What is left to read. */
struct reader {
    const char *at;
    size_t left;
};

/* The next `count` records of `size` bytes, NULL where there are not that many. `count` is
 * foreign. */
static const void *blob_take(struct reader *r, uint64_t count, size_t size)
{
    if (count > r->left / size)
        return NULL;
    size_t bytes = count * size, padded = (bytes + 15) & ~(size_t)15;
    if (padded > r->left)
        return NULL;
    const void *at = r->at;
    r->at += padded;
    r->left -= padded;
    return at;
}

static int blob_good_text(const char *text, size_t size)
{
    return memchr(text, 0, size) != NULL;
}

static int blob_parse_tracks(struct trace_part *p, struct reader *r)
{
    const struct track_head *t = blob_take(r, p->track_count, sizeof *t);
    if (!t)
        return -EPROTO;
    for (uint32_t i = 0; i < p->track_count; i++) {
        const struct mk_event *e = blob_take(r, t[i].count, sizeof *e);
        if (!e || t[i].dropped >= TRACE_MAX_TIME)
            return -EPROTO;
        for (uint32_t j = 0; j < t[i].count; j++)
            if (e[j].start >= TRACE_MAX_TIME || mk_event_kind_of(&e[j]) >= MK_EV_KINDS)
                return -EPROTO;
        /* struct mk_track serves writers too; this one is only read. */
        p->tracks[i] = (struct mk_track){(struct mk_event *)(uintptr_t)e, t[i].count, t[i].count,
                                         t[i].dropped};
    }
    return 0;
}

static int blob_parse_messages(struct trace_part *p, struct reader *r)
{
    const struct mk_message *m = blob_take(r, p->message_count, sizeof *m);
    if (!m)
        return -EPROTO;
    for (uint64_t i = 0; i < p->message_count; i++)
        if (m[i].seen >= TRACE_MAX_TIME || m[i].posted >= TRACE_MAX_TIME ||
            m[i].completed >= TRACE_MAX_TIME || m[i].bytes >= MAX_BYTES ||
            m[i].peer >= mk_world(&p->topo) || m[i].epoch >= TRACE_MAX_TIME ||
            m[i].sequence >= TRACE_MAX_TIME || m[i].ring >= MAX_CTAS)
            return -EPROTO;
    p->messages = m;
    return 0;
}

static int blob_parse_samples(const struct trace_clock_sample **out, uint32_t count,
                              struct reader *r)
{
    const struct trace_clock_sample *s = blob_take(r, count, sizeof *s);
    if (!s)
        return -EPROTO;
    for (uint32_t i = 0; i < count; i++)
        if (s[i].local >= TRACE_MAX_TIME || s[i].remote >= TRACE_MAX_TIME ||
            s[i].bracket >= TRACE_MAX_TIME)
            return -EPROTO;
    *out = s;
    return 0;
}

static int blob_parse_plan(struct trace_plan *out, struct reader *r)
{
    const struct plan_head *h = blob_take(r, 1, sizeof *h);
    if (!h)
        return -EPROTO;
    *out = h->plan;
    const struct mk_problem *q = &out->problem;
    int has_tiles = out->tiles != NULL, has_chunks = out->chunks != NULL;
    out->tiles = NULL, out->chunks = NULL, out->flags = NULL;
    for (int role = 0; role < MK_ROLES; role++)
        if (q->tuning.split.ctas[role] > MAX_CTAS)
            return -EPROTO;
    if (q->op >= MK_OPS || !out->id || out->id > COMM_MOST_PLAN_IDS || q->m > INT64_MAX ||
        q->n > INT64_MAX || q->k > INT64_MAX || out->nvlink_bytes > INT64_MAX ||
        out->network_bytes > INT64_MAX || out->flag_base > UINT32_MAX - out->flag_count ||
        !blob_good_text(out->shape, sizeof out->shape))
        return -EPROTO;
    if (has_tiles && !(out->tiles = blob_take(r, out->tile_count, sizeof *out->tiles)))
        return -EPROTO;
    if (has_chunks && !(out->chunks = blob_take(r, out->chunk_count, sizeof *out->chunks)))
        return -EPROTO;
    for (uint32_t i = 0; has_chunks && i < out->chunk_count; i++)
        if (out->chunks[i].bytes >= MAX_BYTES)
            return -EPROTO;
    const struct mk_flag_meaning *f = blob_take(r, out->flag_count, sizeof *f);
    if (!f)
        return -EPROTO;
    for (uint32_t i = 0; i < out->flag_count; i++)
        if (!blob_good_text(f[i].text, sizeof f[i].text))
            return -EPROTO;
    out->flags = f;
    return 0;
}

static int blob_parse_head(struct trace_part *p, const struct head *h, size_t bytes)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->bytes != bytes || h->layout != layout())
        return -EPROTO;
    if (!h->nodes || !h->gpus || h->gpus > MK_MAX_LOCAL || h->nodes > MK_MAX_RANKS ||
        h->nodes * h->gpus > MK_MAX_RANKS || h->rank >= h->nodes * h->gpus)
        return -EPROTO;
    if (h->track_count > MAX_TRACKS || !h->track_warps || h->track_count % h->track_warps ||
        h->plan_count > COMM_MOST_PLANS || h->messages_dropped >= TRACE_MAX_TIME ||
        h->gpu_residual >= TRACE_MAX_TIME || h->host_samples > 2 * TRACE_MAX_SAMPLES ||
        h->gpu_samples > 2 * TRACE_MAX_SAMPLES)
        return -EPROTO;
    if (!blob_good_text(h->host, sizeof h->host) || !blob_good_text(h->device, sizeof h->device))
        return -EPROTO;
    p->topo = (struct mk_topo){h->nodes, h->gpus, h->rank};
    memcpy(p->boot, h->boot, sizeof p->boot);
    memcpy(p->host, h->host, sizeof p->host);
    memcpy(p->device, h->device, sizeof p->device);
    p->track_count = h->track_count;
    p->track_warps = h->track_warps;
    p->message_count = h->message_count;
    p->messages_dropped = h->messages_dropped;
    p->gpu_residual = h->gpu_residual;
    p->host_samples = h->host_samples;
    p->gpu_samples = h->gpu_samples;
    return 0;
}

int part_parse(struct trace_part *part, const void *blob, size_t bytes)
{
    struct reader r = {blob, bytes};
    memset(part, 0, sizeof *part);
    const struct head *h = blob_take(&r, 1, sizeof *h);
    int rc = h ? blob_parse_head(part, h, bytes) : -EPROTO;
    if (rc)
        goto bad;
    part->tracks = calloc(part->track_count + 1, sizeof *part->tracks);
    part->plans = calloc(h->plan_count + 1, sizeof *part->plans);
    if (!part->tracks || !part->plans) {
        rc = -ENOMEM;
        goto bad;
    }
    rc = blob_parse_tracks(part, &r);
    rc = rc ? rc : blob_parse_messages(part, &r);
    rc = rc ? rc : blob_parse_samples(&part->host_clock, part->host_samples, &r);
    rc = rc ? rc : blob_parse_samples(&part->gpu_clock, part->gpu_samples, &r);
    for (uint32_t i = 0; !rc && i < h->plan_count; i++, part->plan_count = i) {
        rc = blob_parse_plan(&part->plans[i], &r);
        for (uint32_t k = 0; !rc && k < i; k++)
            rc = part->plans[k].id == part->plans[i].id ? -EPROTO : 0;
    }
    if (!rc && r.left)
        rc = -EPROTO;
    if (!rc)
        return 0;
bad:
    part_free(part);
    return rc;
}
