/* Under torchrun, mpirun or srun each process is one rank, known from its environment; a job whose
 * ranks cannot meet ends on every rank with status 3 and a sentence. */
/* WAITS */
#include "tests/helpers/command.h"

#include <arpa/inet.h>
#include "tests/helpers/free_port.h"
#include "tests/helpers/sanitized.h"

#define WORLD 4
#define RUN "run ag_gemm --exec host --nic soft --shape 256,64,64 --iters 3 --check --timeout 4"

static struct command_run ranks[WORLD];

/* Starts rank `rank` as torchrun would, under the token. */
static void start_torchrun(int slot, int rank, int port, const char *options, const char *token)
{
    char line[512], text[7][64];
    snprintf(line, sizeof line, RUN " %s", options);
    snprintf(text[0], 64, "RANK=%d", rank);
    snprintf(text[1], 64, "LOCAL_RANK=%d", rank);
    snprintf(text[2], 64, "WORLD_SIZE=%d", WORLD);
    snprintf(text[3], 64, "LOCAL_WORLD_SIZE=%d", WORLD);
    snprintf(text[4], 64, "MASTER_PORT=%d", port - 1);
    snprintf(text[5], 64, "MKERNEL_PORT=%d", port);
    snprintf(text[6], 64, "MKERNEL_TOKEN=%s", token);
    command_start(&ranks[slot], line, "MASTER_ADDR=127.0.0.1", text[0], text[1], text[2], text[3],
                  text[4], text[5], text[6], NULL);
}

static void expect(int slot, int status, const char *says)
{
    struct command_run *r = &ranks[slot];
    command_finish(r, 30);
    if (r->status != status || (says && !strstr(r->err_text, says)))
        fail_msg("rank %d: status %d (want %d), \"%s\" lacks \"%s\"", slot, r->status, status,
                 r->err_text, says ? says : "");
}

static void expect_all_right(void)
{
    expect(0, 0, "all right");
    assert_non_null(strstr(ranks[0].out_text, "verdict   right"));
    for (int i = 1; i < WORLD; i++) {
        expect(i, 0, NULL);
        assert_int_equal(ranks[i].out_used + ranks[i].err_used, 0);
    }
}

CASE(test_torchrun)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++)
        start_torchrun(i, i, port, "", "secret");
    expect_all_right();
    assert_int_equal(command_lines(ranks[0].err_text), 1); /* no warning of a token */
    assert_non_null(strstr(ranks[0].out_text, "1 node of 4"));
}

/* One host may stand for two nodes. */
CASE(test_emulated_nodes)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++)
        start_torchrun(i, i, port, "--nodes 2", "secret");
    expect_all_right();
    assert_non_null(strstr(ranks[0].out_text, "2 nodes of 2"));
}

CASE(test_mpirun)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++) {
        char text[5][64];
        snprintf(text[0], 64, "OMPI_COMM_WORLD_RANK=%d", i);
        snprintf(text[1], 64, "OMPI_COMM_WORLD_SIZE=%d", WORLD);
        snprintf(text[2], 64, "OMPI_COMM_WORLD_LOCAL_RANK=%d", i);
        snprintf(text[3], 64, "OMPI_COMM_WORLD_LOCAL_SIZE=%d", WORLD);
        snprintf(text[4], 64, "MKERNEL_PORT=%d", port);
        command_start(&ranks[i], RUN, text[0], text[1], text[2], text[3], text[4],
                      "MKERNEL_TOKEN=secret", NULL);
    }
    expect_all_right();
}

/* A token that others may guess is told once, on rank 0, with what to do. */
CASE(test_no_secret)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++) {
        char text[3][64];
        snprintf(text[0], 64, "SLURM_PROCID=%d", i);
        snprintf(text[1], 64, "SLURM_LOCALID=%d", i);
        snprintf(text[2], 64, "MKERNEL_PORT=%d", port);
        command_start(&ranks[i], RUN, text[0], text[1], text[2], "SLURM_STEP_NUM_TASKS=4",
                      "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=4",
                      "SLURM_STEP_NODELIST=localhost", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", NULL);
    }
    expect_all_right();
    assert_int_equal(command_lines(ranks[0].err_text), 2);
    assert_non_null(strstr(ranks[0].err_text, "warning: srun gives the job no secret"));
    assert_non_null(strstr(ranks[0].err_text, "export MKERNEL_TOKEN="));
}

