/* Ranks that join get from every collective what each of them gave, and leave nothing behind. */
/* WAITS */
#include "core/mkernel.h"
#include "tests/helpers/job.h"

#include <dirent.h>
#include <fcntl.h>

#include "tests/helpers/test.h"

/* The bytes of rank `rank` in round `round`: others each time. */
static uint8_t byte_of(uint32_t rank, uint32_t round, size_t i)
{
    return (uint8_t)(rank * 131 + round * 17 + i * 7 + i / 251);
}

static int open_descriptors(int *inheritable)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    *inheritable = 0;
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d))
            continue;
        n++;
        *inheritable += !(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    closedir(d);
    return n;
}

static int try_allgather(struct bootstrap *b, const struct bootstrap_config *c, uint32_t round,
                         size_t bytes)
{
    uint8_t *mine = malloc(bytes + 1), *all = malloc(bytes * c->world + 1);
    int bad = 0;
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(c->rank, round, i);
    memset(all, 0xee, bytes * c->world + 1);
    if (bootstrap_allgather(b, mine, all, bytes))
        bad = 1;
    for (uint32_t r = 0; r < c->world && !bad; r++)
        for (size_t i = 0; i < bytes; i++)
            bad |= all[r * bytes + i] != byte_of(r, round, i);
    bad |= all[bytes * c->world] != 0xee;
    free(mine);
    free(all);
    return bad;
}

/* Rank r gives r * 40001 + round bytes: rank 0 of round 0 nothing at all. */
static int try_gather(struct bootstrap *b, const struct bootstrap_config *c, uint32_t round)
{
    size_t bytes = c->rank * 40001u + round, lengths[JOB_MAX] = {0}, at = 0;
    uint8_t *mine = malloc(bytes + 1);
    void *all = NULL;
    for (size_t i = 0; i < bytes; i++)
        mine[i] = byte_of(c->rank, round, i);
    int bad = bootstrap_gather(b, mine, bytes, &all, lengths) != 0;
    free(mine);
    if (c->rank != 0)
        return bad | (all != NULL);
    for (uint32_t r = 0; r < c->world && !bad; r++) {
        bad |= lengths[r] != r * 40001u + round;
        for (size_t i = 0; i < lengths[r] && !bad; i++)
            bad |= ((uint8_t *)all)[at + i] != byte_of(r, round, i);
        at += lengths[r];
    }
    free(all);
    return bad;
}

static int try_clock(struct bootstrap *b, const struct bootstrap_config *c)
{
    enum { SAMPLES = 20 };
    uint64_t local[SAMPLES], remote[SAMPLES], bracket[SAMPLES];
    if (bootstrap_clock(b, SAMPLES, local, remote, bracket))
        return 1;
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t apart = local[i] > remote[i] ? local[i] - remote[i] : remote[i] - local[i];
        if (c->rank == 0 ? local[i] || remote[i] || bracket[i]
                         : apart > bracket[i] / 2 + 1 || !bracket[i])
            return 1; /* one host, one clock: rank 0's answer lies inside the bracket */
    }
    return 0;
}

static int use_everything(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static const size_t sizes[] = {0, 1, 8, 4096, 70000, 1 << 18};
    struct bootstrap *b;
    int left_open, inheritable, before_inheritable, before = open_descriptors(&before_inheritable);
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    open_descriptors(&inheritable);
    /* A listening socket that was handed over becomes close-on-exec too. */
    if (inheritable > before_inheritable - (c->listen_fd >= 0)) {
        snprintf(text, size, "%d descriptors would be inherited", inheritable - before_inheritable);
        return -1;
    }
    for (uint32_t round = 0; round < 12; round++) {
        const char *bad = try_allgather(b, c, round, sizes[round % 6]) ? "all-gather"
                          : bootstrap_barrier(b)                       ? "barrier"
                          : try_gather(b, c, round % 3)                ? "gather"
                          : try_clock(b, c)                            ? "clock"
                                                                       : NULL;
        struct mk_failure f;
        if (bootstrap_failure(b, &f))
            failure_sentence(&f, text, size);
        else if (bad)
            snprintf(text, size, "the %s of round %u is wrong", bad, round);
        if (bad)
            return -1;
    }
    bootstrap_leave(b);
    left_open = open_descriptors(&inheritable) - before + (c->listen_fd >= 0);
    snprintf(text, size, "%d descriptors stay open", left_open);
    return left_open;
}

CASE(every_rank_gets_what_each_gave)
{
    for (uint32_t world = 2; world <= 7; world += 5) {
        struct job j;
        job_init(&j, world, 30);
        job_start_all(&j, use_everything, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < world; r++) {
            if (j.reports[r].result)
                print_message("rank %u: %s\n", r, j.reports[r].text);
            assert_true(j.reports[r].came);
            assert_int_equal(j.reports[r].result, 0);
        }
    }
}

