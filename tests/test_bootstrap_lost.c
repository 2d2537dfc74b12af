/* After joining: a rank that dies, hangs, lies or reports a failure ends every other rank's calls,
 * with one sentence for all. */
/* WAITS */
#include "core/comm/bootstrap_internal.h"
#include "core/mkernel.h"
#include "tests/helpers/job.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "tests/helpers/test.h"

#define TIMEOUT 20.0 /* seconds: what ends long before it ends by the news, not by waiting */
#define SOON 2.5
#define HANG_TIMEOUT 3.0

/* The acts of a test's ranks after joining. Their last word is the settled failure. */
struct act {
    uint32_t rank;
    enum {
        DIE_IN_ALLGATHER,
        DIE_IDLE,
        HANG,
        FAIL,
        FAIL_TWICE,
        ENRICH,
        CHAIN,
        BARRIER_INSTEAD,
        OTHER_SIZE,
        GARBAGE,
        SECOND_PART,
        LEAVE
    } what;
};

static struct mk_failure timeout_of(uint32_t rank, uint32_t producer)
{
    struct mk_failure f = {.kind = MK_FAIL_TIMEOUT,
                           .op = MK_OP_AG_GEMM,
                           .rank = rank,
                           .cta = 1,
                           .flag = 9,
                           .chunk = 4};
    f.producer = producer;
    f.relay = UINT32_MAX;
    f.seen = 2;
    f.wanted = f.epoch = 3;
    f.waited_ns = 1500000000;
    snprintf(f.what, sizeof f.what, "chunk 4 of rank %u's A", producer);
    return f;
}

static void send_raw(struct bootstrap *b, enum wire_kind kind, const void *payload, uint64_t bytes)
{
    pthread_mutex_lock(&b->lock);
    peer_say(&b->peers[0], kind, b->sequence, b->rank, payload, bytes);
    pthread_mutex_unlock(&b->lock);
}

/* Waits for news like an executor: without calling a collective. */
static void wait_for_news(struct bootstrap *b, double seconds)
{
    double end = test_seconds() + seconds;
    while (!bootstrap_failure(b, NULL) && test_seconds() < end)
        job_sleep(0.002);
}

/* Rank 1 hangs: rank 3's puts do not leave, rank 2 waits for rank 0, which waits for rank 3, and
 * only when others are blamed does rank 3 say where its puts should have gone. */
static void wait_in_a_chain(struct bootstrap *b, uint32_t rank)
{
    struct mk_failure self = timeout_of(3, 3), data = timeout_of(rank, 3), other = timeout_of(2, 0),
                      put = timeout_of(3, 1);
    put.kind = MK_FAIL_NETWORK;
    put.status = -110;
    if (rank == 3) {
        bootstrap_fail(b, &self);
        job_sleep(0.3);
        bootstrap_fail(b, &put);
    } else if (rank == 2) {
        wait_for_news(b, TIMEOUT);
        bootstrap_fail(b, &other);
        /* after rank 2, so that rank 3 has heard rank 0 blamed when it speaks */
    } else if (rank == 0) {
        wait_for_news(b, TIMEOUT);
        job_sleep(0.6);
        bootstrap_fail(b, &data);
    }
}

static int misbehave(struct bootstrap *b, const struct bootstrap_config *c, const struct act *a)
{
    uint64_t mine[2] = {c->rank, 1}, all[2 * JOB_MAX];
    struct mk_failure f = timeout_of(c->rank, 1);
    switch (a->what) {
    case DIE_IN_ALLGATHER:
    case DIE_IDLE:
        job_sleep(0.1);
        raise(SIGKILL);
        break;
    case HANG:
        raise(SIGSTOP);
        break;
    case FAIL_TWICE:
        bootstrap_fail(b, &f);
        f.rank = 77;
        /* fall through */
    case FAIL:
        bootstrap_fail(b, &f);
        break;
    case ENRICH: /* rank 1 dies; this one was waiting for it */
        wait_for_news(b, TIMEOUT);
        bootstrap_fail(b, &f);
        break;
    case CHAIN:
        wait_in_a_chain(b, c->rank);
        break;
    case BARRIER_INSTEAD:
        bootstrap_barrier(b);
        break;
    case OTHER_SIZE:
        bootstrap_allgather(b, mine, all, 8);
        break;
    case GARBAGE:
        pthread_mutex_lock(&b->lock);
        send(b->peers[0].fd, "\x1aMKB\2\0\377\377 and so on and so forth", 32, MSG_NOSIGNAL);
        pthread_mutex_unlock(&b->lock);
        break;
    case SECOND_PART:
        wire_put_u32((uint8_t *)mine, WIRE_BARRIER);
        send_raw(b, WIRE_PART, mine, 4);
        send_raw(b, WIRE_PART, mine, 4);
        break;
    case LEAVE:
        return 1;
    }
    return 0;
}

