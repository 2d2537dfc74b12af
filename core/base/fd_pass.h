/* File descriptors from every rank of a node to every other, over unix sockets: each listens on an
 * abstract name of its own, connects to all and sends. The kernel forgets names with their
 * processes. A rank is known by the other's key, which ranks tell each other through the bootstrap,
 * and by its user. Network namespaces do not share abstract names: the ranks of a node must be in
 * one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FD_PASS_RANKS 64 /* at most */

/* What the others must know of a rank that receives. Exchanged as bytes. */
struct fd_pass_name {
    char name[48]; /* without the zero byte that begins an abstract name */
    uint8_t key[16];
};

struct fd_pass {
    struct fd_pass_name name;
    int listens; /* -1: it does not */
};

/* Begins to listen. 0 or -errno with a sentence. fd_pass_close in either case. */
int fd_pass_open(struct fd_pass *p, char *error, size_t size);
void fd_pass_close(struct fd_pass *p);

/* Sends `mine`, which stays the caller's, to the `count` ranks of `names`, but to number `self`,
 * once all of these listen, and receives theirs into fds[count], which the caller closes; fds[self]
 * is -1. Blocks for at most timeout_ns. 0, or -errno with a sentence that names a rank by its
 * number here plus `first`: -ECONNREFUSED (it cannot be reached), -ETIMEDOUT (nothing has come of
 * it), or another; no fds are open then. */
int fd_pass_exchange(struct fd_pass *p, uint32_t self, uint32_t count,
                     const struct fd_pass_name *names, int mine, int *fds, uint32_t first,
                     uint64_t timeout_ns, char *error, size_t size);
