/* How the ranks meet: rank 0 listens, the others connect. */
#include "core/comm/bootstrap_internal.h"
#include "core/base/interrupt.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

/* Ranks other than 0 wait this much longer, so that rank 0's sentence, which names the missing
 * ranks, reaches them. */
#define REASON_NS 1000000000ull
#define LINGER_NS 1000000000ull
#define CONNECT_NS 2000000000ull /* one attempt to connect */
#define NAME_AGAIN_MS 100        /* between two look-ups of a name that did not resolve yet */

struct join_error {
    int error; /* -errno */
    char text[WIRE_REFUSE_TEXT];
};

#define fail(e, code, ...) ((e)->error = mk_fail(code, (e)->text, sizeof(e)->text, __VA_ARGS__))

#define SLICE_NS 100000000ull /* between two looks for an interrupt */
static _Thread_local int join_interrupted;

static int bootstrap_join_poll_until(struct pollfd *fds, uint32_t count, uint64_t deadline)
{
    for (;;) {
        uint64_t now = peer_now(), left = deadline > now ? deadline - now : 0;
        int last = left <= SLICE_NS, ms = (int)((last ? left : SLICE_NS) / 1000000);
        int n = poll(fds, count, ms + (last && left % 1000000 != 0));
        join_interrupted |= mk_interrupted();
        if (n || last || join_interrupted)
            return n;
    }
}

/* Whether waiting is over: by the clock, or for the program. */
static int bootstrap_join_over(uint64_t deadline)
{
    return join_interrupted || peer_now() >= deadline;
}

static int bootstrap_join_fail_interrupted(struct join_error *e)
{
    return fail(e, -EINTR, "interrupted while the ranks were joining");
}

static int bootstrap_join_fail_ranks_missing(struct bootstrap *b, struct join_error *e)
{
    char list[160] = "";
    uint32_t missing = 0;
    for (uint32_t r = 1; r < b->world; r++)
        if (b->peers[r].fd < 0 && ++missing <= 8)
            mk_append(list, sizeof list, "%s%u", *list ? ", " : "", r);
    if (missing > 8)
        mk_append(list, sizeof list, " and %u more", missing - 8);
    char strangers[320];
    return fail(e, -ETIMEDOUT, "%u of %u ranks did not join within %.1f s: rank%s %s%s", missing,
                b->world, (double)b->timeout_ns / 1e9, missing > 1 ? "s" : "", list,
                listener_strangers(&b->listener, strangers, sizeof strangers));
}

/* Takes a connection that proved to know the token in as its rank, or says why not. */
static int bootstrap_join_check_arrival(struct bootstrap *b, struct peer *p,
                                        const struct wire_hello *h, uint32_t version,
                                        struct join_error *e)
{
    if (version != WIRE_VERSION)
        return fail(e, -EPROTO,
                    "rank %u at %s speaks version %u of the bootstrap, rank 0 version %u", h->rank,
                    p->address, version, WIRE_VERSION);
    if (h->world != b->world)
        return fail(e, -EINVAL, "rank %u at %s was started for %u ranks, rank 0 for %u", h->rank,
                    p->address, h->world, b->world);
    if (h->rank >= b->world)
        return fail(e, -EINVAL, "a process at %s says it is rank %u of %u", p->address, h->rank,
                    b->world);
    if (h->rank == 0 || b->peers[h->rank].fd >= 0)
        return fail(e, -EEXIST, "rank %u joined twice, the second time from %s", h->rank,
                    p->address);
    b->peers[h->rank] = *p;
    b->peers[h->rank].last = &b->peers[h->rank].first;
    return 0;
}

/* A rank that has joined sends nothing until all have. */
static int bootstrap_join_check_waiting(struct peer *p, uint32_t rank, struct join_error *e)
{
    const char *why;
    int result = peer_receive(p, &why);
    if (result == 0)
        return 0;
    if (result == -EPROTO || result == 1)
        return fail(e, -EPROTO, "rank %u at %s sent %s while the ranks were joining", rank,
                    p->address, result == 1 ? "a message too early" : why);
    return fail(e, -ECONNRESET, "rank %u at %s was lost while the ranks were joining", rank,
                p->address);
}

