#include "core/base/fd_pass.h"
#include "core/base/clock.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* With the descriptor. */
struct fd_pass_word {
    uint8_t key[16]; /* the receiver's */
    uint32_t from;
};

union fd_pass_control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

static socklen_t fd_pass_address(const struct fd_pass_name *n, struct sockaddr_un *address)
{
    size_t length = strnlen(n->name, sizeof n->name);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, n->name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int fd_pass_open(struct fd_pass *p, char *error, size_t size)
{
    struct sockaddr_un address;
    uint64_t bits[2];
    memset(p, 0, sizeof *p);
    p->listens = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int failed = p->listens < 0 || getrandom(bits, sizeof bits, 0) != sizeof bits ||
                 getrandom(p->name.key, sizeof p->name.key, 0) != sizeof p->name.key;
    if (!failed) {
        snprintf(p->name.name, sizeof p->name.name, "mkernel-%016lx%016lx", bits[0], bits[1]);
        socklen_t length = fd_pass_address(&p->name, &address);
        failed = bind(p->listens, (struct sockaddr *)&address, length) ||
                 listen(p->listens, FD_PASS_RANKS);
    }
    if (!failed)
        return 0;
    int result = errno ? -errno : -EIO;
    return mk_fail(result, error, size, "no socket for the node's other ranks: %s",
                   strerror(-result));
}

void fd_pass_close(struct fd_pass *p)
{
    if (p->listens >= 0)
        close(p->listens);
    p->listens = -1;
}

static int fd_pass_send(const struct fd_pass_name *to, uint32_t self, int fd)
{
    struct sockaddr_un address;
    struct fd_pass_word word = {.from = self};
    struct iovec part = {&word, sizeof word};
    union fd_pass_control control;
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    socklen_t length = fd_pass_address(to, &address);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), result = 0;
    if (s < 0)
        return -errno;
    memcpy(word.key, to->key, sizeof word.key);
    memset(&control, 0, sizeof control);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    /* what has been sent can be received after the socket is closed */
    if (connect(s, (struct sockaddr *)&address, length) ||
        sendmsg(s, &m, MSG_NOSIGNAL) != (ssize_t)sizeof word)
        result = errno ? -errno : -EIO;
    close(s);
    return result;
}

/* The milliseconds until `end`; 0 where it is past. */
static int fd_pass_left(uint64_t end)
{
    uint64_t now = mk_now_ns();
    return now < end ? (int)((end - now) / 1000000) + 1 : 0;
}

static int fd_pass_is_mine(int s)
{
    struct ucred who;
    socklen_t length = sizeof who;
    return !getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &length) && who.uid == geteuid();
}

/* What comes over a connection: a rank's number, and its descriptor in *fd. -1: nothing of a
 * rank. */
static int64_t fd_pass_receive(const struct fd_pass *p, int s, uint64_t end, int *fd)
{
    struct fd_pass_word word;
    struct iovec part = {&word, sizeof word};
    union fd_pass_control control;
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    struct pollfd ready = {s, POLLIN, 0};
    *fd = -1;
    if (!fd_pass_is_mine(s) || poll(&ready, 1, fd_pass_left(end)) != 1)
        return -1;
    ssize_t got = recvmsg(s, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return *fd >= 0 && got == (ssize_t)sizeof word &&
                   !memcmp(word.key, p->name.key, sizeof word.key)
               ? (int64_t)word.from
               : -1;
}

/* Until all but `self` have come. 0 or -errno. */
static int fd_pass_receive_all(struct fd_pass *p, uint32_t self, uint32_t count, int *fds,
                               uint64_t end)
{
    uint32_t missing = count - 1;
    while (missing) {
        struct pollfd ready = {p->listens, POLLIN, 0};
        int left = fd_pass_left(end), found = left ? poll(&ready, 1, left) : 0;
        if (found < 0 && errno == EINTR)
            continue;
        if (found <= 0)
            return found ? -errno : -ETIMEDOUT;
        int s = accept4(p->listens, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), fd = -1;
        int64_t from = s < 0 ? -1 : fd_pass_receive(p, s, end, &fd);
        if (s >= 0)
            close(s);
        if (from >= 0 && from < count && from != self && fds[from] < 0) {
            fds[from] = fd;
            missing--;
        } else if (fd >= 0) {
            close(fd);
        }
    }
    return 0;
}

int fd_pass_exchange(struct fd_pass *p, uint32_t self, uint32_t count,
                     const struct fd_pass_name *names, int mine, int *fds, uint32_t first,
                     uint64_t timeout_ns, char *error, size_t size)
{
    uint64_t end = mk_now_ns() + timeout_ns;
    int result = 0;
    for (uint32_t i = 0; i < count; i++)
        fds[i] = -1;
    for (uint32_t i = 0; i < count && !result; i++)
        if (i != self && (result = fd_pass_send(&names[i], self, mine)))
            snprintf(error, size,
                     "rank %u's socket cannot be reached (%s): ranks of a node need one network "
                     "namespace",
                     first + i, strerror(-result));
    if (!result && (result = fd_pass_receive_all(p, self, count, fds, end))) {
        uint32_t i = 0;
        while (i < count && (i == self || fds[i] >= 0))
            i++;
        snprintf(error, size, "nothing has come over rank %u's socket: %s", first + i,
                 strerror(-result));
    }
    for (uint32_t i = 0; i < count && result; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
    return result;
}
