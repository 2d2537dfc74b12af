/* Ranks of a node pass each other descriptors: each has the right one of each other, whoever comes
 * first; what a stranger sends, who does not know the key, is passed over; a rank that is not
 * there, or that sends nothing, is named within the time. */
#include "tests/helpers/test.h"
#include "tests/helpers/sanitized.h"

#include <pthread.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/fd_pass.h"

enum { RANKS = 5, SECOND = 1000000000 };

static struct fd_pass passes[RANKS];
static struct fd_pass_name names[RANKS];

static void open_all(void)
{
    char error[128];
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(fd_pass_open(&passes[r], error, sizeof error), 0);
        names[r] = passes[r].name;
    }
}

static void close_all(void)
{
    for (int r = 0; r < RANKS; r++)
        fd_pass_close(&passes[r]);
}

struct rank {
    uint32_t number;
    int mine, fds[RANKS], result;
    char error[256];
};

static void *exchange(void *argument)
{
    struct rank *r = argument;
    usleep(3000 * (RANKS - r->number)); /* the last comes first */
    r->result = fd_pass_exchange(&passes[r->number], r->number, RANKS, names, r->mine, r->fds, 0,
                                 10ull * SECOND, r->error, sizeof r->error);
    return NULL;
}

/* A descriptor is the read end of a pipe in which its rank's number lies RANKS times. */
CASE(everybody_has_everybody_s)
{
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    struct fd_pass_name wrong;
    int pipes[RANKS][2], strange[RANKS];
    char error[256];
    open_all();
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.number = r};
        assert_int_equal(pipe(pipes[r]), 0);
        ranks[r].mine = pipes[r][0];
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(write(pipes[r][1], &(char){(char)r}, 1), 1);
    }
    /* as rank 1, to rank 0 alone, with another key */
    wrong = names[0];
    wrong.key[3] ^= 1;
    struct fd_pass_name strangers[2] = {wrong, {{0}, {0}}};
    assert_int_equal(
        fd_pass_exchange(&passes[1], 1, 2, strangers, 0, strange, 0, 1, error, sizeof error),
        -ETIMEDOUT);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, exchange, &ranks[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (ranks[r].result)
            fail_msg("rank %u: %s", r, ranks[r].error);
        for (uint32_t i = 0; i < RANKS; i++) {
            char from = -1;
            if (i == r) {
                assert_int_equal(ranks[r].fds[i], -1);
                continue;
            }
            assert_int_equal(read(ranks[r].fds[i], &from, 1), 1);
            assert_int_equal(from, i);
            close(ranks[r].fds[i]);
        }
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        close(pipes[r][0]);
        close(pipes[r][1]);
    }
    close_all();
}

CASE(a_rank_that_is_missing_is_named)
{
    char error[256];
    int fds[RANKS];
    open_all();
    uint64_t began = mk_now_ns();
    assert_int_equal(
        fd_pass_exchange(&passes[1], 1, RANKS, names, 0, fds, 8, SECOND / 5, error, sizeof error),
        -ETIMEDOUT);
    assert_true(mk_now_ns() - began < BUSY * SECOND);
    assert_string_equal(error, "nothing has come over rank 8's socket: Connection timed out");
    fd_pass_close(&passes[3]);
    assert_int_equal(
        fd_pass_exchange(&passes[1], 1, RANKS, names, 0, fds, 8, SECOND / 5, error, sizeof error),
        -ECONNREFUSED);
    assert_string_equal(error,
                        "rank 11's socket cannot be reached (Connection refused): ranks of a "
                        "node need one network namespace");
    close_all();
}
