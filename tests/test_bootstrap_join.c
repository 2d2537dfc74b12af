/* Whatever goes wrong while ranks join ends in one sentence on every rank within the timeout; a stranger ends
 * nothing. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "core/bootstrap_wire.h"
#include "tests/helpers/job.h"

#include <dlfcn.h>
#include <netdb.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TIMEOUT 3.0 /* seconds, where it is to pass */
#define LATEST (TIMEOUT + 2)
#define LONG 30.0 /* where it is not */
#define SOON 2.5

static int join(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size);
    if (!result)
        result = bootstrap_barrier(b);
    bootstrap_leave(b);
    return result;
}

static int unanswered; /* questions for a name that the resolver does not answer yet; -1: any */

/* In place of the system's. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **list)
{
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&next, &symbol, sizeof next);
    if (!unanswered)
        return next(node, service, hints, list);
    unanswered -= unanswered > 0;
    return EAI_AGAIN;
}

/* A process that is no rank: it sends some bytes and stays silent until it is turned away. */
struct visitor {
    const void *bytes;
    size_t size;
    int connections;
};

static int visit(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const struct visitor *v = argument;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fds[64];
    for (int i = 0; i < v->connections; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (struct sockaddr *)&a, sizeof a) ||
            send(fds[i], v->bytes, v->size, MSG_NOSIGNAL) != (ssize_t)v->size)
            return -1;
    }
    /* What rank 0 answers before it closes. */
    uint8_t answer[1024];
    struct wire_parser p = {0};
    size_t used;
    const char *why;
    int code = 0;
    for (ssize_t n; (n = recv(fds[0], answer, sizeof answer, 0)) > 0;)
        if (wire_feed(&p, answer, (size_t)n, &used, &why) == 1 && p.header.kind == WIRE_REFUSE) {
            char said[WIRE_REFUSE_TEXT];
            if (wire_get_refuse(p.payload, p.header.length, &code, said))
                return -1;
            snprintf(text, size, "%s", said);
        }
    wire_release(&p);
    return -code;
}

static size_t hello_bytes(uint8_t *out, const char *token, uint32_t rank, uint32_t world)
{
    struct wire_hello h = {.rank = rank, .world = world};
    snprintf(h.token, sizeof h.token, "%s", token);
    wire_put_header(out, WIRE_HELLO, 0, rank, WIRE_HELLO_BYTES);
    wire_put_hello(out + WIRE_HEADER_BYTES, &h);
    return WIRE_HEADER_BYTES + WIRE_HELLO_BYTES;
}

static void ended(const struct job *j, uint32_t slot, int result, const char *says)
{
    const struct job_report *r = &j->reports[slot];
    if (!r->came || r->result != result || !strstr(r->text, says))
        print_message("process %u: came %d, result %d after %.2f s: %s\n", slot, r->came, r->result,
                      r->seconds, r->text);
    assert_true(r->came);
    assert_int_equal(r->result, result);
    assert_non_null(strstr(r->text, says));
    assert_true(job_ended_within(j, slot, LATEST));
    assert_null(strchr(r->text, '\n'));
}

static void a_missing_rank_is_named(void **state)
{
    struct job j;
    job_init(&j, 4, TIMEOUT);
    for (uint32_t r = 0; r < 4; r++) {
        struct bootstrap_config c = job_config(&j, r);
        if (r != 2)
            job_start(&j, r, &c, join, NULL);
    }
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++)
        if (r != 2)
            ended(&j, r, -ETIMEDOUT, "1 of 4 ranks did not join within 3.0 s: rank 2");
}

static void a_wrong_token_is_refused_and_the_rank_missing(void **state)
{
    struct job j;
    job_init(&j, 3, TIMEOUT);
    for (uint32_t r = 0; r < 3; r++) {
        struct bootstrap_config c = job_config(&j, r);
        if (r == 1)
            c.token[3] ^= 1;
        job_start(&j, r, &c, join, NULL);
    }
    job_finish(&j);
    ended(&j, 0, -ETIMEDOUT, "did not join within 3.0 s: rank 1");
    ended(&j, 0, -ETIMEDOUT, "wrong job token from a process that calls itself rank 1 of 3");
    ended(&j, 1, -EPERM, "wrong job token");
    ended(&j, 2, -ETIMEDOUT, "rank 1");
    assert_true(job_ended_within(&j, 1, SOON)); /* it need not wait */
}

