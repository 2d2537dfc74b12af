#include "core/comm/bootstrap_listener.h"
#include "core/base/sentence.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* How long a stranger may take to send its hello: a rank sends it at once, a port scanner never. */
#define HELLO_NS 5000000000ull
/* And how long while no other connection can be accepted: silent ones are closed, so that ranks get
 * in. */
#define CROWDED_NS 250000000ull

/* Of a stranger's bytes behind its hello, this many are read before the connection is closed. */
#define REST_BYTES 4096

static int bootstrap_listener_listen_on(const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1,
        off = 0;
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address, size) || listen(fd, SOMAXCONN)) {
        int result = -errno;
        close(fd);
        return result;
    }
    return fd;
}

static int bootstrap_listener_listen_on_all(uint16_t port)
{
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_ANY)}};
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    int fd = bootstrap_listener_listen_on((struct sockaddr *)&v6, sizeof v6);
    if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
        fd = bootstrap_listener_listen_on((struct sockaddr *)&v4, sizeof v4);
    return fd;
}

static int bootstrap_listener_has_no_address(int result)
{
    return result == -EADDRNOTAVAIL || result == -EAFNOSUPPORT;
}

/* An address is listened at and no other: the port cannot be reached by another one. A name may be
 * another address here than elsewhere (Debian gives a host's own name 127.0.1.1), and an address
 * may belong to no interface here, as behind a container's forwarded port: there the port is on all
 * addresses. */
static int bootstrap_listener_bind_port(const struct bootstrap_config *c)
{
    const char *host = listener_is_here(c->host) ? "127.0.0.1" : c->host;
    struct sockaddr_in6 here = {
        .sin6_family = AF_INET6, .sin6_port = htons(c->port), .sin6_addr = in6addr_loopback};
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *address;
    char port[8];
    snprintf(port, sizeof port, "%u", c->port);
    if (getaddrinfo(host, port, &hints, &address))
        return bootstrap_listener_listen_on_all(c->port);
    int fd = bootstrap_listener_listen_on(address->ai_addr, address->ai_addrlen);
    freeaddrinfo(address);
    if (bootstrap_listener_has_no_address(fd) && listener_is_here(c->host))
        fd = bootstrap_listener_listen_on((struct sockaddr *)&here, sizeof here);
    return bootstrap_listener_has_no_address(fd) ? bootstrap_listener_listen_on_all(c->port) : fd;
}

int bootstrap_listen(const char *host, uint16_t *port)
{
    struct bootstrap_config c = {.port = *port};
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    snprintf(c.host, sizeof c.host, "%s", host);
    int fd = bootstrap_listener_bind_port(&c);
    if (fd < 0)
        return fd;
    if (getsockname(fd, (struct sockaddr *)&a, &size)) {
        int result = -errno;
        close(fd);
        return result;
    }
    *port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                          : ((struct sockaddr_in *)&a)->sin_port);
    return fd;
}

int listener_open(struct listener *l, const struct bootstrap_config *config, char *error,
                  size_t size)
{
    memset(l, 0, sizeof *l);
    memcpy(l->token, config->token, sizeof l->token);
    l->timeout_ns = config->timeout_ns;
    l->most = LISTENER_STRANGERS;
    l->fd = config->listen_fd;
    if (l->fd >= 0) {
        fcntl(l->fd, F_SETFD, FD_CLOEXEC);
        fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
        return 0;
    }
    l->fd = bootstrap_listener_bind_port(config);
    if (l->fd >= 0)
        return 0;
    int result = l->fd;
    l->fd = -1;
    return mk_fail(result, error, size, "rank 0 cannot listen at port %u: %s%s", config->port,
                   strerror(-result),
                   result == -EADDRINUSE ? "; another job may be using it, name another port" : "");
}

