/* A failure is told in one sentence that names everything known: a lost rank's says which rank
 * waited for what, and of many waits that one is told which names the rank that hangs. */
#include "core/cta/cta_route.h"
#include "core/comm/failure.h"
#include "core/mkernel.h"
#include "tests/helpers/test.h"

static struct mk_failure record(uint32_t kind)
{
    struct mk_failure f = {.kind = kind,
                           .op = UINT32_MAX,
                           .cta = UINT32_MAX,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = UINT32_MAX,
                           .relay = UINT32_MAX};
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

/* What ends a launch for want of room explains every wait that it ends, in any order. */
CASE(an_overflow_names_who_has_no_room)
{
    struct mk_failure f = record(MK_FAIL_TIMEOUT), wait = waiting(1, 5, 3);
    const char *const says_it =
        "ag_gemm: rank 3 has room for 4096 rows of its experts, and 5120 came in epoch 7; nothing "
        "was "
        "computed: ask for more (--capacity), or spread tokens over experts";
    f.op = MK_OP_AG_GEMM;
    f.rank = 1;
    f.epoch = 7;
    failure_overflow(&f, MK_OVER_ROWS, 3, 5120, 4096);
    says(&f, says_it);
    assert_true(failure_is_final(&f));
    for (int first = 0; first < 2; first++) {
        struct failure_case c;
        assert_int_equal(failure_case_open(&c, 8), 0);
        assert_int_equal(failure_merge(&c, first ? &f : &wait), FAILURE_CHANGED);
        assert_int_equal(failure_merge(&c, first ? &wait : &f),
                         first ? FAILURE_NOTED : FAILURE_CHANGED);
        failure_settle(&c);
        says(&c.kept, says_it);
        failure_case_close(&c);
    }
}

CASE(a_timeout_names_everything)
{
    struct mk_failure f = waiting(1, 5, 3);
    says(&f, "ag_gemm: rank 1 CTA 2 (compute) waited 10.0 s for chunk 3 of rank 5's A in epoch 7 "
             "(flag 12 "
             "saw 6, wants "
             "7); rank 5 should have produced it");
    f.cta = UINT32_MAX;
    f.what[0] = '\0';
    says(&f, "ag_gemm: rank 1's proxy waited 10.0 s for chunk 3 of rank 5 in epoch 7 (flag 12 saw "
             "6, wants "
             "7); rank 5 "
             "should have produced it");
}

CASE(other_kinds)
{
    struct mk_failure f = lost(3);
    says(&f, "rank 3 is lost: its connection closed");
    f = waiting(1, 4, 0);
    f.kind = MK_FAIL_NETWORK;
    f.status = 12;
    f.flag = UINT32_MAX;
    strcpy(f.detail, "transport retry counter exceeded");
    says(&f, "ag_gemm: rank 1 CTA 2 (compute) could not reach rank 4 with chunk 0 of rank 4's A in "
             "epoch 7: "
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
    says(&f, "rank 2 found an internal error: command kind 6");
}

/* A case of 8 ranks that has heard of `count` records, in that order. */
static void hear(struct failure_case *c, const struct mk_failure *records, uint32_t count)
{
    assert_int_equal(failure_case_open(c, 8), 0);
    for (uint32_t i = 0; i < count; i++)
        failure_merge(c, &records[i]);
}

CASE(a_lost_rank_is_enriched_by_the_best_wait)
{
    struct failure_case c;
    struct mk_failure gone = lost(5), credit = waiting(0, 1, 0), other = waiting(2, 3, 1),
                      own = waiting(1, 5, 3);
    credit.chunk = UINT32_MAX;
    hear(&c, &gone, 1);
    assert_false(failure_is_final(&c.kept));
    assert_int_equal(failure_merge(&c, &credit), FAILURE_CHANGED);
    assert_int_equal(failure_merge(&c, &credit), FAILURE_OLD);
    assert_int_equal(failure_merge(&c, &other), FAILURE_CHANGED);
    assert_int_equal(c.kept.rank, 2);
    assert_false(failure_is_final(&c.kept));
    assert_int_equal(failure_merge(&c, &own), FAILURE_CHANGED);
    assert_true(failure_is_final(&c.kept));
    assert_int_equal(failure_merge(&c, &other), FAILURE_OLD);
    says(&c.kept,
         "ag_gemm: rank 5 is lost: its connection closed; rank 1 CTA 2 (compute) was waiting for "
         "chunk 3 of rank "
         "5's A in epoch 7 (flag 12 saw 6, wants 7)");
    failure_case_close(&c);
}

CASE(a_failed_put_becomes_the_loss_of_its_peer)
{
    struct failure_case c;
    struct mk_failure put = waiting(1, 5, 3), gone = lost(5), another = lost(4);
    put.kind = MK_FAIL_NETWORK;
    strcpy(put.detail, "transport retry counter exceeded");
    hear(&c, &put, 1);
    assert_int_equal(failure_merge(&c, &another), FAILURE_OLD);
    assert_int_equal(failure_merge(&c, &gone), FAILURE_CHANGED);
    assert_int_equal(c.kept.kind, MK_FAIL_PEER_LOST);
    assert_int_equal(c.kept.producer, 5);
    assert_int_equal(c.kept.chunk, 3);
    assert_true(failure_is_final(&c.kept));
    failure_case_close(&c);
}

CASE(the_first_failure_stays)
{
    struct failure_case c;
    struct mk_failure first = waiting(1, 5, 3), second = waiting(2, 6, 4);
    hear(&c, NULL, 0);
    assert_int_equal(failure_merge(&c, &first), FAILURE_CHANGED);
    assert_int_equal(failure_merge(&c, &second), FAILURE_NOTED);
    assert_memory_equal(&c.kept, &first, sizeof first);
    failure_case_close(&c);
}

/* Rank 1 blames rank 5; rank 5 says that it waits for rank 6, and has for as long: then rank 6 is
 * to blame. */
CASE(a_timeout_gives_way_to_its_cause)
{
    struct failure_case c;
    struct mk_failure first = waiting(1, 5, 3), cause = waiting(5, 6, 4);
    hear(&c, &first, 1);
    assert_false(failure_is_final(&c.kept));
    cause.waited_ns = first.waited_ns / 4; /* an ordinary wait that the end cut short */
    assert_int_not_equal(failure_merge(&c, &cause), FAILURE_CHANGED);
    assert_int_equal(c.kept.producer, 5);
    cause.waited_ns = first.waited_ns;
    assert_int_equal(failure_merge(&c, &cause), FAILURE_CHANGED);
    assert_int_equal(c.kept.rank, 5);
    assert_int_equal(c.kept.producer, 6);
    failure_case_close(&c);
}

/* All orders of `count` records, of at most 6, end in one that says `sentence`'s end. */
static void all_orders_end(const struct mk_failure *records, uint32_t count, const char *end)
{
    uint32_t total = 1;
    for (uint32_t i = 2; i <= count; i++)
        total *= i;
    for (uint32_t order = 0; order < total; order++) {
        struct mk_failure left[6], heard[6];
        struct failure_case c;
        char text[512];
        memcpy(left, records, count * sizeof *left);
        for (uint32_t i = count, rest = order; i; rest /= i, i--) {
            heard[count - i] = left[rest % i];
            left[rest % i] = left[i - 1];
        }
        hear(&c, heard, count);
        failure_sentence(&c.kept, text, sizeof text);
        if (strcmp(text + strlen(text) - strlen(end), end))
            fail_msg("order %u ends with \"%s\"", order, text);
        failure_case_close(&c);
    }
}

CASE(a_chain_of_waits_ends_in_the_silent_rank)
{
    const struct mk_failure chain[] = {waiting(0, 1, 0), waiting(1, 2, 0), waiting(2, 3, 0)};
    all_orders_end(chain, 2, "; rank 2 should have produced it");
    all_orders_end(chain, 3, "; rank 3 should have produced it");
    /* Two wait for each other, and one of them for rank 3. */
    const struct mk_failure circle[] = {waiting(0, 1, 0), waiting(1, 0, 0), waiting(1, 3, 0)};
    all_orders_end(circle, 3, "; rank 3 should have produced it");
}

/* The records of four ranks when rank 1 had been stopped: the puts of rank 3, whose rail it is, did
 * not leave. */
CASE(a_stopped_rank_is_named_by_all_that_it_holds_up)
{
    struct mk_failure records[] = {waiting(3, 3, UINT32_MAX), waiting(0, 3, 0), waiting(2, 3, 0),
                                   waiting(2, 0, 0), waiting(3, 1, 0)};
    records[1].waited_ns -= 50000000;
    records[4].kind = MK_FAIL_NETWORK;
    records[4].status = -110;
    strcpy(records[4].detail, "the put did not complete");
    all_orders_end(records, 5, "the put did not complete, status -110");
}

/* A rank that waits for what another hands on within the node has that one to blame, unless it
 * waits too. */
CASE(a_relay_that_says_nothing_is_to_blame)
{
    struct mk_failure records[] = {waiting(0, 3, 0), waiting(2, 0, 0), waiting(1, 3, 0)};
    records[0].relay = 1;
    all_orders_end(records, 2,
                   "chunk 0 of rank 3's A in epoch 7 (flag 12 saw 6, wants 7); rank 1 should have "
                   "handed it on");
    all_orders_end(records, 3, "; rank 3 should have produced it");
}

/* A rank whose own puts do not leave knows no more; a rank that names another does. */
CASE(who_blames_itself_gives_way)
{
    struct failure_case c;
    struct mk_failure self = waiting(3, 3, UINT32_MAX), put = waiting(3, 1, 0),
                      own = waiting(2, 2, UINT32_MAX), same = waiting(0, 3, 0);
    put.kind = MK_FAIL_NETWORK;
    says(&self, "ag_gemm: rank 3 CTA 2 (compute) waited 10.0 s for chunk 4294967295 of rank 3's A "
                "in epoch 7 "
                "(flag 12 saw 6, "
                "wants 7)");
    hear(&c, &self, 1);
    assert_int_not_equal(failure_merge(&c, &own), FAILURE_CHANGED);
    assert_int_not_equal(failure_merge(&c, &same), FAILURE_CHANGED);
    assert_int_equal(failure_merge(&c, &put), FAILURE_CHANGED);
    assert_int_equal(c.kept.producer, 1);
    failure_case_close(&c);
}

/* That its peer waits too, perhaps for what this put brings, is no excuse for a put that failed. */
CASE(a_failed_put_needs_no_silent_peer)
{
    struct mk_failure records[] = {waiting(0, 3, 0), waiting(1, 3, 0), waiting(3, 1, 0)};
    records[2].kind = MK_FAIL_NETWORK;
    records[2].status = 12;
    records[2].waited_ns = 0;
    strcpy(records[2].detail, "transport retry counter exceeded");
    all_orders_end(records, 3, "transport retry counter exceeded, status 12");
}

/* A value that several ranks make together has no producer. The ranks that report no wait are
 * named, unless one wait names the rank that hangs. */
CASE(who_says_nothing_is_named_at_last)
{
    struct mk_failure records[] = {waiting(3, UINT32_MAX, 0), waiting(0, UINT32_MAX, 1),
                                   waiting(1, 3, 0),          waiting(4, UINT32_MAX, 0),
                                   waiting(5, UINT32_MAX, 0), waiting(6, UINT32_MAX, 0),
                                   waiting(7, UINT32_MAX, 0)};
    const char *told = "ag_gemm: rank 3 CTA 2 (compute) waited 10.0 s for chunk 0 of rank "
                       "4294967295's A in epoch 7 "
                       "(flag 12 saw 6, wants 7)";
    char wanted[512];
    struct failure_case c;
    hear(&c, records, 7);
    says(&c.kept, told);
    failure_settle(&c);
    snprintf(wanted, sizeof wanted, "%s; rank 2 has not said what it waits for", told);
    says(&c.kept, wanted);
    failure_settle(&c); /* once */
    says(&c.kept, wanted);
    failure_case_close(&c);

    hear(&c, records, 5);
    failure_settle(&c);
    snprintf(wanted, sizeof wanted, "%s; ranks 2, 6 and 7 have not said what they wait for", told);
    says(&c.kept, wanted);
    failure_case_close(&c);

    struct mk_failure one = waiting(1, 2, 0);
    hear(&c, records, 5);
    assert_int_equal(failure_merge(&c, &one), FAILURE_CHANGED);
    failure_settle(&c);
    assert_int_equal(c.kept.producer, 2);
    assert_string_equal(c.kept.detail, "");
    failure_case_close(&c);
}

/* Ranks that the job does not have. */
CASE(impossible_ranks_are_not_counted)
{
    struct mk_failure records[] = {waiting(0, 3, 0), waiting(UINT32_MAX, 1, 0), waiting(8, 1, 0),
                                   waiting(3, 8, 0), waiting(2, UINT32_MAX, 0)};
    records[4].relay = 4096;
    all_orders_end(records, 1, "; rank 3 should have produced it");
    struct failure_case c;
    hear(&c, records, 5);
    assert_int_equal(c.kept.rank, 0);
    failure_case_close(&c);
}

/* A record may come from another process. */
CASE(never_overruns)
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
