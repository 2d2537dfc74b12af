/* `mkernel sweep` under a launcher is one job of all its ranks: each runs its part of every point,
 * rank 0 has the results, and nobody is left behind where one is lost. `mkernel bench collective`
 * is a sweep of its own making. */
/* WAITS */
#include "core/comm/bootstrap.h"
#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/results_ask.h"
#include "tests/helpers/free_port.h"

enum { WORLD = 4 };

static void change(const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Starts all ranks, two on each of two nodes, as torchrun would. Somebody else listens at a port
 * that the sweep would give its second job; returns the socket. */
static int start(struct command_run *ranks, const char *line, const char *line_of_rank_3)
{
    char port[40], text[4][40];
    int first = free_port(), other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(first + 3))};
    assert_int_equal(bind(other, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(other, 1), 0);
    snprintf(port, sizeof port, "MASTER_PORT=%d", first);
    for (int i = 0; i < WORLD; i++) {
        snprintf(text[0], 40, "RANK=%d", i);
        snprintf(text[1], 40, "WORLD_SIZE=%d", WORLD);
        snprintf(text[2], 40, "LOCAL_RANK=%d", i % 2);
        snprintf(text[3], 40, "LOCAL_WORLD_SIZE=%d", 2);
        command_start(&ranks[i], i == 3 && line_of_rank_3 ? line_of_rank_3 : line, text[0], text[1],
                      text[2], text[3], "MASTER_ADDR=127.0.0.1", port, "MKERNEL_TOKEN=of the test",
                      NULL);
    }
    return other;
}

CASE(all_ranks_take_part_and_rank_0_has_the_results)
{
    struct command_run ranks[WORLD];
    char line[256];
    snprintf(database, sizeof database, "%s/all.db", folder);
    snprintf(line, sizeof line,
             "sweep --vary op=ag_gemm:gemm_rs;exec=host:sim;shape=64,64,64;nic=soft;iters=3 "
             "--repeats 2 --out %s",
             database);
    int other = start(ranks, line, NULL);
    for (int i = 0; i < WORLD; i++)
        command_finish(&ranks[i], 60);
    close(other);
    for (int i = 0; i < WORLD; i++) {
        if (ranks[i].status)
            print_message("rank %d: status %d: %s\n", i, ranks[i].status, ranks[i].err_text);
        assert_int_equal(ranks[i].status, 0);
        assert_true(i == 0 || !*ranks[i].out_text);
    }
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict = 'right'"), 8);
    /* two nodes of two, as the launcher says, and every rank's times */
    assert_int_equal(
        ask("SELECT count(*) FROM jobs WHERE exec = 'host' AND nodes = 2 AND gpus = 2"), 4);
    assert_int_equal(ask("SELECT count(*) FROM sample WHERE warmup = 0"), 4 * WORLD * 3 + 4);
}

CASE(a_point_that_kills_a_rank_is_one_that_failed)
{
    struct command_run ranks[WORLD];
    char line[320];
    snprintf(database, sizeof database, "%s/dies.db", folder);
    snprintf(
        line, sizeof line,
        "sweep --vary op=ag_gemm;exec=host;shape=64,64,64:64,64,128;nic=soft;iters=3;timeout=2;"
        "env.MKERNEL_TEST_DIE=3,2 --repeats 1 --out %s",
        database);
    int other = start(ranks, line, NULL);
    for (int i = 0; i < WORLD; i++)
        command_finish(&ranks[i], 60);
    close(other);
    assert_int_equal(ranks[0].status, 3);
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict = 'failed'"), 2);
    for (int i = 1; i < WORLD; i++)
        assert_int_equal(ranks[i].status, 0); /* the sweep went on to its end */
}

