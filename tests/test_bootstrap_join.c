/* Every failure while ranks join ends in one sentence on every rank within the timeout; a stranger
 * ends nothing. */
/* WAITS */
#include "core/comm/bootstrap_peer.h"
#include "tests/helpers/job.h"

#include <dlfcn.h>
#include <netdb.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/helpers/test.h"

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
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&next, &symbol, sizeof next);
    if (!unanswered)
        return next(node, service, hints, list);
    unanswered -= unanswered > 0;
    return EAI_AGAIN;
}

/* A process that is no rank: it sends some bytes, behind a hello where it has a token, and stays
 * silent until it is refused. */
struct visitor {
    const void *bytes;
    size_t size;
    int connections;
    const char *token;
    uint32_t world, version; /* 0: this one */
};

/* A hello by `token` for the challenge that comes first. Its bytes, or 0. */
static size_t hello_bytes(uint8_t *out, int fd, const struct visitor *v)
{
    uint8_t challenge[WIRE_HEADER_BYTES + WIRE_NONCE_BYTES];
    struct wire_hello h = {.rank = 1, .world = v->world};
    char token[WIRE_TOKEN_BYTES] = "";
    if (recv(fd, challenge, sizeof challenge, MSG_WAITALL) != sizeof challenge)
        return 0;
    snprintf(token, sizeof token, "%s", v->token);
    wire_prove(h.proof, WIRE_HELLO, token, challenge + WIRE_HEADER_BYTES, &h);
    wire_put_header(out, WIRE_HELLO, 0, 1, WIRE_HELLO_BYTES);
    wire_put_hello(out + WIRE_HEADER_BYTES, &h);
    if (v->version)
        out[4] = (uint8_t)v->version;
    return WIRE_HEADER_BYTES + WIRE_HELLO_BYTES;
}

static int visit(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    const struct visitor *v = argument;
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(c->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* a process that is let in is not refused, and would wait with the job */
    struct timeval patience = {20, 0};
    int fds[64];
    for (int i = 0; i < v->connections; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        uint8_t bytes[512];
        size_t said = 0;
        if (connect(fds[i], (struct sockaddr *)&a, sizeof a) ||
            (v->token && !(said = hello_bytes(bytes, fds[i], v))))
            return -1;
        if (v->size)
            memcpy(bytes + said, v->bytes, v->size);
        if (send(fds[i], bytes, said + v->size, MSG_NOSIGNAL) != (ssize_t)(said + v->size))
            return -1;
    }
    /* Rank 0's answer before it closes. */
    uint8_t answer[1024];
    struct wire_parser p = {0};
    size_t used;
    const char *why;
    int code = 0;
    for (ssize_t n; (n = recv(fds[0], answer, sizeof answer, 0)) > 0;)
        for (uint8_t *at = answer; n > 0; n -= (ssize_t)used, at += used) {
            if (wire_feed(&p, at, (size_t)n, &used, &why) != 1)
                continue;
            char said[WIRE_REFUSE_TEXT];
            if (p.header.kind == WIRE_REFUSE) {
                if (wire_get_refuse(p.payload, p.header.length, &code, said))
                    return -1;
                snprintf(text, size, "%s", said);
            }
            wire_release(&p);
        }
    wire_release(&p);
    return -code;
}

/* A process that is no rank either: it announces the longest message there is and sends zeros until
 * they are no longer taken, three times. Returns the megabytes that one connection has taken; 64
 * are too many to go on. */
static int flood(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static const uint8_t zeros[65536];
    uint8_t header[WIRE_HEADER_BYTES];
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(c->port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t most = 0, enough = (uint64_t)64 << 20;
    wire_put_header(header, WIRE_PART, 0, 1, WIRE_MAX_BYTES);
    for (int i = 0; i < 3 && most < enough; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        uint64_t sent = 0;
        struct timeval bound = {10, 0};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) ||
            send(fd, header, sizeof header, MSG_NOSIGNAL) < 0)
            return -1;
        for (ssize_t n; sent < enough && (n = send(fd, zeros, sizeof zeros, MSG_NOSIGNAL)) > 0;)
            sent += (uint64_t)n;
        close(fd);
        most = sent > most ? sent : most;
    }
    return (int)(most >> 20);
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

CASE(a_missing_rank_is_named)
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

CASE(a_wrong_token_is_refused_and_the_rank_missing)
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
    ended(&j, 0, -ETIMEDOUT, "wrong job token from a process that says it is rank 1 of 3");
    ended(&j, 1, -EPERM, "wrong job token");
    ended(&j, 2, -ETIMEDOUT, "rank 1");
    assert_true(job_ended_within(&j, 1, SOON)); /* it need not wait */
}

