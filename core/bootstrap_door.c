#define _GNU_SOURCE /* accept4 */
#include "core/bootstrap_door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a stranger may take over its greeting: a rank sends it at once, a port scanner never. */
#define GREETING_NS 5000000000ull
/* And how long it is left alone while the room is full: the silent go, so that ranks come in. */
#define CROWDED_NS 250000000ull

/* Of what a stranger has sent behind its greeting, this much is read before the connection is closed. */
#define REST_BYTES 4096

static int listen_on(const struct sockaddr *address, socklen_t size)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0;
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

static int listen_on_all(uint16_t port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_ANY)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    int fd = listen_on((struct sockaddr *)&v6, sizeof v6);
    if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
        fd = listen_on((struct sockaddr *)&v4, sizeof v4);
    return fd;
}

/* An address is taken at its word: nobody reaches the port by another one. A name is not, for it may be another address here than
 * elsewhere (Debian gives a host's own name 127.0.1.1); nor is an address that no interface here has, as behind a container's
 * forwarded port. There the port is on all. */
static int bind_port(const struct bootstrap_config *c)
{
    const char *host = !strcmp(c->host, "localhost") ? "127.0.0.1" : c->host;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *address;
    char port[8];
    snprintf(port, sizeof port, "%u", c->port);
    if (getaddrinfo(host, port, &hints, &address))
        return listen_on_all(c->port);
    int fd = listen_on(address->ai_addr, address->ai_addrlen);
    freeaddrinfo(address);
    return fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT ? listen_on_all(c->port) : fd;
}

int bootstrap_listen(const char *host, uint16_t *port)
{
    struct bootstrap_config c = {.port = *port};
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    snprintf(c.host, sizeof c.host, "%s", host);
    int fd = bind_port(&c);
    if (fd < 0)
        return fd;
    if (getsockname(fd, (struct sockaddr *)&a, &size)) {
        int result = -errno;
        close(fd);
        return result;
    }
    *port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
    return fd;
}

int door_open(struct door *d, const struct bootstrap_config *config, char *error, size_t error_size)
{
    memset(d, 0, sizeof *d);
    memcpy(d->token, config->token, sizeof d->token);
    d->timeout_ns = config->timeout_ns;
    d->most = DOOR_STRANGERS;
    d->listener = config->listen_fd;
    if (d->listener >= 0) {
        fcntl(d->listener, F_SETFD, FD_CLOEXEC);
        fcntl(d->listener, F_SETFL, fcntl(d->listener, F_GETFL) | O_NONBLOCK);
        return 0;
    }
    d->listener = bind_port(config);
    if (d->listener >= 0)
        return 0;
    int result = d->listener;
    d->listener = -1;
    snprintf(error, error_size, "rank 0 cannot listen at port %u: %s%s", config->port, strerror(-result),
             result == -EADDRINUSE ? "; another job may be using it, name another port" : "");
    return result;
}

void door_close(struct door *d)
{
    for (uint32_t i = 0; i < d->stranger_count; i++)
        peer_close(&d->strangers[i]);
    d->stranger_count = 0;
    if (d->listener >= 0)
        close(d->listener);
    d->listener = -1;
}

static int has_room(const struct door *d)
{
    return d->stranger_count < d->most && !d->crowded;
}

/* How long a silent stranger may stay. */
static uint64_t patience(const struct door *d)
{
    uint64_t ns = has_room(d) ? GREETING_NS : CROWDED_NS;
    return d->timeout_ns < ns ? d->timeout_ns : ns;
}

uint32_t door_watch(const struct door *d, struct pollfd *fds, uint64_t *deadline)
{
    uint32_t n = 0;
    if (d->listener < 0)
        return 0;
    if (has_room(d))
        fds[n++] = (struct pollfd){.fd = d->listener, .events = POLLIN};
    for (uint32_t i = 0; i < d->stranger_count; i++) {
        fds[n++] = (struct pollfd){.fd = d->strangers[i].fd, .events = POLLIN};
        if (d->strangers[i].since + patience(d) < *deadline)
            *deadline = d->strangers[i].since + patience(d);
    }
    return n;
}

