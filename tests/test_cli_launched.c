/* Commands that are no job of ranks, under a launcher that starts several of them: `bench fabric`
 * measures between two ranks and refuses more, `sim` and the benches of one process run once. */
#include "tests/helpers/command.h"
#include "tests/helpers/json.h"

#include <arpa/inet.h>
#include "tests/helpers/folder.h"
#include "tests/helpers/free_port.h"

#define FABRIC "bench fabric --nic soft --size 64 --iters 50 --timeout 60"

static struct command_run ranks[4];

/* As mpirun -np WORLD would, each rank with the same line; every rank must end with `status`. */
static void launch(const char *line, int world, int status)
{
    int port = free_port();
    for (int i = 0; i < world; i++) {
        char text[5][64];
        snprintf(text[0], 64, "OMPI_COMM_WORLD_RANK=%d", i);
        snprintf(text[1], 64, "OMPI_COMM_WORLD_SIZE=%d", world);
        snprintf(text[2], 64, "OMPI_COMM_WORLD_LOCAL_RANK=%d", i);
        snprintf(text[3], 64, "OMPI_COMM_WORLD_LOCAL_SIZE=%d", world);
        snprintf(text[4], 64, "MKERNEL_PORT=%d", port);
        command_start(&ranks[i], line, text[0], text[1], text[2], text[3], text[4], NULL);
    }
    for (int i = 0; i < world; i++)
        command_finish(&ranks[i], 120);
    for (int i = 0; i < world; i++)
        if (ranks[i].status != status)
            fail_msg("rank %d of %d, %s: status %d, \"%s\" \"%s\"", i, world, line, ranks[i].status,
                     ranks[i].out_text, ranks[i].err_text);
}

static void expect_silent(int rank)
{
    if (ranks[rank].out_used || ranks[rank].err_used)
        fail_msg("rank %d says \"%s\" \"%s\"", rank, ranks[rank].out_text, ranks[rank].err_text);
}

/* How often `part` is in `text`. */
static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

CASE(two_ranks_are_the_two_ends_of_a_fabric)
{
    char line[256], text[4096];
    snprintf(line, sizeof line, FABRIC " --json %s/fabric.json", folder);
    launch(line, 2, 0);
    assert_int_equal(count_of(ranks[0].out_text, "MsgRate"), 1);
    assert_int_equal(count_of(ranks[0].out_text, "t_typical"), 1);
    expect_silent(1);
    snprintf(line, sizeof line, "%s/fabric.json", folder);
    test_read_file(line, text, sizeof text);
    struct json *j = json_read(text);
    assert_non_null(j);
    json_free(j);
}

/* Each rank has its own NIC; the measurement is between the two. */
CASE(ranks_have_their_nics)
{
    launch("bench fabric --nic soft0 --peer-nic soft1 --size 64 --iters 50 --timeout 60 --test bw",
           2, 0);
    assert_non_null(strstr(ranks[0].out_text, "soft0"));
    expect_silent(1);
}

CASE(one_rank_is_both_ends)
{
    launch(FABRIC, 1, 0);
    assert_int_equal(count_of(ranks[0].out_text, "MsgRate"), 1);
}

CASE(more_ranks_are_refused)
{
    launch(FABRIC, 3, 2);
    assert_non_null(
        strstr(ranks[0].err_text,
               "mpirun started 3 ranks, and a fabric is measured between two ends: start 2"));
    assert_int_equal(command_lines(ranks[0].err_text), 1);
    expect_silent(1);
    expect_silent(2);
}

/* A rank whose other end never comes says so, in time. */
CASE(an_end_that_is_alone_says_so)
{
    char port[64];
    snprintf(port, sizeof port, "MKERNEL_PORT=%d", free_port());
    for (int i = 0; i < 2; i++) {
        command_start(&ranks[i], "bench fabric --nic soft --size 64 --timeout 0.5",
                      i ? "RANK=1" : "RANK=0", i ? "LOCAL_RANK=1" : "LOCAL_RANK=0", "WORLD_SIZE=2",
                      "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port, NULL);
        command_finish(&ranks[i], 60);
        assert_int_equal(ranks[i].status, 3);
        assert_int_equal(command_lines(ranks[i].err_text), 1);
        assert_non_null(
            strstr(ranks[i].err_text, i ? "no server at 127.0.0.1 port" : "no client on port"));
    }
}

CASE(what_is_one_process_runs_once)
{
    static const struct {
        const char *line, *name, *says;
    } lines[] = {
        {"sim ag_gemm --shape 64,64,64 --launches 1", "sim", "a launch, mean of 1"},
        {"sim ag_gemm --explore --runs 2", "sim", "2 orders"},
        {"bench ring --commands 1000 --rounds 1", "bench ring", "median[M/s]"},
        {"bench trace --events 1000", "bench trace", "events/s"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char says[128];
        launch(lines[i].line, 3, 0);
        assert_non_null(strstr(ranks[0].out_text, lines[i].says));
        assert_int_equal(ranks[0].err_used, 0);
        for (int r = 1; r < 3; r++) {
            snprintf(says, sizeof says,
                     "mkernel %s: one process does it all, rank 0 of the 3 that mpirun started; "
                     "rank %d has ",
                     lines[i].name, r);
            if (ranks[r].out_used || command_lines(ranks[r].err_text) != 1 ||
                !strstr(ranks[r].err_text, says))
                fail_msg("rank %d of %s: \"%s\" \"%s\"", r, lines[i].line, ranks[r].out_text,
                         ranks[r].err_text);
        }
    }
}

FIXTURE(folder_make, folder_remove)