CASE(a_rank_that_joins_twice_ends_the_job)
{
    struct job j;
    job_init(&j, 4, LONG);
    for (uint32_t r = 0; r < 4; r++) {
        struct bootstrap_config c = job_config(&j, r == 3 ? 1 : r);
        job_start(&j, r, &c, join, NULL);
    }
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        ended(&j, r, -EEXIST, "rank 1 joined twice");
        assert_true(job_ended_within(&j, r, SOON));
    }
}

CASE(ranks_that_disagree_about_the_world_end_the_job)
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

CASE(strangers_do_not_stop_the_job)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    uint8_t frame[WIRE_HEADER_BYTES], liar[WIRE_HEADER_BYTES];
    struct visitor web = {request, sizeof request - 1, 1, NULL, 0, 0},
                   silent = {"", 0, 60, NULL, 0, 0},
                   wrong = {"", 0, 1, "a token of another job", 2, 0};
    struct visitor early = {frame, sizeof frame, 1, NULL, 0, 0},
                   huge = {liar, sizeof liar, 1, NULL, 0, 0};
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
            job_wait(&j, 2 + i); /* refused */
    }
    job_sleep(0.2); /* the silent connections take all the listener's room */
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    ended(&j, 0, 0, "");
    ended(&j, 1, 0, "");
    ended(&j, 2, -EPROTO, "bytes that are not mkernel's");
    ended(&j, 3, -EPERM, "wrong job token");
    ended(&j, 4, -EPROTO, "a frame that is not a hello");
    ended(&j, 5, -EPROTO, "a frame of impossible length");
    assert_true(j.reports[6].came);
}

/* Until `enough` is set. */
static int join_and_stay(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct bootstrap *b;
    const int *enough = argument;
    int result = bootstrap_join(&b, c, text, size), stay = !result;
    while (stay && !result) {
        int over = __atomic_load_n(enough, __ATOMIC_ACQUIRE), all[2] = {0, 0};
        result = bootstrap_allgather(b, &over, all, sizeof over);
        stay = !all[0] && !all[1];
    }
    bootstrap_leave(b);
    return result;
}

/* A connection that shows no token fills no memory, neither before the ranks have joined nor
 * afterwards. */
