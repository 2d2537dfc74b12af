/* Inside core: rank 0's listener. A connection is a stranger until its hello proves, for a challenge
 * that no other connection got, that it knows the job's token. Strangers are refused and never stop the job. Their cost is bounded: at most LISTENER_STRANGERS
 * are open, each has room for a hello and one read of it a turn, and silent ones are closed, sooner
 * where there is no room for another. */
#pragma once

#include "core/comm/bootstrap.h"
#include "core/comm/bootstrap_peer.h"

#include <poll.h>
#include <string.h>

#define LISTENER_STRANGERS 32u
#define LISTENER_LATE 4u /* once all ranks are in */

struct listener {
    int fd; /* -1: closed */
    char token[WIRE_TOKEN_BYTES];
    uint64_t timeout_ns;
    struct peer strangers[LISTENER_STRANGERS];
    uint32_t stranger_count;
    int crowded;                   /* no descriptor is left for another */
    uint32_t most;                 /* strangers at a time */
    uint64_t refused;              /* strangers, so far */
    char address[64], reason[160]; /* of the last of them */
};

/* Whether rank 0's host is the one that this process is on: 127.0.0.1, and ::1 where it has no
 * IPv4. */
static inline int listener_is_here(const char *host)
{
    return !strcmp(host, "127.0.0.1") || !strcmp(host, "localhost");
}

/* Listens at the configured port, or takes the configured listening socket over. 0 or -errno with
 * *error. */
int listener_open(struct listener *l, const struct bootstrap_config *config, char *error,
                  size_t size);
void listener_close(struct listener *l);

/* Adds its descriptors to poll (LISTENER_STRANGERS + 1 at most); returns how many. *deadline is
 * lowered to when a stranger's time is up. */
uint32_t listener_watch(const struct listener *l, struct pollfd *fds, uint64_t *deadline);

/* Accepts connections and reads hellos; never blocks. 1: a connection proved that it
 * knows the token; *arrived
 * (the caller's now), *hello and the version that it speaks are filled; call again. 0: no such
 * connection. -errno: the listener is out of order. */
int listener_step(struct listener *l, struct peer *arrived, struct wire_hello *hello,
                  uint32_t *version);

/* All ranks have joined: the strangers are refused, and from now on fewer are let in. */
void listener_complete(struct listener *l);

/* The strangers among which a missing rank may have been: " (an unauthenticated connection from ...
 * was refused: ...)". Empty where there were none. Returns text. */
char *listener_strangers(const struct listener *l, char *text, size_t size);

/* Tells a peer why it is refused, and closes. */
void listener_refuse(struct peer *p, int error, const char *text);
