/* Inside core: one TCP connection of the bootstrap. Never blocks; bytes that cannot be written now
 * are kept and written later. */
#pragma once

#include "core/comm/bootstrap_wire.h"

#include <netdb.h>
#include <sys/socket.h>

/* Bytes on their way to several peers: a collective's result is stored once. */
struct peer_blob {
    uint32_t references;
    uint64_t bytes;
    uint8_t data[];
};

struct peer_send {
    struct peer_send *next;
    struct peer_blob *blob;
};

struct peer {
    int fd; /* -1: none */
    struct wire_parser in;
    struct peer_send *first, **last;     /* frames to be written */
    uint64_t sent;                       /* of the first */
    char address[64];                    /* of the other end, for sentences */
    uint64_t since;                      /* when a stranger connected; ns */
    uint8_t challenge[WIRE_NONCE_BYTES]; /* that a stranger was given */
    uint8_t proof[HMAC_BYTES];           /* rank 0's, for the rank at the other end */
    int left;                            /* it has said BYE */
};

void peer_init(struct peer *p, int fd);

/* Non-blocking, close-on-exec (the caller's flags have set both when the socket was made), no
 * delay, and a silent host is noticed within about timeout_ns. */
void peer_tune(int fd, uint64_t timeout_ns);

/* A frame: header and payload. NULL without memory. The caller holds one reference. */
struct peer_blob *peer_frame(enum wire_kind kind, uint32_t sequence, uint32_t from,
                             const void *payload, uint64_t bytes);
void peer_drop(struct peer_blob *blob);

/* Queues a frame (takes a reference of its own) and writes what the socket takes. 0, -ENOMEM, or
 * the socket's -errno. */
int peer_send(struct peer *p, struct peer_blob *blob);
int peer_flush(struct peer *p);

/* Makes a frame, queues it, drops it. */
int peer_say(struct peer *p, enum wire_kind kind, uint32_t sequence, uint32_t from,
             const void *payload, uint64_t bytes);

/* Reads until a frame is complete in p->in. 1: it is (take it, then wire_release); 0: not yet;
 * -ECONNRESET: the other end is gone; -EPROTO: garbled, with *why; other -errno: the socket's. */
int peer_receive(struct peer *p, const char **why);

/* The same for a stranger, which may send a hello and nothing else: one read of no more than is
 * missing of it. A header other than that of a hello of the right length is -EPROTO before any more
 * is read. */
int peer_receive_hello(struct peer *p, const char **why);

/* Closes the connection and frees its queue; the kernel still delivers bytes that were written. */
void peer_close(struct peer *p);

uint64_t peer_now(void); /* ns, CLOCK_MONOTONIC */
