#include "core/comm/bootstrap_peer.h"
#include "core/base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t peer_now(void)
{
    return mk_now_ns();
}

void peer_init(struct peer *p, int fd)
{
    memset(p, 0, sizeof *p);
    p->fd = fd;
    p->last = &p->first;
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    char host[48] = "?";
    if (fd >= 0 && getpeername(fd, (struct sockaddr *)&a, &size) == 0)
        getnameinfo((struct sockaddr *)&a, size, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    snprintf(p->address, sizeof p->address, "%s", strncmp(host, "::ffff:", 7) ? host : host + 7);
}

void peer_tune(int fd, uint64_t timeout_ns)
{
    uint64_t seconds = timeout_ns / 1000000000ull;
    int on = 1, probes = 3, every = seconds < 4 ? 1 : (int)(seconds / 4);
    unsigned ms = (unsigned)(timeout_ns / 1000000ull);
    /* None of these can fail on a TCP socket in a way that matters: the waits above them are
     * bounded anyway. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

struct peer_blob *peer_frame(enum wire_kind kind, uint32_t sequence, uint32_t from,
                             const void *payload, uint64_t bytes)
{
    struct peer_blob *blob = malloc(sizeof *blob + WIRE_HEADER_BYTES + bytes);
    if (!blob)
        return NULL;
    blob->references = 1;
    blob->bytes = WIRE_HEADER_BYTES + bytes;
    wire_put_header(blob->data, kind, sequence, from, bytes);
    if (bytes && payload) /* without one the caller fills it in */
        memcpy(blob->data + WIRE_HEADER_BYTES, payload, bytes);
    return blob;
}

void peer_drop(struct peer_blob *blob)
{
    if (blob && --blob->references == 0)
        free(blob);
}

int peer_flush(struct peer *p)
{
    while (p->first && p->fd >= 0) {
        struct peer_send *s = p->first;
        ssize_t n = send(p->fd, s->blob->data + p->sent, s->blob->bytes - p->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
        p->sent += (uint64_t)n;
        if (p->sent < s->blob->bytes)
            continue;
        p->sent = 0;
        p->first = s->next;
        if (!p->first)
            p->last = &p->first;
        peer_drop(s->blob);
        free(s);
    }
    return 0;
}

int peer_send(struct peer *p, struct peer_blob *blob)
{
    if (p->fd < 0)
        return -ENOTCONN;
    struct peer_send *s = malloc(sizeof *s);
    if (!s)
        return -ENOMEM;
    s->next = NULL;
    s->blob = blob;
    blob->references++;
    *p->last = s;
    p->last = &s->next;
    return peer_flush(p);
}

int peer_say(struct peer *p, enum wire_kind kind, uint32_t sequence, uint32_t from,
             const void *payload, uint64_t bytes)
{
    struct peer_blob *blob = peer_frame(kind, sequence, from, payload, bytes);
    if (!blob)
        return -ENOMEM;
    int result = peer_send(p, blob);
    peer_drop(blob);
    return result;
}

/* Reads no further than the end of a frame, so that a parser never holds the beginning of the
 * next. */
int peer_receive(struct peer *p, const char **why)
{
    uint8_t buffer[65536];
    *why = NULL;
    for (;;) {
        uint64_t missing = p->in.have < WIRE_HEADER_BYTES ? WIRE_HEADER_BYTES - p->in.have
                                                          : p->in.header.length - p->in.got;
        ssize_t n =
            recv(p->fd, buffer, missing < sizeof buffer ? missing : sizeof buffer, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ECONNRESET;
        size_t used;
        int result = wire_feed(&p->in, buffer, (size_t)n, &used, why);
        if (result)
            return result;
    }
}

int peer_receive_hello(struct peer *p, const char **why)
{
    uint8_t buffer[WIRE_HEADER_BYTES + WIRE_HELLO_BYTES];
    size_t have = p->in.have + p->in.got, used;
    ssize_t n;
    *why = NULL;
    do
        n = recv(p->fd, buffer, sizeof buffer - have, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n == 0 ? -ECONNRESET : errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    int result = wire_feed(&p->in, buffer, (size_t)n, &used, why);
    if (result < 0 || p->in.have < WIRE_HEADER_BYTES || p->in.header.kind == WIRE_HELLO)
        return result;
    *why = "a frame that is not a hello";
    return -EPROTO;
}

void peer_close(struct peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    while (p->first) {
        struct peer_send *s = p->first;
        p->first = s->next;
        peer_drop(s->blob);
        free(s);
    }
    p->last = &p->first;
    wire_release(&p->in);
}
