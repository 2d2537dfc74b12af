/* The two ends of `mkernel bench fabric` agree over a socket: fixed-size messages, bounded
 * waits. */
#include "experiments/bench/bench_fabric.h"
#include "core/base/sentence.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x314261464b4d0001ull

static int bench_fabric_wire_wait_for(int fd, short events, uint64_t deadline)
{
    uint64_t now = fabric_now();
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do
        n = poll(&p, 1, now < deadline ? (int)((deadline - now) / 1000000 + 1) : 0);
    while (n < 0 && errno == EINTR);
    return n > 0 ? 0 : n ? -errno : -ETIMEDOUT;
}

int wire_send(struct wire *w, const struct wire_message *m)
{
    struct wire_message out = *m;
    uint64_t deadline = fabric_now() + w->timeout_ns;
    out.magic = MAGIC;
    for (size_t at = 0; at < sizeof out;) {
        int rc = bench_fabric_wire_wait_for(w->fd, POLLOUT, deadline);
        if (rc)
            return rc;
        ssize_t n = send(w->fd, (char *)&out + at, sizeof out - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -ECONNRESET;
        at += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int wire_receive(struct wire *w, uint32_t kind, struct wire_message *m)
{
    uint64_t deadline = fabric_now() + w->timeout_ns;
    for (size_t at = 0; at < sizeof *m;) {
        int rc = bench_fabric_wire_wait_for(w->fd, POLLIN, deadline);
        if (rc)
            return rc;
        ssize_t n = recv(w->fd, (char *)m + at, sizeof *m - at, MSG_DONTWAIT);
        if (!n || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -ECONNRESET;
        at += n > 0 ? (size_t)n : 0;
    }
    if (m->magic != MAGIC)
        return -EPROTO;
    m->text[sizeof m->text - 1] = '\0';
    if (m->status)
        return m->status < 0 ? m->status : -EPROTO;
    return !kind || m->kind == kind ? 0 : -EBADMSG;
}

const char *wire_reason(int result, const struct wire_message *m)
{
    if (m->magic == MAGIC && m->status == result && m->text[0])
        return m->text;
    switch (result) {
    case -ECONNRESET:
        return "the other end has gone";
    case -EPROTO:
    case -EBADMSG:
        return "the other end is no `mkernel bench fabric` of this version";
    case -ETIMEDOUT:
        return "the other end says nothing";
    default:
        return strerror(-result);
    }
}

static void bench_fabric_wire_set_up(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

int wire_listen(uint16_t port, uint64_t timeout_ns, int *fd, char *error, size_t size)
{
    struct sockaddr_in6 address = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), bound;
    if (listener >= 0) {
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
        bound = bind(listener, (struct sockaddr *)&address, sizeof address);
    } else { /* a host without IPv6 */
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        bound = bind(listener, (struct sockaddr *)&ipv4, sizeof ipv4);
    }
    int rc = listener < 0 || bound || listen(listener, 1)
                 ? -errno
                 : bench_fabric_wire_wait_for(listener, POLLIN, fabric_now() + timeout_ns);
    if (!rc && (*fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
        rc = -errno;
    if (listener >= 0)
        close(listener);
    if (rc)
        snprintf(error, size, "no client on port %u: %s", port,
                 rc == -ETIMEDOUT ? "no client came in time" : strerror(-rc));
    else
        bench_fabric_wire_set_up(*fd);
    return rc;
}

int wire_dial(const char *host, uint16_t port, uint64_t timeout_ns, int *fd, char *error,
              size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char service[8];
    uint64_t deadline = fabric_now() + timeout_ns;
    snprintf(service, sizeof service, "%u", port);
    int found = getaddrinfo(host, service, &hints, &list), rc = -ECONNREFUSED;
    if (found)
        return mk_fail(-ENOENT, error, size, "no host %s: %s", host, gai_strerror(found));
    *fd = -1;
    while (rc && fabric_now() < deadline) { /* the server may still be starting */
        for (struct addrinfo *a = list; a && rc; a = a->ai_next) {
            int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
            if (s < 0)
                continue;
            struct timeval limit = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_usec = 1000};
            setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* bounds connect */
            rc = connect(s, a->ai_addr, a->ai_addrlen) ? -errno : 0;
            if (rc)
                close(s);
            else
                *fd = s;
        }
        if (rc)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    freeaddrinfo(list);
    if (rc)
        snprintf(error, size, "no server at %s port %u: %s", host, port, strerror(-rc));
    else
        bench_fabric_wire_set_up(*fd);
    return rc;
}