CASE(who_is_lost_ends_the_sweep)
{
    struct command_run ranks[WORLD];
    char line[320];
    snprintf(database, sizeof database, "%s/lost.db", folder);
    snprintf(
        line, sizeof line,
        "sweep --vary op=ag_gemm;exec=host;shape=64,64,64;nic=soft;iters=3;timeout=2 --repeats "
        "500 --out %s",
        database);
    int other = start(ranks, line, NULL);
    for (int i = 0; i < 3000 && ask("SELECT count(*) FROM job") < 1; i++)
        usleep(10000);
    kill(ranks[2].pid, SIGKILL);
    for (int i = 0; i < WORLD; i++)
        command_finish(&ranks[i], 60);
    close(other);
    for (int i = 0; i < WORLD; i++)
        if (i != 2) {
            if (ranks[i].status != 3)
                print_message("rank %d: status %d, signal %d after %.1f s: %s\n", i,
                              ranks[i].status, ranks[i].signal, ranks[i].seconds,
                              ranks[i].err_text);
            assert_int_equal(ranks[i].status, 3);
            assert_int_equal(ranks[i].signal, 0); /* by itself, not by the test's patience */
        }
    assert_true(ask("SELECT count(*) FROM job") >= 1);
}

CASE(every_rank_has_the_same_sweep)
{
    static const char sweep[] = "sweep --vary op=ag_gemm;exec=host;shape=64,64,64 --out /dev/null",
                      other[] = "sweep --vary op=ag_gemm;exec=host;shape=64,64,72 --out /dev/null",
                      missing[] = "sweep not-there.yaml";
    for (int i = 0; i < 2; i++) {
        struct command_run ranks[WORLD];
        int socket = start(ranks, sweep, i ? missing : other);
        for (int r = 0; r < WORLD; r++)
            command_finish(&ranks[r], 120); /* of ten minutes and more, as a job may take */
        close(socket);
        for (int r = 0; r < WORLD; r++) {
            assert_int_equal(ranks[r].status, i && r < 3 ? 3 : 2);
            assert_non_null(strstr(ranks[r].err_text, !i      ? "rank 3 has read another sweep"
                                                      : r < 3 ? "within 30.0 s: rank 3"
                                                              : "not-there.yaml"));
        }
    }
}

/* Plays rank 0 to a rank that has the sweep, and says what it is to do. Returns the digest of its
 * sweep. */
static uint64_t order(uint64_t digest, const uint32_t words[5], struct command_run *r)
{
    char port[40], error[512];
    uint64_t digests[2];
    struct bootstrap *b;
    uint32_t all[2][5];
    struct bootstrap_config c = {.world = 2,
                                 .host = "127.0.0.1",
                                 .port = (uint16_t)free_port(),
                                 .listen_fd = -1,
                                 .token = "of the test",
                                 .timeout_ns = 30000000000ull};
    snprintf(port, sizeof port, "MKERNEL_PORT=%d", c.port);
    command_start(r, "sweep --vary op=ag_gemm;exec=host;shape=64,64,64 --out /dev/null", "RANK=1",
                  "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                  port, "MKERNEL_TOKEN=of the test", NULL);
    assert_int_equal(bootstrap_join(&b, &c, error, sizeof error), 0);
    assert_int_equal(bootstrap_allgather(b, &digest, digests, sizeof digest), 0);
    if (digest == digests[1])
        assert_int_equal(bootstrap_allgather(b, words, all, sizeof *all), 0);
    bootstrap_leave(b);
    command_finish(r, 60);
    return digests[1];
}

CASE(what_rank_0_orders_is_a_number_within_bounds)
{
    static const uint32_t orders[][5] = {
        {1, 0, 1, 0, 2000},          /* a point too many */
        {1, 0, UINT32_MAX, 0, 2000}, /* kind, mode, point, */
        {1, 0, 0, 3, 2000},          /* repeat, port */
        {1, 1, 0, 0, 2000},          {1, 9, 0, 0, 2000}, {1, 0, 0, 0, 0},
        {1, 0, 0, 0, 65536},         {7, 0, 0, 0, 2000}};
    struct command_run r;
    uint64_t digest = order(0, orders[0], &r);
    assert_int_equal(r.status, 2); /* rank 0 has another sweep */
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        assert_int_equal(order(digest, orders[i], &r), digest);
        assert_int_equal(r.status, 3);
        assert_non_null(strstr(r.err_text, "Protocol error"));
    }
}

