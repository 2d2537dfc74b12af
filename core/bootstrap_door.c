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

/* Where the job stays on this host, so does the door. A name is no proof of that: Debian gives a host's own
 * name the address 127.0.1.1. */
static int stays_here(const char *host)
{
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

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

static int bind_port(const struct bootstrap_config *c)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(c->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(c->port)};
    int here = stays_here(c->host);
    v4.sin_addr.s_addr = htonl(here ? INADDR_LOOPBACK : INADDR_ANY);
    v6.sin6_addr = here ? in6addr_loopback : in6addr_any;
    if (here && strcmp(c->host, "::1"))
        return listen_on((struct sockaddr *)&v4, sizeof v4);
    int fd = listen_on((struct sockaddr *)&v6, sizeof v6);
    if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
        fd = listen_on((struct sockaddr *)&v4, sizeof v4);
    return fd;
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

/* How long a silent stranger may stay. */
static uint64_t patience(const struct door *d)
{
    uint64_t ns = d->stranger_count < DOOR_STRANGERS ? GREETING_NS : CROWDED_NS;
    return d->timeout_ns < ns ? d->timeout_ns : ns;
}

uint32_t door_watch(const struct door *d, struct pollfd *fds, uint64_t *deadline)
{
    uint32_t n = 0;
    if (d->listener < 0)
        return 0;
    if (d->stranger_count < DOOR_STRANGERS)
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
    uint8_t payload[4 + WIRE_REFUSE_TEXT], rest[512];
    size_t bytes = wire_put_refuse(payload, error < 0 ? -error : error, text);
    peer_say(p, WIRE_REFUSE, 0, 0, payload, bytes);
    shutdown(p->fd, SHUT_WR);
    /* Bytes that nobody has read would turn the close into a reset. */
    for (int i = 0; i < 64 && recv(p->fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++)
        ;
    peer_close(p);
}

/* Forgets a stranger whose connection went elsewhere or is closed. */
static void forget(struct door *d, uint32_t i)
{
    struct peer *p = &d->strangers[i];
    *p = d->strangers[--d->stranger_count];
    if (!p->first)
        p->last = &p->first; /* it pointed into the struct that moved */
}

static void turn_away(struct door *d, uint32_t i, int error, const char *text)
{
    snprintf(d->rumour, sizeof d->rumour, "a connection from %s was turned away: %s", d->strangers[i].address,
             text);
    door_refuse(&d->strangers[i], error, text);
    forget(d, i);
}

static int let_in(struct door *d)
{
    while (d->stranger_count < DOOR_STRANGERS) {
        int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
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
    int result = peer_receive(p, &why);
    if (result == 0 && peer_now() >= p->since + patience(d))
        turn_away(d, i, -EBUSY, "it did not greet in time");
    else if (result == -EPROTO)
        turn_away(d, i, -EPROTO, why);
    else if (result < 0) {
        snprintf(d->rumour, sizeof d->rumour, "a connection from %s ended without a greeting", p->address);
        peer_close(p);
        forget(d, i);
    } else if (result == 1 && p->in.header.kind != WIRE_HELLO)
        turn_away(d, i, -EPROTO, "a frame that is no greeting");
    else if (result == 1) {
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