static int bootstrap_join_gather_ranks(struct bootstrap *b, struct pollfd *fds, uint64_t deadline,
                                       struct join_error *e)
{
    uint32_t here = 1;
    while (here < b->world) {
        uint64_t until = deadline;
        uint32_t n = listener_watch(&b->listener, fds, &until);
        for (uint32_t r = 1; r < b->world; r++)
            if (b->peers[r].fd >= 0)
                fds[n++] = (struct pollfd){.fd = b->peers[r].fd, .events = POLLIN};
        if (bootstrap_join_poll_until(fds, n, until) < 0 && errno != EINTR)
            return fail(e, -errno, "rank 0 cannot wait for the others: %s", strerror(errno));
        for (uint32_t r = 1; r < b->world; r++)
            if (b->peers[r].fd >= 0 && bootstrap_join_check_waiting(&b->peers[r], r, e))
                return e->error;
        struct peer arrived;
        struct wire_hello hello;
        uint32_t version;
        int result;
        while ((result = listener_step(&b->listener, &arrived, &hello, &version)) == 1) {
            if (bootstrap_join_check_arrival(b, &arrived, &hello, version, e)) {
                listener_refuse(&arrived, e->error, e->text);
                return e->error;
            }
            here++;
        }
        if (result < 0)
            return fail(e, result, "rank 0 cannot accept connections: %s", strerror(-result));
        if (here < b->world && bootstrap_join_over(deadline))
            return join_interrupted ? bootstrap_join_fail_interrupted(e)
                                    : bootstrap_join_fail_ranks_missing(b, e);
    }
    return 0;
}

/* One descriptor a rank. */
static void bootstrap_join_allow_descriptors(uint32_t world)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < world + 256ull &&
        r.rlim_cur < r.rlim_max) {
        r.rlim_cur = world + 256ull < r.rlim_max ? world + 256ull : r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* The job has failed before some ranks connected: those that start at about the same time are told
 * why. */
static void bootstrap_join_tell_latecomers(struct bootstrap *b, struct pollfd *fds,
                                           uint32_t missing, uint64_t deadline,
                                           const struct join_error *e)
{
    uint64_t end = peer_now() + LINGER_NS < deadline ? peer_now() + LINGER_NS : deadline;
    while (missing && !bootstrap_join_over(end)) {
        struct peer arrived;
        struct wire_hello hello;
        uint32_t version;
        uint64_t until = end;
        bootstrap_join_poll_until(fds, listener_watch(&b->listener, fds, &until), until);
        int result;
        while ((result = listener_step(&b->listener, &arrived, &hello, &version)) == 1) {
            listener_refuse(&arrived, e->error, e->text);
            missing -= missing > 0;
        }
        if (result < 0)
            return;
    }
}

static int bootstrap_join_accept_ranks(struct bootstrap *b, const struct bootstrap_config *config,
                                       struct join_error *e)
{
    uint64_t deadline = peer_now() + b->timeout_ns;
    bootstrap_join_allow_descriptors(b->world);
    struct pollfd *fds = calloc(b->world + LISTENER_STRANGERS + 1, sizeof *fds);
    if (!fds)
        return fail(e, -ENOMEM, "out of memory");
    int result = e->error = listener_open(&b->listener, config, e->text, sizeof e->text);
    result = result ? result : bootstrap_join_gather_ranks(b, fds, deadline, e);
    if (!result)
        listener_complete(&b->listener);
    uint32_t missing = 0;
    for (uint32_t r = 1; r < b->world; r++)
        if (!result)
            peer_say(&b->peers[r], WIRE_WELCOME, 0, 0, b->peers[r].proof, HMAC_BYTES);
        else if (b->peers[r].fd >= 0)
            listener_refuse(&b->peers[r], result, e->text);
        else
            missing++;
    if (result && b->listener.fd >= 0)
        bootstrap_join_tell_latecomers(b, fds, missing, deadline, e);
    if (result)
        listener_close(&b->listener);
    free(fds);
    return result;
}

/* A connection to itself: the kernel gave this end the very port that it connects to. */
static int bootstrap_join_talks_to_itself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t a = sizeof here, c = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return getsockname(fd, (struct sockaddr *)&here, &a) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &c) == 0 && a == c &&
           !memcmp(&here, &there, a);
}