/* More than a socket holds: it goes on as there is room. */
static int give_much(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const size_t bytes = (size_t)24 << 20;
    struct bootstrap *b;
    size_t lengths[JOB_MAX] = {0}, wrong = 0;
    void *all = NULL;
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    uint64_t *mine = malloc(bytes);
    for (size_t i = 0; i < bytes / 8; i++)
        mine[i] = (uint64_t)c->rank << 32 | i;
    result = bootstrap_gather(b, mine, bytes, &all, lengths);
    for (uint32_t r = 0; r < c->world && !result && c->rank == 0; r++) {
        wrong += lengths[r] != bytes;
        for (size_t i = 0; i < bytes / 8 && !wrong; i++)
            wrong += ((uint64_t *)all)[r * (bytes / 8) + i] != ((uint64_t)r << 32 | i);
    }
    free(all);
    all = malloc(c->world * bytes);
    result = result ? result : bootstrap_allgather(b, mine, all, bytes);
    for (uint32_t r = 0; r < c->world && !result; r++)
        for (size_t i = 0; i < bytes / 8 && !wrong; i++)
            wrong += ((uint64_t *)all)[r * (bytes / 8) + i] != ((uint64_t)r << 32 | i);
    free(all);
    free(mine);
    bootstrap_leave(b);
    if (wrong)
        snprintf(text, size, "what came is not what was given");
    return result ? result : -(wrong != 0);
}

CASE(much_is_given_as_there_is_room)
{
    struct job j;
    job_init(&j, 3, 30);
    job_start_all(&j, give_much, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++) {
        if (j.reports[r].result)
            print_message("rank %u: %s\n", r, j.reports[r].text);
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, 0);
    }
}

/* Rank `round` has more than a gather takes. */
static int gather_too_much(const struct bootstrap_config *c, char *text, size_t size,
                           void *argument)
{
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size), wrong = 0;
    for (uint32_t round = 0; round < c->world && !result; round++) {
        size_t lengths[JOB_MAX] = {0};
        void *all = NULL;
        int own = c->rank == round,
            got = bootstrap_gather(b, "abc", own ? (size_t)5 << 30 : 3, &all, lengths);
        wrong |= got != (own ? -EMSGSIZE : 0);
        for (uint32_t r = 0; r < c->world && c->rank == 0; r++)
            wrong |= lengths[r] != (r == round ? 0 : 3);
        free(all);
        result = bootstrap_barrier(b);
    }
    if (wrong)
        snprintf(text, size, "a gather went wrong");
    if (b)
        bootstrap_leave(b);
    return result ? result : -wrong;
}

CASE(who_has_too_much_takes_part_with_nothing)
{
    struct job j;
    job_init(&j, 3, 30);
    job_start_all(&j, gather_too_much, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++) {
        if (j.reports[r].result)
            print_message("rank %u: %s\n", r, j.reports[r].text);
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, 0);
    }
}

CASE(one_rank_needs_no_network)
{
    struct bootstrap_config c = {.world = 1, .listen_fd = -1, .timeout_ns = 1000000000};
    char text[256];
    size_t length;
    void *all;
    struct bootstrap *b;
    assert_int_equal(bootstrap_join(&b, &c, text, sizeof text), 0);
    assert_int_equal(try_allgather(b, &c, 3, 1000), 0);
    assert_int_equal(bootstrap_barrier(b), 0);
    assert_int_equal(bootstrap_gather(b, "abc", 3, &all, &length), 0);
    assert_memory_equal(all, "abc", 3);
    free(all);
    assert_int_equal(try_clock(b, &c), 0);
    struct mk_failure f = {.kind = MK_FAIL_DEVICE, .op = MK_OP_AG_GEMM, .status = 7}, got;
    assert_int_equal(bootstrap_failure(b, &got), 0);
    bootstrap_fail(b, &f);
    assert_int_equal(bootstrap_settle(b, &got), 1);
    assert_int_equal(got.status, 7);
    assert_int_not_equal(bootstrap_barrier(b), 0);
    bootstrap_leave(b);
    bootstrap_leave(NULL);
}

CASE(unusable_arguments_are_refused)
{
    struct bootstrap_config c = {
        .rank = 2, .world = 2, .token = "t", .listen_fd = -1, .timeout_ns = 1000};
    char text[256];
    struct bootstrap *b = (void *)&c;
    assert_int_equal(bootstrap_join(&b, &c, text, sizeof text), -EINVAL);
    assert_null(b);
    c.rank = 1;
    c.token[0] = '\0';
    assert_int_equal(bootstrap_join(&b, &c, text, sizeof text), -EINVAL);
}

static int join_and_barrier(const struct bootstrap_config *c, char *text, size_t size,
                            void *argument)
{
    struct bootstrap *b;
    if (c->rank == 0)
        job_sleep(0.3);
    int result = bootstrap_join(&b, c, text, size);
    if (!result)
        result = bootstrap_barrier(b);
    bootstrap_leave(result ? NULL : b);
    return result;
}

/* Without a socket from the launcher, and rank 0 the last to come: the others connect again and
 * again until it listens. */
CASE(rank_0_may_come_last)
{
    struct job j;
    job_init(&j, 4, 20);
    close(j.listener); /* its port is free again, and rank 0 binds it */
    j.listener = -1;
    job_start_all(&j, join_and_barrier, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        assert_string_equal(j.reports[r].text, "");
        assert_int_equal(j.reports[r].came, 1);
        assert_int_equal(j.reports[r].result, 0);
    }
}

static int leave_at_once(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    result = bootstrap_barrier(b);
    if (c->rank != 2) { /* rank 2 stays, the others go, rank 0 among them */
        bootstrap_leave(b);
        return result;
    }
    job_sleep(0.4);
    struct mk_failure f;
    result = bootstrap_failure(b, &f);
    if (result)
        failure_sentence(&f, text, size);
    bootstrap_leave(b);
    return result;
}

CASE(leaving_is_no_loss)
{
    struct job j;
    job_init(&j, 4, 20);
    job_start_all(&j, leave_at_once, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        assert_string_equal(j.reports[r].text, "");
        assert_int_equal(j.reports[r].result, 0);
        assert_true(job_ended_within(&j, r, 2));
    }
}