static int play(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const struct act *a = argument;
    uint64_t mine[2] = {c->rank, 2}, all[2 * JOB_MAX];
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    result = bootstrap_barrier(b);
    int idle = a->what == DIE_IDLE || a->what == ENRICH || a->what == GARBAGE || a->what == FAIL ||
               a->what == FAIL_TWICE || a->what == CHAIN;
    idle |= c->rank == a->rank && a->what != DIE_IN_ALLGATHER;
    if (a->what == ENRICH && c->rank == 1) {
        struct act die = {1, DIE_IDLE};
        misbehave(b, c, &die);
    }
    if ((c->rank == a->rank || a->what == CHAIN) && misbehave(b, c, a)) {
        bootstrap_leave(b);
        return 0;
    }
    if (a->what == SECOND_PART && c->rank != a->rank)
        job_sleep(0.3); /* so that no rank answers the first part */
    if (idle)
        wait_for_news(b, TIMEOUT);
    else
        result = bootstrap_allgather(b, mine, all, sizeof mine);
    struct mk_failure f;
    if (bootstrap_settle(b, &f)) {
        failure_sentence(&f, text, size);
        result = result ? result : -EIO;
    }
    /* And nothing hangs afterwards. */
    if (bootstrap_barrier(b) == 0)
        snprintf(text, size, "a barrier succeeded after the failure");
    bootstrap_leave(b);
    return result;
}

/* Every rank but `except` ends in time with the same sentence, which contains `says`. */
static void all_end(struct act act, uint32_t except, double latest, const char *says)
{
    struct job j;
    job_init(&j, 4, act.what == HANG ? HANG_TIMEOUT : TIMEOUT);
    job_start_all(&j, play, &act);
    for (uint32_t r = 0; r < 4; r++)
        if (r != except)
            job_wait(&j, r);
    if (except < 4)
        kill(j.pids[except], SIGKILL); /* it may stand still for ever */
    job_finish(&j);
    const char *first = NULL;
    for (uint32_t r = 0; r < 4; r++) {
        const struct job_report *p = &j.reports[r];
        if (r == except)
            continue;
        first = first ? first : p->text;
        if (!p->came || !p->result || !job_ended_within(&j, r, latest) || !strstr(p->text, says) ||
            strcmp(p->text, first))
            print_message("rank %u: came %d, result %d after %.2f s: %s\n", r, p->came, p->result,
                          p->seconds, p->text);
        assert_true(p->came);
        assert_int_not_equal(p->result, 0);
        assert_non_null(strstr(p->text, says));
        assert_string_equal(p->text, first);
        assert_true(job_ended_within(&j, r, latest));
    }
}

CASE(a_rank_killed_in_an_allgather)
{
    all_end((struct act){2, DIE_IN_ALLGATHER}, 2, SOON,
            "rank 2 is lost: its connection from 127.0.0.1 closed");
}

CASE(a_rank_killed_between_calls)
{
    all_end((struct act){3, DIE_IDLE}, 3, SOON, "rank 3 is lost: its connection");
}

CASE(rank_0_killed)
{
    all_end((struct act){0, DIE_IDLE}, 0, SOON, "rank 0 is lost: its connection");
    all_end((struct act){0, DIE_IN_ALLGATHER}, 0, SOON, "rank 0 is lost: its connection");
}

CASE(a_rank_that_hangs)
{
    all_end((struct act){1, HANG}, 1, HANG_TIMEOUT + 2,
            "waited 3.0 s for rank 1 to take part in an all-gather");
}

CASE(a_reported_failure_reaches_everybody)
{
    const char *says = "ag_gemm: rank 2 CTA 1 (compute) waited 1.5 s for chunk 4 of rank 1's A in "
                       "epoch 3 (flag 9 saw 2, "
                       "wants 3); rank 1 should have produced it";
    all_end((struct act){2, FAIL}, 9, SOON, says);
    all_end((struct act){2, FAIL_TWICE}, 9, SOON, says);
    says = "ag_gemm: rank 0 CTA 1";
    all_end((struct act){0, FAIL}, 9, SOON, says);
}

