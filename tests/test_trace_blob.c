/* A rank's part of a trace survives the way to rank 0 whole, and a blob that was cut or changed
 * anywhere is refused or gives a part that can still be merged and stored. */
#include "tests/helpers/test.h"
#include "tests/helpers/trace_parts.h"

static void assert_same_part(const struct trace_part *a, const struct trace_part *b)
{
    assert_memory_equal(&a->topo, &b->topo, sizeof a->topo);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->device, b->device);
    assert_memory_equal(a->boot, b->boot, sizeof a->boot);
    assert_int_equal(a->track_count, b->track_count);
    assert_int_equal(a->track_warps, b->track_warps);
    for (uint32_t i = 0; i < a->track_count; i++) {
        assert_int_equal(a->tracks[i].count, b->tracks[i].count);
        assert_int_equal(a->tracks[i].dropped, b->tracks[i].dropped);
        assert_memory_equal(a->tracks[i].events, b->tracks[i].events,
                            a->tracks[i].count * sizeof(struct mk_event));
    }
    assert_int_equal(a->message_count, b->message_count);
    assert_int_equal(a->messages_dropped, b->messages_dropped);
    if (a->message_count)
        assert_memory_equal(a->messages, b->messages, a->message_count * sizeof *a->messages);
    assert_int_equal(a->plan_count, b->plan_count);
    for (uint32_t i = 0; i < a->plan_count; i++) {
        const struct trace_plan *p = &a->plans[i], *q = &b->plans[i];
        assert_int_equal(p->id, q->id);
        assert_memory_equal(&p->problem, &q->problem, sizeof p->problem);
        assert_true(p->flop == q->flop);
        assert_memory_equal(p->flags, q->flags, p->flag_count * sizeof *p->flags);
        if (a->topo.rank == 0) {
            assert_memory_equal(p->tiles, q->tiles, p->tile_count * sizeof *p->tiles);
            assert_memory_equal(p->chunks, q->chunks, p->chunk_count * sizeof *p->chunks);
        } else {
            assert_null(q->tiles);
            assert_null(q->chunks);
        }
    }
}

CASE(test_round_trip)
{
    static struct parts p;
    parts_make(&p);
    struct trace_clock_sample clock[2] = {{1, 2, 3}, {4, 5, 6}};
    p.part[3].host_clock = clock;
    p.part[3].host_samples = 2;
    p.part[3].gpu_residual = 77;
    p.tracks[0][2].dropped = 9;
    for (int r = 0; r < PARTS_RANKS; r++) {
        void *blob;
        size_t bytes;
        struct trace_part back;
        assert_int_equal(part_pack(&p.part[r], &blob, &bytes), 0);
        assert_int_equal(bytes % 16, 0);
        assert_int_equal(part_parse(&back, blob, bytes), 0);
        assert_same_part(&p.part[r], &back);
        if (r == 3) {
            assert_int_equal(back.gpu_residual, 77);
            assert_memory_equal(back.host_clock, clock, sizeof clock);
        }
        part_free(&back);
        free(blob);
    }
}

/* So far that a time and what it may be off would not fit into 64 bits together. */
CASE(test_clock_off_by_years)
{
    static struct parts p;
    static const uint64_t off[] = {TRACE_MAX_TIME - 1, TRACE_MAX_TIME, UINT64_MAX};
    parts_make(&p);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        void *blob;
        size_t bytes;
        struct trace_part back;
        p.part[3].gpu_residual = off[i];
        assert_int_equal(part_pack(&p.part[3], &blob, &bytes), 0);
        assert_int_equal(part_parse(&back, blob, bytes), off[i] < TRACE_MAX_TIME ? 0 : -EPROTO);
        if (off[i] < TRACE_MAX_TIME) {
            struct trace_data d;
            struct trace_part parts[PARTS_RANKS] = {p.part[0], p.part[1], p.part[2], back};
            const struct trace_run run = {0};
            char error[256];
            assert_int_equal(data_merge(&d, parts, PARTS_RANKS, &run, error, sizeof error), 0);
            assert_true(d.residual <= TRACE_MAX_TIME / 8);
            assert_int_equal(data_join(&d), 0);
            data_free(&d);
            part_free(&back);
        }
        free(blob);
    }
}

CASE(test_cut)
{
    static struct parts p;
    void *blob;
    size_t bytes;
    parts_make(&p);
    assert_int_equal(part_pack(&p.part[0], &blob, &bytes), 0);
    for (size_t n = 0; n < bytes; n++) {
        struct trace_part back;
        /* of its own, so that the address sanitizer sees a byte too far */
        void *shorter = malloc(n + 1);
        memcpy(shorter, blob, n);
        assert_int_equal(part_parse(&back, shorter, n), -EPROTO);
        assert_null(back.tracks);
        if (n >= 16) { /* and with a head that says so: what follows must find out by itself */
            uint64_t says = n;
            memcpy((char *)shorter + 8, &says, sizeof says);
            assert_int_equal(part_parse(&back, shorter, n), -EPROTO);
        }
        free(shorter);
    }
    free(blob);
}

/* A part that was accepted must also be safe to merge: in the place of rank 0, three good ones
 * beside it. */
CASE(test_changed)
{
    static struct parts p;
    void *blob;
    size_t bytes;
    uint64_t random = 42;
    int taken = 0;
    parts_make(&p);
    assert_int_equal(part_pack(&p.part[0], &blob, &bytes), 0);
    for (int round = 0; round < 20000; round++) {
        uint8_t *b = blob;
        struct trace_part back;
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        size_t at = (random >> 20) % bytes;
        uint8_t bit = (uint8_t)(1 << (random >> 60 & 7));
        b[at] ^= bit;
        if (!part_parse(&back, blob, bytes)) {
            struct trace_part parts[PARTS_RANKS] = {back, p.part[1], p.part[2], p.part[3]};
            const struct trace_run run = {0};
            struct trace_data d;
            char error[256];
            if (!data_merge(&d, parts, PARTS_RANKS, &run, error, sizeof error)) {
                assert_int_equal(data_join(&d), 0);
                assert_int_equal(data_overlap(&d), 0);
                data_free(&d);
                taken++;
            }
            part_free(&back);
        }
        b[at] ^= bit;
    }
    assert_true(taken > 1000); /* most bits are values, not structure: else this proves little */
    free(blob);
}