static void a_rank_that_comes_twice_ends_the_job(void **state)
{
    struct job j;
    job_init(&j, 4, LONG);
    for (uint32_t r = 0; r < 4; r++) {
        struct bootstrap_config c = job_config(&j, r == 3 ? 1 : r);
        job_start(&j, r, &c, join, NULL);
    }
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        ended(&j, r, -EEXIST, "rank 1 came twice");
        assert_true(job_ended_within(&j, r, SOON));
    }
}

static void ranks_that_disagree_about_the_world_end_the_job(void **state)
{
    struct job j;
    job_init(&j, 3, LONG);
    for (uint32_t r = 0; r < 3; r++) {
        struct bootstrap_config c = job_config(&j, r);
        c.world += r == 2;
        job_start(&j, r, &c, join, NULL);
    }
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++)
        ended(&j, r, -EINVAL, "was started for 4 ranks, rank 0 for 3");
}

static void strangers_do_not_stop_the_job(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    uint8_t hello[256], frame[WIRE_HEADER_BYTES], liar[WIRE_HEADER_BYTES];
    struct visitor web = {request, sizeof request - 1, 1}, silent = {"", 0, 60}, wrong = {hello, 0, 1};
    struct visitor early = {frame, sizeof frame, 1}, huge = {liar, sizeof liar, 1};
    wrong.size = hello_bytes(hello, "a token of another job", 1, 2);
    wire_put_header(frame, WIRE_BYE, 0, 1, 0);
    wire_put_header(liar, WIRE_HELLO, 0, 1, UINT64_MAX);
    struct visitor *const visitors[] = {&web, &wrong, &early, &huge, &silent};
    struct job j;
    job_init(&j, 2, LONG);
    struct bootstrap_config root = job_config(&j, 0), c = job_config(&j, 1);
    job_start(&j, 0, &root, join, NULL);
    for (uint32_t i = 0; i < 5; i++) {
        job_start(&j, 2 + i, &c, visit, visitors[i]);
        if (i < 4)
            job_wait(&j, 2 + i); /* turned away */
    }
    job_sleep(0.2); /* the crowd of the silent stands in the door */
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    ended(&j, 0, 0, "");
    ended(&j, 1, 0, "");
    ended(&j, 2, -EPROTO, "bytes that are not mkernel's");
    ended(&j, 3, -EPERM, "wrong job token");
    ended(&j, 4, -EPROTO, "a frame that is no greeting");
    ended(&j, 5, -EPROTO, "a frame of impossible length");
    assert_true(j.reports[6].came);
}

/* It knows the token, so what it does is the job's. Rank 3 never comes: the others stand in the door. */
static void garbage_after_the_token_ends_the_job(void **state)
{
    uint8_t bytes[512];
    struct visitor v = {bytes, 0, 1};
    v.size = hello_bytes(bytes, "a token of this test", 1, 4);
    memset(bytes + v.size, 0x5a, 40);
    v.size += 40;
    struct job j;
    job_init(&j, 4, LONG);
    for (uint32_t r = 0; r < 3; r += 2) {
        struct bootstrap_config c = job_config(&j, r);
        job_start(&j, r, &c, join, NULL);
    }
    job_sleep(0.4);
    struct bootstrap_config c = job_config(&j, 1);
    job_start(&j, 1, &c, visit, &v);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++)
        ended(&j, r, -EPROTO,
              "rank 1 at 127.0.0.1 sent bytes that are not mkernel's while the ranks were joining");
}

static void another_version_is_told_so(void **state)
{
    uint8_t bytes[256];
    struct visitor v = {bytes, 0, 1};
    v.size = hello_bytes(bytes, "a token of this test", 1, 2);
    bytes[4] = 99;
    struct job j;
    job_init(&j, 2, LONG);
    struct bootstrap_config c = job_config(&j, 1), root = job_config(&j, 0);
    job_start(&j, 1, &c, visit, &v);
    job_start(&j, 0, &root, join, NULL);
    job_finish(&j);
    ended(&j, 0, -EPROTO, "speaks version 99 of the bootstrap, rank 0 version 2");
    ended(&j, 1, -EPROTO, "speaks version 99");
}

/* The first job goes on; every rank of the second ends. */
static void two_jobs_at_one_port(void **state)
{
    struct job j;
    job_init(&j, 3, LONG);
    for (uint32_t r = 0; r < 2; r++) {
        struct bootstrap_config c = job_config(&j, r);
        job_start(&j, r, &c, join, NULL);
    }
    for (uint32_t r = 0; r < 2; r++) {
        struct bootstrap_config c = job_config(&j, r);
        c.world = 2;
        c.listen_fd = -1;
        snprintf(c.token, sizeof c.token, "the other job");
        job_start(&j, 8 + r, &c, join, NULL);
    }
    job_sleep(0.3);
    struct bootstrap_config c = job_config(&j, 2);
    job_start(&j, 2, &c, join, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++)
        ended(&j, r, 0, "");
    ended(&j, 8, -EADDRINUSE, "another job may be using it");
    ended(&j, 9, -EPERM, "wrong job token");
}