CASE(strangers_that_flood_are_cut_off)
{
    struct job j;
    int *enough =
        mmap(NULL, sizeof *enough, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(enough != MAP_FAILED);
    job_init(&j, 2, LONG);
    struct bootstrap_config root = job_config(&j, 0), c = job_config(&j, 1);
    job_start(&j, 0, &root, join_and_stay, enough);
    for (uint32_t i = 2; i < 6; i++)
        job_start(&j, i, &c, flood, NULL);
    for (uint32_t i = 2; i < 6; i++)
        job_wait(&j, i);
    job_start(&j, 1, &c, join_and_stay, enough);
    job_sleep(0.2); /* where rank 1 is late the first of these come before it, which is as good */
    for (uint32_t i = 6; i < 10; i++)
        job_start(&j, i, &c, flood, NULL);
    for (uint32_t i = 6; i < 10; i++)
        job_wait(&j, i);
    __atomic_store_n(enough, 1, __ATOMIC_RELEASE);
    job_finish(&j);
    munmap(enough, sizeof *enough);
    assert_int_equal(j.reports[0].result, 0);
    assert_int_equal(j.reports[1].result, 0);
    for (uint32_t i = 2; i < 10; i++) {
        assert_true(j.reports[i].came);
        /* megabytes: what the kernel's own buffers take */
        assert_in_range(j.reports[i].result, 0, 32);
    }
}

/* A stranger's turn costs one read, no longer than a hello, and no byte of a payload that its
 * header should not announce. */
CASE(a_turn_reads_one_hello_at_most)
{
    static const uint8_t zeros[8192];
    uint8_t header[WIRE_HEADER_BYTES], hello[WIRE_HEADER_BYTES + WIRE_HELLO_BYTES];
    struct peer p;
    const char *why;
    int ends[2], left;
    for (uint32_t kind = WIRE_HELLO; kind < WIRE_KINDS; kind++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        peer_init(&p, ends[0]);
        uint64_t length = kind == WIRE_FAIL                          ? WIRE_FAILURE_BYTES
                          : kind == WIRE_PART || kind == WIRE_RESULT ? WIRE_MAX_BYTES
                                                                     : 8;
        wire_put_header(header, (enum wire_kind)kind, 0, 1, length);
        assert_int_equal(write(ends[1], header, sizeof header), sizeof header);
        assert_int_equal(write(ends[1], zeros, sizeof zeros), sizeof zeros);
        assert_int_equal(peer_receive_hello(&p, &why), -EPROTO);
        assert_non_null(why);
        assert_int_equal(ioctl(ends[0], FIONREAD, &left), 0);
        assert_in_range(left, sizeof header + sizeof zeros - sizeof hello,
                        sizeof header + sizeof zeros);
        peer_close(&p);
        close(ends[1]);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peer_init(&p, ends[0]);
    memset(hello, 0, sizeof hello);
    wire_put_header(hello, WIRE_HELLO, 0, 1, WIRE_HELLO_BYTES);
    for (size_t i = 0; i < sizeof hello; i++) { /* in the smallest pieces */
        assert_int_equal(peer_receive_hello(&p, &why), 0);
        assert_int_equal(write(ends[1], hello + i, 1), 1);
    }
    assert_int_equal(peer_receive_hello(&p, &why), 1);
    peer_close(&p);
    close(ends[1]);
}

/* Where the port's strangers may have kept a rank out, the sentence names them. */
CASE(strangers_are_named_beside_a_missing_rank)
{
    static const char request[] = "GET / HTTP/1.1\r\n\r\n";
    struct visitor web = {request, sizeof request - 1, 1, NULL, 0, 0},
                   silent = {"", 0, 2, NULL, 0, 0};
    struct job j;
    job_init(&j, 2, TIMEOUT);
    struct bootstrap_config root = job_config(&j, 0);
    job_start(&j, 0, &root, join, NULL);
    for (uint32_t i = 2; i < 5; i++)
        job_start(&j, i, &root, visit, &web);
    for (uint32_t i = 2; i < 5; i++)
        job_wait(&j, i);
    job_start(&j, 5, &root, visit, &silent);
    job_finish(&j);
    ended(&j, 0, -ETIMEDOUT, "1 of 2 ranks did not join within 3.0 s: rank 1 (");
    ended(&j, 0, -ETIMEDOUT,
          " unauthenticated connections were refused, the last from 127.0.0.1: ");
}

static int join_with_few_files(const struct bootstrap_config *c, char *text, size_t size,
                               void *argument)
{
    struct rlimit few = {26, 26};
    if (setrlimit(RLIMIT_NOFILE, &few))
        return -1;
    return join(c, text, size, NULL);
}

/* A crowd that takes every descriptor keeps the ranks waiting, not out. */
CASE(strangers_do_not_take_the_last_descriptor)
{
    struct visitor silent = {"", 0, 40, NULL, 0, 0};
    struct job j;
    job_init(&j, 2, LONG);
    struct bootstrap_config root = job_config(&j, 0), c = job_config(&j, 1);
    job_start(&j, 0, &root, join_with_few_files, NULL);
    job_start(&j, 2, &c, visit, &silent);
    job_sleep(0.2);
    job_start(&j, 1, &c, join, NULL);
    job_finish(&j);
    ended(&j, 0, 0, "");
    ended(&j, 1, 0, "");
}

/* An address is listened at, and no other; a name is no address. */
CASE(the_port_is_where_the_ranks_were_told)
{
    static const struct {
        const char *host;
        uint32_t elsewhere; /* reached at 127.0.0.3 */
        uint32_t address;
    } places[] = {{"127.0.0.2", 0, 0x7f000002},
                  {"localhost", 0, INADDR_LOOPBACK},
                  {"127.0.0.1", 0, INADDR_LOOPBACK},
                  {"rank0.invalid", 1, INADDR_LOOPBACK},
                  {"192.0.2.1", 1, INADDR_LOOPBACK}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint16_t port = 0;
        int fd = bootstrap_listen(places[i].host, &port);
        assert_true(fd >= 0);
        for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
            struct sockaddr_in a = {.sin_family = AF_INET,
                                    .sin_port = htons(port),
                                    .sin_addr.s_addr =
                                        htonl(elsewhere ? 0x7f000003 : places[i].address)};
            int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            assert_int_equal(connect(caller, (struct sockaddr *)&a, sizeof a) == 0,
                             !elsewhere || places[i].elsewhere);
            close(caller);
        }
        close(fd);
    }
}

/* It knows the token, so what it does is the job's. Rank 3 never comes: the others are still
 * joining. */
CASE(garbage_after_the_token_ends_the_job)
{
    uint8_t bytes[40];
    struct visitor v = {bytes, sizeof bytes, 1, "a token of this test", 4, 0};
    memset(bytes, 0x5a, sizeof bytes);
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

CASE(another_version_is_told_so)
{
    struct visitor v = {"", 0, 1, "a token of this test", 2, 99};
    struct job j;
    job_init(&j, 2, LONG);
    struct bootstrap_config c = job_config(&j, 1), root = job_config(&j, 0);
    job_start(&j, 1, &c, visit, &v);
    job_start(&j, 0, &root, join, NULL);
    job_finish(&j);
    ended(&j, 0, -EPROTO, "speaks version 99 of the bootstrap, rank 0 version 4");
    ended(&j, 1, -EPROTO, "speaks version 99");
}

/* The first job goes on; every rank of the second ends. */
CASE(two_jobs_at_one_port)
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

/* In rank 0's place: it challenges whoever connects, takes a hello and says WELCOME without a proof
 * (argument NULL) or with the very proof that came. -1: what came has the token in it. */
static int pretend(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    static const uint8_t nonce[WIRE_NONCE_BYTES] = {1};
    uint8_t hello[WIRE_HEADER_BYTES + WIRE_HELLO_BYTES], zeros[HMAC_BYTES] = {0};
    struct peer p;
    peer_init(&p, accept(c->listen_fd, NULL, NULL));
    peer_say(&p, WIRE_CHALLENGE, 0, 0, nonce, sizeof nonce);
    if (recv(p.fd, hello, sizeof hello, MSG_WAITALL) != sizeof hello ||
        memmem(hello, sizeof hello, c->token, strlen(c->token)))
        return -1;
    peer_say(&p, WIRE_WELCOME, 0, 0, argument ? hello + WIRE_HEADER_BYTES : zeros, HMAC_BYTES);
    ssize_t closed = recv(p.fd, hello, sizeof hello, 0);
    peer_close(&p);
    return (int)closed;
}

CASE(a_stranger_at_rank_0s_port_is_not_followed)
{
    for (uint32_t again = 0; again < 2; again++) {
        struct job j;
        job_init(&j, 2, LONG);
        struct bootstrap_config root = job_config(&j, 0), c = job_config(&j, 1);
        job_start(&j, 0, &root, pretend, again ? &again : NULL);
        job_start(&j, 1, &c, join, NULL);
        job_finish(&j);
        assert_int_equal(j.reports[0].result, 0);
        ended(&j, 1, -EPERM, "is not rank 0: it does not know the job's token");
    }
}

static void kill_while_joining(uint32_t victim, int result, const char *says)
{
    struct job j;
    job_init(&j, 4, LONG);
    for (uint32_t r = 0; r < 3; r++) { /* rank 3 never comes, so the others are still joining */
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

CASE(a_rank_killed_while_joining_ends_the_job)
{
    kill_while_joining(2, -ECONNRESET, "rank 2 at 127.0.0.1 was lost while the ranks were joining");
    kill_while_joining(0, -ECONNRESET,
                       "rank 0 at 127.0.0.1 closed the connection before all ranks had joined");
}

CASE(no_listener_at_the_port)
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

/* Another service at the port: a store, a shell. */
static int serve_nonsense(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    int fd = accept(c->listen_fd, NULL, NULL);
    send(fd, "220 mail.example.org ESMTP\r\n", 28, MSG_NOSIGNAL);
    recv(fd, text, size, MSG_WAITALL);
    text[0] = '\0';
    return 0;
}

CASE(another_service_at_the_port)
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

CASE(a_second_copy_after_the_start_is_refused)
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
    ended(&j, 5, -EEXIST, "rank 1 joined twice: the job at this port is complete and running");
}

/* The name server may start later than the ranks; where it never does, that is said within the
 * timeout. */
CASE(a_name_may_be_known_later)
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