CASE(a_chain_of_waits_is_followed_to_its_end)
{
    all_end((struct act){0, CHAIN}, 9, SOON,
            "ag_gemm: rank 3 CTA 1 (compute) could not reach rank 1 with chunk 4");
}

/* Ranks 1 and 3 are missing in rank 0's barrier, but rank 1 waits itself: for something that names
 * no rank. */
static int miss_a_barrier(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    struct mk_failure f = timeout_of(1, 1);
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    f.waited_ns = (uint64_t)(HANG_TIMEOUT * 1e9);
    if (c->rank % 2)
        wait_for_news(b, TIMEOUT);
    else
        bootstrap_barrier(b);
    if (c->rank == 1)
        bootstrap_fail(b, &f);
    if (bootstrap_settle(b, &f))
        failure_sentence(&f, text, size);
    bootstrap_leave(b);
    return -EIO;
}

CASE(of_those_missing_in_a_barrier_the_silent_one_is_named)
{
    struct job j;
    job_init(&j, 4, HANG_TIMEOUT);
    job_start_all(&j, miss_a_barrier, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++)
        assert_string_equal(j.reports[r].text,
                            "rank 0 waited 3.0 s for rank 3 to take part in a barrier");
}

CASE(a_lost_rank_is_told_with_what_others_waited_for)
{
    for (uint32_t waiter = 0; waiter <= 2; waiter += 2) {
        char says[160];
        snprintf(says, sizeof says,
                 "closed; rank %u CTA 1 (compute) was waiting for chunk 4 of rank 1's A in epoch 3 "
                 "(flag 9 "
                 "saw 2, wants 3)",
                 waiter);
        all_end((struct act){waiter, ENRICH}, 1, SOON, says);
    }
}

CASE(ranks_that_call_different_things)
{
    all_end((struct act){3, BARRIER_INSTEAD}, 9, SOON,
            "rank 3 called a barrier (number 1) where rank 0 called an all-gather (number 1)");
    all_end((struct act){3, OTHER_SIZE}, 9, SOON, "rank 3 gave 8 bytes to an all-gather of 16");
}

CASE(a_rank_that_sends_garbage)
{
    all_end((struct act){1, GARBAGE}, 9, SOON,
            "a frame of unknown kind on the bootstrap's connection with rank 1");
    all_end((struct act){1, SECOND_PART}, 9, SOON,
            "a second message before the first was answered");
}

CASE(a_rank_that_leaves_early)
{
    all_end((struct act){2, LEAVE}, 2, SOON,
            "rank 2 is lost: it left the job when others called an all-gather");
    all_end((struct act){0, LEAVE}, 0, SOON,
            "rank 0 is lost: it left the job when others called an all-gather");
}

/* ---- a host that falls silent: its packets vanish, nothing closes ---- */

static int set_loopback(int up)
{
    struct ifreq r = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
        result = fd < 0 ? -1 : ioctl(fd, SIOCGIFFLAGS, &r);
    if (up)
        r.ifr_flags |= IFF_UP;
    else
        r.ifr_flags &= (short)~IFF_UP;
    if (!result)
        result = ioctl(fd, SIOCSIFFLAGS, &r);
    close(fd);
    return result;
}

static int fall_silent(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size);
    if (result)
        return result;
    bootstrap_barrier(b);
    job_sleep(0.2);
    if (c->rank == 0 && set_loopback(0))
        return -1;
    wait_for_news(b, 10);
    struct mk_failure f;
    if (bootstrap_settle(b, &f))
        failure_sentence(&f, text, size);
    bootstrap_leave(b);
    return f.kind == MK_FAIL_PEER_LOST ? -ECONNRESET : 0;
}

CASE(a_silent_host_is_found)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct job j;
        if ((unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) || set_loopback(1))
            _exit(77);
        job_init(&j, 2, 4);
        job_start_all(&j, fall_silent, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < 2; r++)
            if (j.reports[r].result != -ECONNRESET || !job_ended_within(&j, r, 6) ||
                !strstr(j.reports[r].text, "its host 127.0.0.1 does not answer")) {
                printf("rank %u: result %d after %.2f s: %s\n", r, j.reports[r].result,
                       j.reports[r].seconds, j.reports[r].text);
                fflush(NULL);
                _exit(1);
            }
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: no network namespace of one's own on this machine\n");
        skip();
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