static void kill_while_joining(uint32_t victim, int result, const char *says)
{
    struct job j;
    job_init(&j, 4, LONG);
    for (uint32_t r = 0; r < 3; r++) { /* rank 3 never comes, so the others stand in the door */
        struct bootstrap_config c = job_config(&j, r);
        job_start(&j, r, &c, join, NULL);
    }
    job_sleep(0.2);
    kill(j.pids[victim], SIGKILL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++)
        if (r != victim) {
            ended(&j, r, result, says);
            assert_true(job_ended_within(&j, r, SOON)); /* at once, not at the timeout */
        }
}

static void a_rank_killed_while_joining_ends_the_job(void **state)
{
    kill_while_joining(2, -ECONNRESET, "rank 2 at 127.0.0.1 was lost while the ranks were joining");
    kill_while_joining(0, -ECONNRESET,
                       "rank 0 at 127.0.0.1 closed the connection before all ranks had joined");
}

static void nobody_at_the_port(void **state)
{
    struct job j;
    job_init(&j, 2, TIMEOUT);
    close(j.listener);
    struct bootstrap_config c = job_config(&j, 1);
    j.listener = -1;
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    ended(&j, 1, -ECONNREFUSED, "rank 1 could not reach rank 0 at 127.0.0.1");
}

/* Somebody else's server: a store, a shell. */
static int serve_nonsense(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    int fd = accept(c->listen_fd, NULL, NULL);
    send(fd, "220 mail.example.org ESMTP\r\n", 28, MSG_NOSIGNAL);
    recv(fd, text, size, MSG_WAITALL);
    text[0] = '\0';
    return 0;
}

static void another_service_at_the_port(void **state)
{
    struct job j;
    job_init(&j, 2, LONG);
    struct bootstrap_config root = job_config(&j, 0), c = job_config(&j, 1);
    job_start(&j, 0, &root, serve_nonsense, NULL);
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    ended(&j, 1, -EPROTO, "is not rank 0: it sent bytes that are not mkernel's");
}

static int join_late(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    int result = bootstrap_join(&b, c, text, size);
    if (!result)
        job_sleep(0.5);
    if (!result)
        result = bootstrap_barrier(b);
    bootstrap_leave(b);
    return result;
}

static void a_second_copy_after_the_start_is_turned_away(void **state)
{
    struct job j;
    job_init(&j, 2, LONG);
    job_start_all(&j, join_late, NULL);
    job_sleep(0.2);
    struct bootstrap_config c = job_config(&j, 1);
    job_start(&j, 5, &c, join, NULL);
    job_finish(&j);
    ended(&j, 0, 0, "");
    ended(&j, 1, 0, "");
    ended(&j, 5, -EEXIST, "rank 1 came twice: the job at this port is complete and running");
}

/* The name server may start later than the ranks; where it never does, that is said within the timeout. */
static void a_name_may_be_known_later(void **state)
{
    struct job j;
    unanswered = 3;
    job_init(&j, 3, LONG);
    job_start_all(&j, join, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(j.reports[r].came, 1);
        assert_int_equal(j.reports[r].result, 0);
    }
    unanswered = -1;
    job_init(&j, 2, 1);
    struct bootstrap_config c = job_config(&j, 1);
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    unanswered = 0;
    assert_int_equal(j.reports[1].result, -EHOSTUNREACH);
    assert_non_null(strstr(j.reports[1].text, "rank 1 cannot find rank 0's host '127.0.0.1'"));
    assert_true(job_ended_within(&j, 1, LATEST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_wrong_token_is_refused_and_the_rank_missing),
        cmocka_unit_test(a_rank_that_comes_twice_ends_the_job),
        cmocka_unit_test(ranks_that_disagree_about_the_world_end_the_job),
        cmocka_unit_test(strangers_do_not_stop_the_job),
        cmocka_unit_test(garbage_after_the_token_ends_the_job),
        cmocka_unit_test(another_version_is_told_so),
        cmocka_unit_test(two_jobs_at_one_port),
        cmocka_unit_test(a_rank_killed_while_joining_ends_the_job),
        cmocka_unit_test(a_name_may_be_known_later),
        cmocka_unit_test(nobody_at_the_port),
        cmocka_unit_test(another_service_at_the_port),
        cmocka_unit_test(a_second_copy_after_the_start_is_turned_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
