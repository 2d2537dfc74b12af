/* Links: one unix stream socket from each context that sends requests to each that takes them.
 *
 * A context listens on an abstract name made of the user, the device and the context's number; the
 * kernel keeps those unique and forgets them with the process, so there is nothing to clean up.
 * SO_PEERCRED names the user at the other end. */
#include "nic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    ACK_BYTES = 64 << 10
}; /* acknowledged at once after this much, so that a shallow send queue keeps moving */

static socklen_t link_address_of(int device, uint32_t context, struct sockaddr_un *address)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1,
                          "softnic/%u/soft%d/%u", (unsigned)getuid(), device, context);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Takes the first free context number of this device on this host, beginning at a place of its own
 * so that processes that start together do not queue for the same one. */
int softnic_link_listen(struct softnic_context *ctx)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    uint32_t start = (uint32_t)getpid() * 37u;
    for (uint32_t tried = 0; tried < SOFTNIC_MAX_CONTEXT - 2; tried++) {
        uint32_t id = 1 + (start + tried) % (SOFTNIC_MAX_CONTEXT - 2);
        socklen_t length = link_address_of(ctx->device->index, id, &address);
        if (!bind(fd, (struct sockaddr *)&address, length)) {
            if (listen(fd, 1024)) {
                int error = errno;
                close(fd);
                return -error;
            }
            ctx->id = id;
            ctx->listen_fd = fd;
            return 0;
        }
        if (errno != EADDRINUSE)
            break;
    }
    int error = errno;
    close(fd);
    return error == EADDRINUSE ? -EMFILE : -error;
}

/* Only this user's processes belong to the fabric. */
static bool link_peer_trusted(int fd, pid_t *pid)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != getuid())
        return false;
    *pid = peer.pid;
    return true;
}

static struct softnic_link *link_new(struct softnic_context *ctx, int fd, bool requester)
{
    struct softnic_link *link = calloc(1, sizeof(*link));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    int buffer = 1 << 20;
    if (!link)
        return NULL;
    link->context = ctx;
    link->fd = fd;
    link->requester = requester;
    link->peer_device = link->peer_context = -1;
    /* a random value: another process would hardly have it at that address */
    link->hello_word = softnic_now() ^ (uint64_t)(uintptr_t)link << 16;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    if (!link_peer_trusted(fd, &link->peer_pid) ||
        epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
        free(link);
        return NULL;
    }
    link->next = ctx->links;
    ctx->links = link;
    return link;
}

/* Reports once that no file descriptor is left for a connection, whose messages would otherwise be
 * lost silently until a timeout. */
static void link_tell_shortage(struct softnic_context *ctx, int error)
{
    if ((error == EMFILE || error == ENFILE) && !ctx->short_of_files) {
        ctx->short_of_files = true;
        softnic_event_device(ctx, IBV_EVENT_DEVICE_FATAL);
    }
}

struct softnic_link *softnic_link_to(struct softnic_context *ctx, int device, int context)
{
    struct sockaddr_un address;
    struct softnic_link *link;
    if (softnic_drops(ctx, device))
        return NULL;
    for (link = ctx->links; link; link = link->next)
        if (link->requester && !link->dead && link->peer_device == device &&
            link->peer_context == context)
            return link;

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        link_tell_shortage(ctx, errno);
        return NULL;
    }
    socklen_t length = link_address_of(device, (uint32_t)context, &address);
    link = connect(fd, (struct sockaddr *)&address, length) ? NULL : link_new(ctx, fd, true);
    if (!link) {
        close(fd);
        return NULL;
    }
    link->peer_device = device;
    link->peer_context = context;
    struct softnic_frame hello = {.kind = SOFTNIC_HELLO,
                                  .qpn_from =
                                      (uint32_t)ctx->device->index << SOFTNIC_QP_BITS | ctx->id,
                                  .address = (uintptr_t)&link->hello_word,
                                  .operand = {link->hello_word}};
    softnic_link_send(link, &hello, NULL, 0);
    softnic_link_flush(link);
    return link->dead ? NULL : link;
}