void listener_close(struct listener *l)
{
    for (uint32_t i = 0; i < l->stranger_count; i++)
        peer_close(&l->strangers[i]);
    l->stranger_count = 0;
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

static int bootstrap_listener_has_room(const struct listener *l)
{
    return l->stranger_count < l->most && !l->crowded;
}

/* How long a silent stranger may stay. */
static uint64_t bootstrap_listener_patience(const struct listener *l)
{
    uint64_t ns = bootstrap_listener_has_room(l) ? HELLO_NS : CROWDED_NS;
    return l->timeout_ns < ns ? l->timeout_ns : ns;
}

uint32_t listener_watch(const struct listener *l, struct pollfd *fds, uint64_t *deadline)
{
    uint32_t n = 0;
    if (l->fd < 0)
        return 0;
    if (bootstrap_listener_has_room(l))
        fds[n++] = (struct pollfd){.fd = l->fd, .events = POLLIN};
    for (uint32_t i = 0; i < l->stranger_count; i++) {
        fds[n++] = (struct pollfd){.fd = l->strangers[i].fd, .events = POLLIN};
        if (l->strangers[i].since + bootstrap_listener_patience(l) < *deadline)
            *deadline = l->strangers[i].since + bootstrap_listener_patience(l);
    }
    return n;
}

void listener_refuse(struct peer *p, int error, const char *text)
{
    uint8_t payload[4 + WIRE_REFUSE_TEXT], rest[REST_BYTES];
    size_t bytes = wire_put_refuse(payload, error < 0 ? -error : error, text);
    peer_say(p, WIRE_REFUSE, 0, 0, payload, bytes);
    shutdown(p->fd, SHUT_WR);
    /* Unread bytes would turn the close into a reset; a stranger that sends more than a hello may
     * get one. */
    ssize_t unread = recv(p->fd, rest, sizeof rest, MSG_DONTWAIT);
    (void)unread;
    peer_close(p);
}

char *listener_strangers(const struct listener *l, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    if (l->refused > 1)
        used = (size_t)snprintf(
            text, size, " (%lu unauthenticated connections were refused, the last from %s: %s",
            l->refused, l->address, l->reason);
    else if (l->refused)
        used =
            (size_t)snprintf(text, size, " (an unauthenticated connection from %s was refused: %s",
                             l->address, l->reason);
    if (l->stranger_count && used < size)
        used += (size_t)snprintf(
            text + used, size - used, "%s%u connection%s ha%s sent no hello yet, one from %s",
            used ? "; " : " (", l->stranger_count, l->stranger_count > 1 ? "s" : "",
            l->stranger_count > 1 ? "ve" : "s", l->strangers[0].address);
    if (used && used + 1 < size)
        memcpy(text + used, ")", 2);
    return text;
}

/* Forgets a stranger: its connection was handed over or is closed. */
static void bootstrap_listener_forget(struct listener *l, uint32_t i)
{
    struct peer *p = &l->strangers[i];
    *p = l->strangers[--l->stranger_count];
    if (!p->first)
        p->last = &p->first; /* it pointed into the struct that moved */
    l->crowded = 0;
}

static void bootstrap_listener_remember(struct listener *l, uint32_t i, const char *reason)
{
    snprintf(l->address, sizeof l->address, "%s", l->strangers[i].address);
    snprintf(l->reason, sizeof l->reason, "%s", reason);
    l->refused++;
}

static void bootstrap_listener_refuse(struct listener *l, uint32_t i, int error, const char *text)
{
    bootstrap_listener_remember(l, i, text);
    listener_refuse(&l->strangers[i], error, text);
    bootstrap_listener_forget(l, i);
}

void listener_complete(struct listener *l)
{
    /* a rank that has sent no hello yet connects again, and is told that its rank has joined */
    while (l->stranger_count)
        bootstrap_listener_refuse(l, 0, -EBUSY, "all ranks have joined");
    l->most = LISTENER_LATE;
}

static int bootstrap_listener_let_in(struct listener *l)
{
    for (uint32_t tries = 0; tries < LISTENER_STRANGERS && bootstrap_listener_has_room(l);
         tries++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && l->stranger_count) {
            l->crowded = 1; /* until a stranger's connection is closed */
            return 0;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ||
                       errno == EBADF || errno == EINVAL || errno == ENOTSOCK))
            return -errno;
        if (fd < 0)
            continue; /* that connection failed, not the listener */
        struct peer *p = &l->strangers[l->stranger_count++];
        peer_tune(fd, l->timeout_ns);
        peer_init(p, fd);
        p->since = peer_now();
        if (getrandom(p->challenge, sizeof p->challenge, 0) != sizeof p->challenge ||
            peer_say(p, WIRE_CHALLENGE, 0, 0, p->challenge, sizeof p->challenge) || p->first) {
            peer_close(p); /* a new socket takes a challenge, unless its other end is gone */
            l->stranger_count--;
        }
    }
    return 0;
}

/* 1: the stranger at i proved that it knows the token; 0: it has not yet, or is gone. */
static int bootstrap_listener_listen_to(struct listener *l, uint32_t i, struct wire_hello *hello)
{
    struct peer *p = &l->strangers[i];
    const char *why;
    int result = peer_receive_hello(p, &why);
    if (result == 0 && peer_now() >= p->since + bootstrap_listener_patience(l))
        bootstrap_listener_refuse(l, i, -EBUSY, "it sent no hello in time");
    else if (result == -EPROTO)
        bootstrap_listener_refuse(l, i, -EPROTO, why);
    else if (result < 0) {
        bootstrap_listener_remember(l, i, "it closed without a hello");
        peer_close(p);
        bootstrap_listener_forget(l, i);
    } else if (result == 1) {
        uint8_t proof[HMAC_BYTES];
        wire_get_hello(p->in.payload, hello);
        wire_prove(proof, WIRE_HELLO, l->token, p->challenge, hello);
        wire_prove(p->proof, WIRE_WELCOME, l->token, p->challenge, hello);
        if (hmac_same(hello->proof, proof))
            return 1;
        char text[128];
        snprintf(text, sizeof text,
                 "wrong job token from a process that says it is rank %u of %u; does another job "
                 "use this port?",
                 hello->rank, hello->world);
        bootstrap_listener_refuse(l, i, -EPERM, text);
    }
    return 0;
}

int listener_step(struct listener *l, struct peer *arrived, struct wire_hello *hello,
                  uint32_t *version)
{
    if (l->fd < 0)
        return 0;
    int result = bootstrap_listener_let_in(l);
    if (result)
        return result;
    for (uint32_t i = 0; i < l->stranger_count; i++) {
        uint32_t before = l->stranger_count;
        if (bootstrap_listener_listen_to(l, i, hello)) {
            *version = l->strangers[i].in.header.version;
            *arrived = l->strangers[i];
            arrived->last = &arrived->first; /* nothing is queued on a stranger */
            wire_release(&arrived->in);
            bootstrap_listener_forget(l, i);
            return 1;
        }
        if (l->stranger_count < before)
            i--; /* another took this place */
    }
    return 0;
}