/* A connected socket or -errno. */
static int bootstrap_join_connect_once(const struct addrinfo *to, uint64_t deadline)
{
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    int result = connect(fd, to->ai_addr, to->ai_addrlen) ? -errno : 0;
    if (result == -EINPROGRESS || result == -EINTR) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        uint64_t until = peer_now() + CONNECT_NS;
        socklen_t size = sizeof result;
        result = ETIMEDOUT;
        if (bootstrap_join_poll_until(&p, 1, until < deadline ? until : deadline) > 0)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &result, &size);
        result = -result;
    }
    if (!result && bootstrap_join_talks_to_itself(fd))
        result = -ECONNREFUSED;
    if (result)
        close(fd);
    return result ? result : fd;
}

/* Connects again and again: rank 0 may start later. */
static int bootstrap_join_find_root(struct bootstrap *b, const struct bootstrap_config *config,
                                    uint64_t deadline, struct join_error *e)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *list = NULL;
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(config->port), .sin6_addr = in6addr_loopback};
    const struct addrinfo other = {
        .ai_family = AF_INET6, .ai_addr = (struct sockaddr *)&v6, .ai_addrlen = sizeof v6};
    const int here = listener_is_here(config->host);
    snprintf(port, sizeof port, "%u", config->port);
    int result;
    while ((result = getaddrinfo(here ? "127.0.0.1" : config->host, port, &hints, &list)) ==
               EAI_AGAIN &&
           !bootstrap_join_over(deadline))
        bootstrap_join_poll_until(
            NULL, 0,
            peer_now() + NAME_AGAIN_MS * 1000000ull); /* a name server that starts beside the job */
    if (result)
        return fail(e, -EHOSTUNREACH, "rank %u cannot find rank 0's host '%s': %s", b->rank,
                    config->host, gai_strerror(result));
    int fd = -ETIMEDOUT;
    for (int pause_ms = 10; fd < 0; pause_ms = pause_ms < 160 ? pause_ms * 2 : 160) {
        for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
            fd = bootstrap_join_connect_once(a, deadline);
        if (here && (fd == -ENETUNREACH || fd == -EAFNOSUPPORT))
            fd = bootstrap_join_connect_once(&other, deadline);
        if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || bootstrap_join_over(deadline))
            break;
        if (fd < 0)
            bootstrap_join_poll_until(NULL, 0, peer_now() + (uint64_t)pause_ms * 1000000);
    }
    freeaddrinfo(list);
    if (fd < 0 && join_interrupted)
        return bootstrap_join_fail_interrupted(e);
    if (fd < 0)
        return fail(e, fd, "rank %u could not reach rank 0 at %s port %u within %.1f s: %s",
                    b->rank, config->host, config->port, (double)b->timeout_ns / 1e9,
                    strerror(-fd));
    peer_tune(fd, b->timeout_ns);
    peer_init(&b->peers[0], fd);
    return 0;
}

/* Waits for a frame of `kind` from rank 0, which is then in its peer's `in`. -EBUSY: rank 0 had no
 * room, try again. */