CASE(test_srun)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++) {
        char text[3][64];
        snprintf(text[0], 64, "SLURM_PROCID=%d", i);
        snprintf(text[1], 64, "SLURM_LOCALID=%d", i);
        snprintf(text[2], 64, "MKERNEL_PORT=%d", port);
        command_start(&ranks[i], RUN, text[0], text[1], text[2], "SLURM_STEP_NUM_TASKS=4",
                      "SLURM_NODEID=0", "SLURM_STEP_TASKS_PER_NODE=4",
                      "SLURM_STEP_NODELIST=localhost", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0",
                      "MKERNEL_TOKEN=secret", NULL);
    }
    expect_all_right();
}

CASE(test_missing_rank)
{
    int port = free_port();
    for (int i = 0; i < WORLD - 1; i++)
        start_torchrun(i, i, port, "", "secret");
    for (int i = 0; i < WORLD - 1; i++) {
        expect(i, 3, "rank 3");
        assert_true(ranks[i].seconds <= 4 + BUSY);
        assert_int_equal(command_lines(ranks[i].err_text), 1);
    }
}

CASE(test_wrong_token)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++)
        start_torchrun(i, i, port, "", i == 2 ? "another" : "secret");
    for (int i = 0; i < WORLD; i++)
        expect(i, 3, i == 2 ? "token" : "rank 2");
}

CASE(test_duplicate_rank)
{
    int port = free_port();
    for (int i = 0; i < WORLD; i++)
        start_torchrun(i, i == 3 ? 2 : i, port, "", "secret");
    for (int i = 0; i < WORLD; i++)
        expect(i, 3, "rank 2");
}

CASE(test_wrong_topology)
{
    start_torchrun(0, 0, free_port(), "--nodes 3", "secret");
    expect(0, 2, "torchrun");
    command_start(&ranks[0], RUN, "RANK=9", "WORLD_SIZE=4", NULL);
    expect(0, 2, "torchrun says that this is rank 9 of 4");
}

/* Ranks meet on a host that has IPv6 alone, however they are started; those of one node do where
 * MASTER_ADDR is another host's (192.0.2.1 is nobody's). */
CASE(test_no_ipv4)
{
    static const char script[] =
        "ip link set lo up && ip addr del 127.0.0.1/8 dev lo || exit 77; d=$(mktemp -d); s=0; "
        "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500 "
        "MKERNEL_TOKEN=t; "
        "env -u WORLD_SIZE $MKERNEL " RUN " --gpus 2 || s=1; "
        "for r in 1 0; do RANK=$r LOCAL_RANK=$r $MKERNEL " RUN " & p=\"$p $!\"; done; "
        "for i in $p; do wait $i || s=2; done; p=; "
        "for r in 1 0; do RANK=$r LOCAL_RANK=$r $MKERNEL sweep --vary "
        "'op=ag_gemm;exec=host;shape=64,64,64;iters=3' --out $d/r.db & p=\"$p $!\"; done; "
        "for i in $p; do wait $i || s=3; done; rm -r $d; exit $s";
    char path[4096], whole[8192];
    command_path(path, sizeof path);
    snprintf(whole, sizeof whole, "MKERNEL=%s; %s", path, script);
    command_start_program(&ranks[0], "/usr/bin/unshare",
                          (char *[]){"unshare", "-rn", "sh", "-c", whole, NULL});
    command_finish(&ranks[0], 60);
    if (ranks[0].status == 77 || strstr(ranks[0].err_text, "unshare failed")) {
        print_message("skipped: no network namespaces here (unshare -rn, ip)\n");
        skip();
    }
    if (ranks[0].status)
        fail_msg("%d: %s", ranks[0].status, ranks[0].err_text);
}