void softnic_link_accept(struct softnic_context *ctx)
{
    int fd;
    while ((fd = accept4(ctx->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        if (!link_new(ctx, fd, false))
            close(fd);
    if (errno != EMFILE && errno != ENFILE)
        return;
    link_tell_shortage(ctx, errno);
    /* a pending connection would wake this thread for ever */
    epoll_ctl(ctx->epoll_fd, EPOLL_CTL_DEL, ctx->listen_fd, NULL);
}

size_t softnic_link_pending(const struct softnic_link *link)
{
    return link->out_tail - link->out_head;
}

/* The buffer grows with what is in flight, which queue depths bound. */
void *softnic_link_reserve(struct softnic_link *link, const struct softnic_frame *head,
                           size_t tail_bytes)
{
    size_t need = sizeof(*head) + tail_bytes;
    if (link->out_size - link->out_tail < need && link->out_head) {
        memmove(link->out, link->out + link->out_head, softnic_link_pending(link));
        link->out_tail -= link->out_head;
        link->out_head = 0;
    }
    if (link->out_size - link->out_tail < need) {
        size_t size = (link->out_tail + need) * 2;
        uint8_t *out = realloc(link->out, size);
        if (!out) {
            softnic_link_kill(link);
            return NULL;
        }
        link->out = out;
        link->out_size = size;
    }
    struct softnic_frame whole = *head;
    whole.magic = SOFTNIC_FRAME_MAGIC;
    uint8_t *at = link->out + link->out_tail;
    memcpy(at, &whole, sizeof(whole));
    link->out_tail += need;
    return at + sizeof(whole);
}

bool softnic_link_send(struct softnic_link *link, const struct softnic_frame *head,
                       const void *tail, size_t tail_bytes)
{
    void *at = softnic_link_reserve(link, head, tail_bytes);
    if (at && tail_bytes)
        memcpy(at, tail, tail_bytes);
    return at != NULL;
}

void softnic_link_flush_acks(struct softnic_link *link)
{
    if (!link->ack.owed)
        return;
    struct softnic_frame ack = {.kind = SOFTNIC_ACK,
                                .qpn_to = link->ack.qpn_to,
                                .qpn_from = link->ack.qpn_from,
                                .psn = link->ack.psn};
    link->ack.owed = false;
    link->ack.bytes = 0;
    softnic_link_send(link, &ack, NULL, 0);
}

void softnic_link_acknowledge(struct softnic_link *link, const struct softnic_frame *request)
{
    if (link->ack.owed && link->ack.qpn_from != request->qpn_to)
        softnic_link_flush_acks(link);
    link->ack.owed = true;
    link->ack.qpn_to = request->qpn_from;
    link->ack.qpn_from = request->qpn_to;
    link->ack.psn = request->psn;
    link->ack.bytes += request->length;
    if (link->ack.bytes >= ACK_BYTES) {
        softnic_link_flush_acks(link);
        softnic_link_flush(link);
    }
}

void softnic_link_watch(struct softnic_link *link, bool write)
{
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = link};
    if (link->watch_write != write &&
        !epoll_ctl(link->context->epoll_fd, EPOLL_CTL_MOD, link->fd, &event))
        link->watch_write = write;
}

void softnic_link_flush(struct softnic_link *link)
{
    while (!link->dead && softnic_link_pending(link)) {
        ssize_t n = send(link->fd, link->out + link->out_head, softnic_link_pending(link),
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            softnic_link_watch(link, true);
            return;
        }
        if (n < 0) {
            softnic_link_kill(link);
            return;
        }
        link->out_head += (size_t)n;
    }
    if (!link->dead)
        link->out_head = link->out_tail = 0;
}

void softnic_links_flush(struct softnic_context *ctx)
{
    for (struct softnic_link *link = ctx->links; link; link = link->next)
        if (!link->watch_write && softnic_link_pending(link))
            softnic_link_flush(link);
}

void softnic_link_kill(struct softnic_link *link)
{
    if (link->dead)
        return;
    link->dead = true;
    shutdown(link->fd, SHUT_RDWR);
    /* a wait for the peer to map something is in vain now */
    pthread_cond_broadcast(&link->context->idle);
}

void softnic_links_drop(struct softnic_context *ctx)
{
    for (struct softnic_link *link = ctx->links; link; link = link->next)
        if (link->peer_device >= 0 && softnic_drops(ctx, link->peer_device))
            softnic_link_kill(link);
}
