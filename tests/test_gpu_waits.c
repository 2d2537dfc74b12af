/* What the host makes of a GPU's waits: mk_wait's streams, the place where a kernel stood before it
 * failed, how long waits were, and how often host memory is looked at. */
#include "tests/helpers/test.h"
#include "core/comm/failure.h"
#include "core/mkernel.h"
#include "core/roles/moe_ffn_plan.h"
#include "kernels/host/report.h"
#include "kernels/host/streams.h"
#include "kernels/host/stuck.h"

/* Streams of a fake GPU: how each answers. */
static int answers[STREAMS_MOST + 2];

static int ended(void *stream)
{
    return *(int *)stream;
}

/* A launch on one stream, then one on another that ends first. */
CASE(waits_for_all_streams)
{
    struct streams s = {.count = 0};
    answers[0] = 0;
    answers[1] = 1;
    assert_int_equal(streams_add(&s, &answers[0], ended), 0);
    assert_int_equal(streams_add(&s, &answers[1], ended), 0);
    assert_int_equal(streams_ended(&s, ended), 0);
    assert_int_equal(streams_ended(&s, ended), 0);
    answers[0] = 1;
    assert_int_equal(streams_ended(&s, ended), 1);
    assert_int_equal(s.count, 0);
    answers[0] = 0; /* waited for: what is put there later is another's */
    assert_int_equal(streams_ended(&s, ended), 1);
    streams_add(&s, &answers[0], ended);
    streams_add(&s, &answers[1], ended);
    answers[0] = -719;
    assert_int_equal(streams_ended(&s, ended), -719);
}

CASE(streams_are_bounded)
{
    struct streams s = {.count = 0};
    memset(answers, 0, sizeof answers);
    for (int i = 0; i < STREAMS_MOST; i++)
        for (int again = 0; again < 3; again++)
            assert_int_equal(streams_add(&s, &answers[i], ended), 0);
    assert_int_equal(s.count, STREAMS_MOST);
    assert_int_equal(streams_add(&s, &answers[STREAMS_MOST], ended), -EBUSY);
    answers[7] = 1; /* its place is free again, all others are still waited for */
    assert_int_equal(streams_add(&s, &answers[STREAMS_MOST], ended), 0);
    for (int i = 0; i < STREAMS_MOST; i++) {
        assert_int_equal(streams_ended(&s, ended), 0);
        answers[i] = 1;
    }
    assert_int_equal(streams_ended(&s, ended), 0);
    answers[STREAMS_MOST] = 1;
    assert_int_equal(streams_ended(&s, ended), 1);
}

CASE(says_where_a_kernel_stood)
{
    struct gpu_stuck in = {.barrier = GPU_BARRIER_EMPTY,
                           .stage = 3,
                           .parity = 1,
                           .warp = 11,
                           .block = 70000,
                           .tile = 4000000000u};
    struct mk_failure f = {.kind = MK_FAIL_DEVICE,
                           .op = MK_OP_GEMM_RS,
                           .rank = 2,
                           .cta = UINT32_MAX,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = 2,
                           .status = 700};
    char text[512];
    uint64_t packed[2];
    gpu_stuck_pack(&in, &packed[0], &packed[1]);
    stuck_say(packed, f.detail, sizeof f.detail);
    strcat(f.detail, "an illegal memory access was encountered");
    failure_sentence(&f, text, sizeof text);
    assert_string_equal(text, "gemm_rs: the device of rank 2 failed: block 70000, warp 11 waited "
                              "too long for stage 3 of the "
                              "engine to be filled and read (parity 1, its tile 4000000000): an "
                              "illegal memory access was "
                              "encountered, status 700");
    memset(packed, 0, sizeof packed);
    stuck_say(packed, text, sizeof text);
    assert_string_equal(text, "");
    packed[0] = GPU_BARRIERS; /* never written by a kernel: nothing is made up */
    stuck_say(packed, text, sizeof text);
    assert_string_equal(text, "");
    for (int b = 1; b < GPU_BARRIERS; b++) { /* the longest still fits beside the driver's word */
        in.barrier = (uint8_t)b;
        gpu_stuck_pack(&in, &packed[0], &packed[1]);
        stuck_say(packed, f.detail, sizeof f.detail);
        assert_true(strlen(f.detail) > 40 && strlen(f.detail) < sizeof f.detail - 45);
    }
}