CASE(collectives_are_measured_as_nccl_tests_does)
{
    struct command_run r;
    char line[256];
    double size, count, us, algbw, busbw;
    char type[16], op[32];
    snprintf(database, sizeof database, "%s/collective.db", folder);
    snprintf(line, sizeof line,
             "bench collective all_gather reduce_scatter gemm_ar --exec host --nodes 2 --gpus 2 "
             "--nic soft -b 64KB "
             "-e 256KB -f 4 -n 3 -w 1 --out %s",
             database);
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    if (r.status)
        print_message("%s\n", r.err_text);
    assert_int_equal(r.status, 0);
    int rows = 0;
    for (const char *p = r.out_text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        if (sscanf(p, "%lf %lf %15s %31s %lf %lf %lf", &size, &count, type, op, &us, &algbw,
                   &busbw) != 7)
            continue;
        /* of four ranks; between nodes sums are fp32 */
        double share = !strcmp(op, "gemm_ar") ? 1.5 : !strcmp(op, "reduce_scatter") ? 1 : 0.75;
        assert_true(size == 65536 || size == 262144);
        assert_true(count * 2 == size);
        assert_true(algbw > size / us / 1e3 * 0.95 - 0.001 &&
                    algbw < size / us / 1e3 * 1.05 + 0.001);
        assert_true(busbw > share * algbw * 0.9 - 0.002 && busbw < share * algbw * 1.1 + 0.002);
        rows++;
    }
    assert_int_equal(rows, 6);
    assert_non_null(strstr(r.out_text, "# Avg bus bandwidth"));
    assert_int_equal(ask("SELECT count(*) FROM job WHERE verdict = 'right'"), 6);
    command_start(&r, "bench collective --exec host --gpus 2 -b 64KB -e 64KB -n 3 --dtype bytes",
                  NULL);
    command_finish(&r, 60);
    assert_int_equal(r.status, 0);
    rows = 0;
    for (const char *p = r.out_text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (sscanf(p, "%lf %lf %15s %31s", &size, &count, type, op) == 4) {
            assert_true(size == 65536 && count == size && !strcmp(type, "bytes"));
            rows++;
        }
    assert_int_equal(rows, 2); /* what only moves */
    command_start(&r, "bench collective gemm_rs --exec host --dtype fp8", NULL);
    command_finish(&r, 60);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err_text, "--dtype fp8 and gemm_rs: here it is for all_gather"));
    /* the same times again, made alike and then of two kinds: that is told */
    change("UPDATE sample SET ms = 1");
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    assert_null(strstr(r.out_text, "quartiles"));
    change("UPDATE sample SET ms = 9 WHERE job = 1 AND number = (SELECT max(number) FROM sample)");
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    assert_non_null(strstr(r.out_text, " *\n"));
    assert_non_null(strstr(r.out_text, "# * 1 of 6 sizes: the quartiles of the times lie apart by "
                                       "up to 5.0 times"));
    static const struct {
        const char *line, *says;
    } bad[] = {{"bench collective moe_ffn", "no communication of its own"},
               {"bench collective gemm_rs -b 1MB -e 64KB", "is more than --max"},
               {"bench collective --nodes 1 --gpus 1", "nobody to communicate with"},
               {"bench collective --factor 1", "--factor 1"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        command_start(&r, bad[i].line, NULL);
        assert_int_equal(command_finish(&r, 30), 2);
        assert_non_null(strstr(r.err_text, bad[i].says));
        assert_int_equal(command_lines(r.err_text), 1);
    }
}

FIXTURE(folder_make, folder_remove)
