/* A failure is told in one sentence that names everything known, and a lost rank's sentence says who waited
 * for what. */
#include "core/failure.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct mk_failure record(uint32_t kind)
{
    struct mk_failure f = {.kind = kind,
                           .op = UINT32_MAX,
                           .cta = UINT32_MAX,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = UINT32_MAX};
    return f;
}

static struct mk_failure waiting(uint32_t rank, uint32_t producer, uint32_t chunk)
{
    struct mk_failure f = record(MK_FAIL_TIMEOUT);
    f.op = MK_OP_AG_GEMM;
    f.rank = rank;
    f.cta = 2;
    f.role = MK_COMPUTE;
    f.flag = 12;
    f.chunk = chunk;
    f.producer = producer;
    f.seen = 6;
    f.wanted = f.epoch = 7;
    f.waited_ns = 10040000000ull;
    snprintf(f.what, sizeof f.what, "chunk %u of rank %u's A", chunk, producer);
    return f;
}

static struct mk_failure lost(uint32_t rank)
{
    struct mk_failure f = record(MK_FAIL_PEER_LOST);
    f.producer = rank;
    strcpy(f.detail, "its connection closed");
    return f;
}

static void says(const struct mk_failure *f, const char *wanted)
{
    char text[512];
    memset(text, 'x', sizeof text);
    failure_sentence(f, text, sizeof text);
    assert_string_equal(text, wanted);
}

static void a_timeout_names_everything(void **state)
{
    struct mk_failure f = waiting(1, 5, 3);
    says(&f, "ag_gemm: rank 1 CTA 2 (compute) waited 10.0 s for chunk 3 of rank 5's A in epoch 7 (flag 12 "
             "saw 6, wants "
             "7); rank 5 should have produced it");
    f.cta = UINT32_MAX;
    f.what[0] = '\0';
    says(&f, "ag_gemm: rank 1's proxy waited 10.0 s for chunk 3 of rank 5 in epoch 7 (flag 12 saw 6, wants "
             "7); rank 5 "
             "should have produced it");
}

static void other_kinds(void **state)
{
    struct mk_failure f = lost(3);
    says(&f, "rank 3 is lost: its connection closed");
    f = waiting(1, 4, 0);
    f.kind = MK_FAIL_NETWORK;
    f.status = 12;
    f.flag = UINT32_MAX;
    strcpy(f.detail, "transport retry counter exceeded");
    says(&f, "ag_gemm: rank 1 CTA 2 (compute) could not reach rank 4 with chunk 0 of rank 4's A in epoch 7: "
             "transport "
             "retry counter exceeded, status 12");
    f = record(MK_FAIL_DEVICE);
    f.op = MK_OP_AG_GEMM;
    f.rank = 2;
    f.status = 700;
    strcpy(f.detail, "illegal address");
    says(&f, "ag_gemm: the device of rank 2 failed: illegal address, status 700");
    f = record(MK_FAIL_INTERNAL);
    f.rank = 2;
    strcpy(f.detail, "command kind 6");
    says(&f, "rank 2 met something that nobody should have made: command kind 6");
}

static void a_lost_rank_is_enriched_by_the_best_wait(void **state)
{
    struct mk_failure kept = lost(5), credit = waiting(0, 1, 0), other = waiting(2, 3, 1),
                      own = waiting(1, 5, 3);
    credit.chunk = UINT32_MAX;
    assert_false(failure_is_final(&kept));
    assert_int_equal(failure_merge(&kept, &credit), 1);
    assert_int_equal(failure_merge(&kept, &credit), 0);
    assert_int_equal(failure_merge(&kept, &other), 1);
    assert_int_equal(kept.rank, 2);
    assert_false(failure_is_final(&kept));
    assert_int_equal(failure_merge(&kept, &own), 1);
    assert_true(failure_is_final(&kept));
    assert_int_equal(failure_merge(&kept, &other), 0);
    says(&kept, "ag_gemm: rank 5 is lost: its connection closed; rank 1 CTA 2 (compute) was waiting for "
                "chunk 3 of rank "
                "5's A in epoch 7 (flag 12 saw 6, wants 7)");
}