static struct gpu_report report;

/* CTA `cta` waits for `flag` since `start`. */
static void waits(uint32_t cta, uint32_t flag, uint64_t epoch, uint64_t start)
{
    report.waits[cta] = (struct gpu_wait){start, 6, 7, MK_INTRA_COMM};
    report.progress[cta] = epoch << 32 | mk_event_what(MK_EV_WAIT, MK_CAUSE_DATA, flag);
}

/* What the host says of `report`, by rank 0 of three. */
static void told(const struct mk_plan *plan, const char *wanted)
{
    struct mk_failure f;
    char text[512];
    gpu_report_failure(&report, plan, plan->problem.op, 0, &f);
    f.relay = UINT32_MAX; /* as comm_fail says where a rank does not hand on */
    failure_sentence(&f, text, sizeof text);
    assert_string_equal(text, wanted);
}

/* A CTA's wait for what its own rank makes may expire before the wait of the CTA that was to make
 * it: the sentence is then about that one, which knows who stopped. */
CASE(names_who_stopped)
{
    static struct mk_plan plan;
    const uint64_t s = 1000000000, start = 50 * s;
    char error[256];
    struct mk_problem q = {
        .op = MK_OP_MOE_FFN, .exec = MK_EXEC_CUDA, .topo = {1, 3, 0}, .sms = 132};
    q.moe = (struct mk_moe){64, 64, 64, 6, 2};
    q.timeout_ns = 10 * s;
    if (plan_build(&plan, &q, 0, 0, error, sizeof error))
        fail_msg("%s", error);
    const struct moe_dispatch_plan *d = &moe_ffn_plan_of(&plan)->dispatch;
    static const char own[] = "moe_ffn: rank 0 CTA 3 (compute) waited 10.0 s for its tables of "
                              "what comes to its experts in epoch 7 (flag %u saw 1, wants 2)";
    char tables[256];
    snprintf(tables, sizeof tables, own, d->flag_routed);
    report = (struct gpu_report){.failed = 1,
                                 .cta = 3,
                                 .role = MK_COMPUTE,
                                 .flag = d->flag_routed,
                                 .cause = MK_CAUSE_DATA,
                                 .seen = 1,
                                 .wanted = 2,
                                 .epoch = 7,
                                 .waited_ns = 10 * s,
                                 .start = start};
    waits(3, d->flag_routed, 7, start);
    told(&plan, tables);
    waits(4, moe_told_flag(d, 1), 6, start);         /* of an older launch */
    waits(5, moe_told_flag(d, 0), 7, start);         /* for its own rank */
    waits(6, moe_told_flag(d, 1), 7, start + 6 * s); /* briefly */
    told(&plan, tables);
    waits(120, moe_told_flag(d, 2), 7, start + s / 2);
    waits(121, moe_told_flag(d, 1), 7, start + s / 4);
    snprintf(tables, sizeof tables,
             "moe_ffn: rank 0 CTA 121 (intra_comm) waited 9.8 s for what rank 1 tells of tokens' "
             "experts in epoch 7 (flag %u saw 6, wants 7); rank 1 should have produced it",
             moe_told_flag(d, 1));
    told(&plan, tables);
    report.flag = moe_told_flag(d, 2); /* that one names a rank itself */
    snprintf(tables, sizeof tables,
             "moe_ffn: rank 0 CTA 3 (compute) waited 10.0 s for what rank 2 tells of tokens' "
             "experts in epoch 7 (flag %u saw 1, wants 2); rank 2 should have produced it",
             moe_told_flag(d, 2));
    told(&plan, tables);
}

/* CTAs that wait for host memory look soon, then less often: all together at most once in 4 us. */
CASE(host_memory_is_left_alone)
{
    for (uint32_t count = 1; count <= 32; count++) {
        uint32_t pause = 0;
        uint64_t waited = 0;
        for (int looks = 0; looks < 64; looks++) {
            uint32_t next = gpu_host_pause(pause, count);
            assert_true(next >= pause && next <= 4096 * count);
            /* late by no more than it has waited already */
            assert_true(next <= 1024 || next <= 2 * waited);
            waited += next;
            pause = next;
        }
        assert_int_equal(pause, 4096 * count);
    }
}
