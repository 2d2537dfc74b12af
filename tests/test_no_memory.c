/* Where any single allocation fails, a communicator, tuned plans, a trace and what the live viewer
 * reads are made or refused with -errno and a sentence, everything given back, and without a
 * crash. */
#include "core/comm/comm.h"
#include "tests/helpers/generate.h"
#include "tracer/live.h"
#include "tracer/part.h"
#include "tracer/store.h"
#include "tests/helpers/test.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/no_memory.h"

static int use_a_communicator(char *text, size_t size)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .exec = MK_EXEC_HOST,
                               .nodes = 1,
                               .gpus = 1,
                               .listen_fd = -1,
                               .heap_bytes = 1 << 20,
                               .tuning = "none"};
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = 64, .n = 64, .k = 64};
    struct mk_comm *comm;
    struct mk_plan *plan;
    int result = mk_comm_open(&comm, &config);
    if (!result)
        result = comm_make_plan(&plan, comm, &q);
    if (result)
        snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

static int keep_a_plan(char *text, size_t size)
{
    struct tuning_entry e;
    struct tuning_table t;
    char path[200];
    const struct mk_problem q = {
        .op = MK_OP_AG_GEMM, .topo = {1, 2, 0}, .m = 128, .n = 64, .k = 64};
    snprintf(path, sizeof path, "%s/plans", folder);
    tuning_key(&e, &q, "host");
    e.tuning.pieces = 2;
    int result = tuning_store(path, &e, text, size);
    if (result)
        return result;
    result = tuning_open(&t, path, 0, text, size);
    tuning_close(&t);
    return result;
}

static int store_a_trace(char *text, size_t size)
{
    const struct generate_config config = {
        .events = 300, .nodes = 2, .gpus = 2, .ctas = 4, .seed = 3};
    char path[200];
    snprintf(path, sizeof path, "%s/t.db", folder);
    return trace_generate(&config, path, text, size);
}

static int pack_a_part(char *text, size_t size)
{
    const struct generate_config config = {
        .events = 300, .nodes = 1, .gpus = 2, .ctas = 4, .seed = 3};
    struct trace_part *parts = NULL, again;
    void *blob = NULL;
    size_t bytes = 0;
    int result = generate_parts(&parts, &config, text, size);
    if (result)
        return result;
    result = part_pack(&parts[0], &blob, &bytes);
    if (!result)
        result = part_parse(&again, blob, bytes);
    if (!result)
        part_free(&again);
    free(blob);
    generate_free(parts, &config);
    if (result)
        snprintf(text, size, "%s", strerror(-result)); /* its callers' sentence */
    return result;
}

static int publish(char *text, size_t size)
{
    static struct mk_plan plan;
    static struct mk_comm comm;
    static uint64_t word;
    const struct mk_problem q = {.op = MK_OP_AG_GEMM, .topo = {1, 1, 0}, .m = 64, .n = 64, .k = 64};
    struct live *l = NULL;
    struct live_job job;
    char path[200];
    comm.progress = &word;
    comm.progress_count = 1;
    snprintf(path, sizeof path, "%s/live/run-1", folder);
    int result = plan_build(&plan, &q, 0, 0, text, size);
    if (!result && (result = live_begin(&l, path, &comm, &plan, 0, 1, "a command")))
        snprintf(text, size, "%s", strerror(-result)); /* nobody is told: the run goes on */
    if (!result && !(result = live_open(&job, path, text, size)))
        live_close(&job);
    live_end(l);
    return result;
}

CASE(test_communicator)
{
    assert_true(fail_each(use_a_communicator, 0) >= 10);
}

CASE(test_tuned_plans)
{
    assert_true(fail_each(keep_a_plan, 0) >= 4);
}

CASE(test_part)
{
    assert_true(fail_each(pack_a_part, 0) >= 5);
}

CASE(test_trace)
{
    assert_true(fail_each(store_a_trace, 6) >= 30);
}

CASE(test_live)
{
    assert_true(fail_each(publish, 0) >= 3);
}

FIXTURE(folder_make, folder_remove)