void door_refuse(struct peer *p, int error, const char *text)
{
    uint8_t payload[4 + WIRE_REFUSE_TEXT], rest[REST_BYTES];
    size_t bytes = wire_put_refuse(payload, error < 0 ? -error : error, text);
    peer_say(p, WIRE_REFUSE, 0, 0, payload, bytes);
    shutdown(p->fd, SHUT_WR);
    /* Bytes that nobody has read would turn the close into a reset; who sends more than a greeting may have that. */
    ssize_t unread = recv(p->fd, rest, sizeof rest, MSG_DONTWAIT);
    (void)unread;
    peer_close(p);
}

char *door_strangers(const struct door *d, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    if (d->turned_away > 1)
        used = (size_t)snprintf(text, size, " (%llu connections were turned away, the last from %s: %s",
                                (unsigned long long)d->turned_away, d->address, d->reason);
    else if (d->turned_away)
        used = (size_t)snprintf(text, size, " (a connection from %s was turned away: %s", d->address, d->reason);
    if (d->stranger_count && used < size)
        used += (size_t)snprintf(text + used, size - used, "%s%u stand%s at the door, one from %s", used ? "; " : " (",
                                 d->stranger_count, d->stranger_count > 1 ? "" : "s", d->strangers[0].address);
    if (used && used + 1 < size)
        memcpy(text + used, ")", 2);
    return text;
}

/* Forgets a stranger whose connection went elsewhere or is closed. */
static void forget(struct door *d, uint32_t i)
{
    struct peer *p = &d->strangers[i];
    *p = d->strangers[--d->stranger_count];
    if (!p->first)
        p->last = &p->first; /* it pointed into the struct that moved */
    d->crowded = 0;
}

static void remember(struct door *d, uint32_t i, const char *reason)
{
    snprintf(d->address, sizeof d->address, "%s", d->strangers[i].address);
    snprintf(d->reason, sizeof d->reason, "%s", reason);
    d->turned_away++;
}

static void turn_away(struct door *d, uint32_t i, int error, const char *text)
{
    remember(d, i, text);
    door_refuse(&d->strangers[i], error, text);
    forget(d, i);
}

void door_complete(struct door *d)
{
    while (d->stranger_count) /* a rank that has not greeted yet comes again, and hears that its seat is taken */
        turn_away(d, 0, -EBUSY, "all ranks have joined");
    d->most = DOOR_LATE;
}

static int let_in(struct door *d)
{
    for (uint32_t tries = 0; tries < DOOR_STRANGERS && has_room(d); tries++) {
        int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && d->stranger_count) {
            d->crowded = 1; /* until a stranger has gone */
            return 0;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ||
                       errno == EBADF || errno == EINVAL || errno == ENOTSOCK))
            return -errno;
        if (fd < 0)
            continue; /* that connection failed, not the listener */
        struct peer *p = &d->strangers[d->stranger_count++];
        peer_tune(fd, d->timeout_ns);
        peer_init(p, fd);
        p->since = peer_now();
    }
    return 0;
}

/* 1: the stranger at i showed the token; 0: still a stranger, or gone. */
static int listen_to(struct door *d, uint32_t i, struct wire_hello *hello)
{
    struct peer *p = &d->strangers[i];
    const char *why;
    int result = peer_receive_greeting(p, &why);
    if (result == 0 && peer_now() >= p->since + patience(d))
        turn_away(d, i, -EBUSY, "it did not greet in time");
    else if (result == -EPROTO)
        turn_away(d, i, -EPROTO, why);
    else if (result < 0) {
        remember(d, i, "it ended without a greeting");
        peer_close(p);
        forget(d, i);
    } else if (result == 1) {
        wire_get_hello(p->in.payload, hello);
        if (wire_same_token(hello->token, d->token))
            return 1;
        char text[128];
        snprintf(
            text, sizeof text,
            "wrong job token from a process that calls itself rank %u of %u; is another job at this port?",
            hello->rank, hello->world);
        turn_away(d, i, -EPERM, text);
    }
    return 0;
}

int door_step(struct door *d, struct peer *arrived, struct wire_hello *hello, uint32_t *version)
{
    if (d->listener < 0)
        return 0;
    int result = let_in(d);
    if (result)
        return result;
    for (uint32_t i = 0; i < d->stranger_count; i++) {
        uint32_t before = d->stranger_count;
        if (listen_to(d, i, hello)) {
            *version = d->strangers[i].in.header.version;
            *arrived = d->strangers[i];
            arrived->last = &arrived->first; /* nothing is queued on a stranger */
            wire_release(&arrived->in);
            forget(d, i);
            return 1;
        }
        if (d->stranger_count < before)
            i--; /* another took this place */
    }
    return 0;
}