static void what_another_rank_enriched_is_taken(void **state)
{
    struct mk_failure here = lost(5), there = lost(5), own = waiting(1, 5, 3);
    assert_int_equal(failure_merge(&there, &own), 1);
    assert_int_equal(failure_merge(&here, &there), 1);
    assert_true(failure_is_final(&here));
    assert_int_equal(here.chunk, 3);
    assert_int_equal(failure_merge(&here, &there), 0);
    struct mk_failure another = lost(4);
    assert_int_equal(failure_merge(&another, &there), 0);
}

static void a_failed_put_becomes_the_loss_of_its_peer(void **state)
{
    struct mk_failure put = waiting(1, 5, 3), gone = lost(5), another = lost(4);
    put.kind = MK_FAIL_NETWORK;
    strcpy(put.detail, "transport retry counter exceeded");
    struct mk_failure kept = put;
    assert_int_equal(failure_merge(&kept, &another), 0);
    assert_int_equal(failure_merge(&kept, &gone), 1);
    assert_int_equal(kept.kind, MK_FAIL_PEER_LOST);
    assert_int_equal(kept.producer, 5);
    assert_int_equal(kept.chunk, 3);
    assert_true(failure_is_final(&kept));
}

static void the_first_failure_stays(void **state)
{
    struct mk_failure kept = record(MK_FAIL_NONE), first = waiting(1, 5, 3), second = waiting(2, 6, 4);
    assert_int_equal(failure_merge(&kept, &first), 1);
    assert_int_equal(failure_merge(&kept, &second), 0);
    assert_memory_equal(&kept, &first, sizeof kept);
}

/* Rank 1 blames rank 5; rank 5 says that it waits for rank 6, and has for as long: then rank 6 is to blame.
 */
static void a_timeout_gives_way_to_its_cause(void **state)
{
    struct mk_failure first = waiting(1, 5, 3), cause = waiting(5, 6, 4), kept = first;
    assert_false(failure_is_final(&kept));
    cause.waited_ns = first.waited_ns / 4;
    assert_int_equal(failure_merge(&kept, &cause), 0); /* an ordinary wait that the end cut short */
    cause.waited_ns = first.waited_ns;
    assert_int_equal(failure_merge(&kept, &cause), 1);
    assert_int_equal(kept.rank, 5);
    assert_int_equal(kept.producer, 6);
}

/* A rank whose own puts do not leave knows no more; whoever names another rank does. */
static void who_blames_itself_gives_way(void **state)
{
    struct mk_failure kept = waiting(3, 3, UINT32_MAX), put = waiting(3, 1, 0),
                      own = waiting(2, 2, UINT32_MAX);
    put.kind = MK_FAIL_NETWORK;
    says(&kept, "ag_gemm: rank 3 CTA 2 (compute) waited 10.0 s for chunk 4294967295 of rank 3's A in epoch 7 "
                "(flag 12 saw 6, "
                "wants 7)");
    assert_int_equal(failure_merge(&kept, &own), 0);
    assert_int_equal(failure_merge(&kept, &put), 1);
    assert_int_equal(kept.producer, 1);
}

/* A record may come from another process. */
static void never_overruns(void **state)
{
    struct mk_failure f;
    char text[600];
    memset(&f, 'A', sizeof f);
    for (uint32_t kind = 0; kind < 8; kind++) {
        f.kind = kind;
        for (size_t size = 0; size < sizeof text; size++) {
            memset(text, 0x7f, sizeof text);
            failure_sentence(&f, text, size);
            if (size)
                assert_true(memchr(text, '\0', size) != NULL);
            for (size_t i = size; i < sizeof text; i++)
                assert_int_equal(text[i], 0x7f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeout_names_everything),
        cmocka_unit_test(other_kinds),
        cmocka_unit_test(a_lost_rank_is_enriched_by_the_best_wait),
        cmocka_unit_test(what_another_rank_enriched_is_taken),
        cmocka_unit_test(a_failed_put_becomes_the_loss_of_its_peer),
        cmocka_unit_test(the_first_failure_stays),
        cmocka_unit_test(a_timeout_gives_way_to_its_cause),
        cmocka_unit_test(who_blames_itself_gives_way),
        cmocka_unit_test(never_overruns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
