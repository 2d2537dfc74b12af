/* Without the public header's structures: strings open the communicator and make the plans that
 * the structures would, the launcher's environment fills what they leave open, and what makes no
 * sense is refused with a sentence before anything starts. */
#include "core/comm/comm_parts.h"

#include <sys/wait.h>
#include <unistd.h>
#include "tests/helpers/free_port.h"

/* What `mkernel.h` says that strings are: "NAME=VALUE", ended by NULL. */
#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct mk_comm *open_settings(const char *const *settings)
{
    struct mk_comm *comm;
    if (mk_comm_open_settings(&comm, MK_VERSION_NUMBER, settings))
        fail_msg("%s", mk_error(comm));
    return comm;
}

static int nothing_launched(void **state)
{
    static const char *const names[] = {"RANK",        "WORLD_SIZE",  "LOCAL_RANK",
                                        "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

/* ---- the communicator ---- */

CASE_WITH(without_a_launcher_there_is_one_rank, nothing_launched, NULL)
{
    struct mk_comm *comm = open_settings(SETTINGS("exec=host"));
    assert_int_equal(mk_comm_rank(comm), 0);
    assert_int_equal(mk_comm_nodes(comm), 1);
    assert_int_equal(mk_comm_gpus(comm), 1);
    mk_comm_close(comm);
}

CASE_WITH(every_field_of_a_config_has_a_setting, nothing_launched, NULL)
{
    char file[] = "/tmp/settings-XXXXXX", tuning[64];
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    snprintf(tuning, sizeof tuning, "tuning=%s", file);
    struct mk_comm *comm = open_settings(SETTINGS(
        "rank=0", "nodes=1", "gpus=1", "host=localhost", "port=0", "listen_fd=0", "token=a b=c",
        "fabric=efa", "nic=soft", "rails=3", "heap_bytes=1048576", "flag_bytes=65536",
        "timeout_ns=12345678901", "trace_events=77", tuning, "exec=host"));
    const struct mk_config *c = &comm->config;
    assert_string_equal(c->host, "localhost");
    assert_string_equal(c->token, "a b=c");
    assert_string_equal(c->fabric, "efa");
    assert_string_equal(c->nic, "soft");
    assert_string_equal(c->tuning, file);
    assert_true(c->heap_bytes == 1048576 && c->flag_bytes == 65536);
    assert_true(c->timeout_ns == 12345678901 && c->trace_events == 77 && c->rails == 3);
    mk_comm_close(comm);
    unlink(file);
}

/* Rank `rank` of two that torchrun has started: who it is, as `settings` have it. */
static int be_rank(int rank, const char *const *settings, uint32_t nodes)
{
    char text[8];
    struct mk_comm *comm;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    int result = mk_comm_open_settings(&comm, MK_VERSION_NUMBER, settings);
    if (result)
        fprintf(stderr, "%s\n", mk_error(comm));
    int right = !result && mk_comm_rank(comm) == (uint32_t)rank && mk_comm_nodes(comm) == nodes &&
                mk_comm_nodes(comm) * mk_comm_gpus(comm) == 2;
    mk_comm_close(comm);
    return !right;
}

/* As many ranks as the environment says; `settings` may say that they are several nodes. */
static void join_two(const char *const *settings, uint32_t nodes)
{
    char port[16];
    int status, wrong = 0;
    snprintf(port, sizeof port, "%d", free_port());
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "1", 1); /* which MKERNEL_PORT overrides */
    setenv("MKERNEL_PORT", port, 1);
    for (int rank = 0; rank < 2; rank++)
        if (!fork())
            _exit(be_rank(rank, settings, nodes));
    for (int i = 0; i < 2; i++)
        wrong |= wait(&status) < 0 || status;
    unsetenv("MKERNEL_PORT");
    assert_int_equal(wrong, 0);
}

CASE_WITH(a_launcher_says_who_this_rank_is, nothing_launched, NULL)
{
    join_two(SETTINGS("timeout_ns=30000000000"), 1);
}

CASE_WITH(nodes_may_be_told_apart_from_the_launcher_s, nothing_launched, NULL)
{
#ifndef MK_HAVE_VERBS
    print_message("skipped: this build has no network\n");
    skip();
#endif
    join_two(SETTINGS("nodes=2", "nic=soft", "timeout_ns=30000000000"), 2);
}

CASE_WITH(settings_that_make_no_sense_are_refused, nothing_launched, NULL)
{
    char longest[600];
    memset(longest, 'x', sizeof longest - 1);
    memcpy(longest, "nic=", 4);
    longest[sizeof longest - 1] = '\0';
    const struct {
        const char *setting, *says;
    } bad[] = {
        {"heap=5", "there is no setting 'heap'; these are: exec, rank, nodes, gpus, host, port"},
        {"version=100", "there is no setting 'version'"},
        {"rank", "there is no setting 'rank'"},
        {"rails=", "rails=: a number of 0 to 4294967295"},
        {"rails=-1", "rails=-1: a number"},
        {"rails=4294967296", "rails=4294967296: a number of 0 to 4294967295"},
        {"port=65536", "port=65536: a number of 0 to 65535"},
        {"heap_bytes=18446744073709551616", "a number of 0 to 18446744073709551615"},
        {"heap_bytes=1 GB", "heap_bytes=1 GB: a number"},
        {"exec=gpu", "exec=gpu: host, cuda or emulated"},
        {longest, "nic has 595 characters: at most 255"},
        {"nodes=2", "nodes or gpus without rank"},
        {"device=1", "device says which GPU a rank takes: it is of exec=cuda"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mk_comm *comm;
        assert_int_equal(mk_comm_open_settings(&comm, MK_VERSION_NUMBER, SETTINGS(bad[i].setting)),
                         -EINVAL);
        if (!strstr(mk_error(comm), bad[i].says))
            fail_msg("%s: %s", bad[i].setting, mk_error(comm));
        mk_comm_close(comm);
    }
}

/* What the environment says must fit what the settings say. */
CASE_WITH(a_launcher_that_started_other_ranks_is_told, nothing_launched, NULL)
{
    struct mk_comm *comm;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    assert_int_equal(mk_comm_open_settings(&comm, MK_VERSION_NUMBER, SETTINGS("nodes=3")), -EINVAL);
    assert_string_equal(mk_error(comm), "3 nodes of 1 ranks, but torchrun started 4 ranks");
    mk_comm_close(comm);
    unsetenv("LOCAL_RANK");
    assert_int_equal(mk_comm_open_settings(&comm, MK_VERSION_NUMBER, SETTINGS("exec=host")),
                     -EINVAL);
    assert_non_null(strstr(mk_error(comm), "LOCAL_RANK is not set"));
    mk_comm_close(comm);
}

/* A caller of another version may mean other things by the same names: none is read. */
CASE_WITH(a_caller_of_another_version_is_refused, nothing_launched, NULL)
{
    struct mk_comm *comm;
    assert_int_equal(
        mk_comm_open_settings(&comm, MK_VERSION_NUMBER + 100, SETTINGS("what_is_this=1")), -EINVAL);
    assert_non_null(strstr(mk_error(comm), "mkernel.h 0.2 and runs with libmkernel " MK_VERSION));
    mk_comm_close(comm);
}

/* ---- plans ---- */

CASE_WITH(a_plan_of_strings_is_that_of_the_structure, nothing_launched, NULL)
{
    struct mk_comm *comm = open_settings(SETTINGS("tuning=none"));
    struct mk_spec spec = {.op = MK_OP_AG_GEMM,
                           .shape = {64, 128, 32},
                           .b_transposed = 1,
                           .deterministic = 1,
                           .options = "tile=16,8 roles=compute=3",
                           .timeout_ns = 12345678900};
    char offset[64];
    struct mk_plan *p, *wanted;
    assert_non_null(mk_heap_alloc(comm, 64 * 32 * 2, &spec.a_offset));
    snprintf(offset, sizeof offset, "a_offset=%llu", (unsigned long long)spec.a_offset);
    assert_int_equal(mk_plan_create(&wanted, comm, &spec), 0);
    if (mk_plan_create_settings(&p, comm,
                                SETTINGS("op=ag_gemm", "shape=64,128,32", "b_transposed=1",
                                         "deterministic=1", "options=tile=16,8 roles=compute=3",
                                         "timeout_ns=12345678900", offset)))
        fail_msg("%s", mk_error(comm));
    assert_memory_equal(&p->problem, &wanted->problem, sizeof p->problem);
    assert_int_equal(mk_plan_create_settings(
                         &p, comm, SETTINGS("op=ring_attention", "shape=1,64,2,2,64", "causal=1")),
                     0);
    assert_true(p->problem.attention.causal && p->problem.attention.sequence == 64);
    mk_comm_close(comm);
}

CASE_WITH(a_plan_that_makes_no_sense_is_refused, nothing_launched, NULL)
{
    struct mk_comm *comm = open_settings(SETTINGS("tuning=none"));
    const struct {
        const char *op, *shape, *more, *says;
    } bad[] = {
        {"op=ag_gem", "shape=64,64,64", "causal=0", "there is no operator 'ag_gem'"},
        {"causal=0", "shape=64,64,64", "causal=0", "the settings of a plan name no op"},
        {"op=ag_gemm", "shape=64,64,", "causal=0", "shape=64,64,: up to 8 numbers"},
        {"op=ag_gemm", "shape=64,64,64,1,1,1,1,1,1", "causal=0", "up to 8 numbers between commas"},
        {"op=ag_gemm", "shape=64,64,64,5", "causal=0", "that of ag_gemm has 3 numbers, M,N,K"},
        {"op=ag_gemm", "shape=64,60,64", "causal=0", "60"},
        {"op=ag_gemm", "shape=64,64,64", "options=tile=x", "'tile=x' is not valid"},
        {"op=ag_gemm", "shape=64,64,64", "tile=8,8",
         "there is no setting 'tile'; these are: op, shape, options, causal, b_transposed"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mk_plan *p;
        assert_int_equal(
            mk_plan_create_settings(&p, comm, SETTINGS(bad[i].op, bad[i].shape, bad[i].more)),
            -EINVAL);
        assert_null(p);
        if (!strstr(mk_error(comm), bad[i].says))
            fail_msg("%s: %s", bad[i].says, mk_error(comm));
    }
    struct mk_plan *p; /* the communicator is still open */
    assert_int_equal(mk_plan_create_settings(&p, comm, SETTINGS("op=ag_gemm", "shape=64,64,64")),
                     0);
    mk_comm_close(comm);
}