static int bootstrap_join_hear(struct bootstrap *b, const struct bootstrap_config *config,
                               enum wire_kind kind, uint64_t deadline, struct join_error *e)
{
    struct peer *p = &b->peers[0];
    const char *why;
    int result, code;
    while ((result = peer_receive(p, &why)) == 0) {
        struct pollfd fd = {.fd = p->fd, .events = POLLIN | (p->first ? POLLOUT : 0)};
        int polled = bootstrap_join_poll_until(&fd, 1, deadline);
        if (join_interrupted)
            return bootstrap_join_fail_interrupted(e);
        if (polled == 0)
            return fail(
                e, -ETIMEDOUT,
                "rank %u waited %.1f s for the other ranks to join: rank 0 at %s does not say "
                "which ranks are missing",
                b->rank, (double)(b->timeout_ns + REASON_NS) / 1e9, p->address);
        peer_flush(p);
    }
    if (result < 0 && result != -EPROTO)
        return fail(e, -ECONNRESET,
                    "rank 0 at %s closed the connection before all ranks had joined", p->address);
    if (result == 1 && p->in.header.kind == WIRE_REFUSE &&
        !wire_get_refuse(p->in.payload, p->in.header.length, &code, e->text))
        return e->error = -code;
    if (result != 1 || p->in.header.kind != kind)
        return fail(e, -EPROTO, "the process at %s port %u is not rank 0: it sent %s", p->address,
                    config->port, result == 1 ? "something unexpected" : why);
    if (p->in.header.version != WIRE_VERSION)
        return fail(e, -EPROTO,
                    "rank 0 at %s speaks version %u of the bootstrap, rank %u version %u",
                    p->address, p->in.header.version, b->rank, WIRE_VERSION);
    return 0;
}

/* Each of the two proves that it knows the token, which does not cross the network. */
static int bootstrap_join_say_hello(struct bootstrap *b, const struct bootstrap_config *config,
                                    uint64_t deadline, struct join_error *e)
{
    struct peer *p = &b->peers[0];
    struct wire_hello hello = {.rank = b->rank, .world = b->world};
    uint8_t payload[WIRE_HELLO_BYTES], proof[HMAC_BYTES];
    int result = bootstrap_join_hear(b, config, WIRE_CHALLENGE, deadline, e);
    if (result)
        return result;
    if (getrandom(hello.nonce, sizeof hello.nonce, 0) != sizeof hello.nonce)
        return fail(e, -EIO, "rank %u gets no random bytes from the system", b->rank);
    wire_prove(hello.proof, WIRE_HELLO, config->token, p->in.payload, &hello);
    wire_prove(proof, WIRE_WELCOME, config->token, p->in.payload, &hello);
    wire_release(&p->in);
    wire_put_hello(payload, &hello);
    peer_say(p, WIRE_HELLO, 0, b->rank, payload, sizeof payload);
    result = bootstrap_join_hear(b, config, WIRE_WELCOME, deadline, e);
    if (!result && !hmac_same(p->in.payload, proof))
        result = fail(e, -EPERM,
                      "the process at %s port %u is not rank 0: it does not know the job's token",
                      p->address, config->port);
    wire_release(&p->in);
    return result;
}

static int bootstrap_join_root(struct bootstrap *b, const struct bootstrap_config *config,
                               struct join_error *e)
{
    uint64_t deadline = peer_now() + b->timeout_ns;
    int result;
    do {
        peer_close(&b->peers[0]);
        result = bootstrap_join_find_root(b, config, deadline, e);
        result = result ? result : bootstrap_join_say_hello(b, config, deadline + REASON_NS, e);
    } while (result == -EBUSY && peer_now() < deadline);
    return result;
}

int bootstrap_meet(struct bootstrap *b, const struct bootstrap_config *config, char *error,
                   size_t size)
{
    struct join_error e = {0, ""};
    join_interrupted = 0;
    int result = b->rank == 0 ? bootstrap_join_accept_ranks(b, config, &e)
                              : bootstrap_join_root(b, config, &e);
    if (result)
        snprintf(error, size, "%s", e.text);
    return result;
}
