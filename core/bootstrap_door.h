/* Inside core: rank 0's front door. Whoever connects is a stranger until its greeting shows the job's token;
 * strangers are turned away and never stop the job. */
#ifndef MK_BOOTSTRAP_DOOR_H
#define MK_BOOTSTRAP_DOOR_H

#include "core/bootstrap.h"
#include "core/bootstrap_peer.h"

#include <poll.h>

#define DOOR_STRANGERS 32u

struct door {
    int listener; /* -1: closed */
    char token[WIRE_TOKEN_BYTES];
    uint64_t timeout_ns;
    struct peer strangers[DOOR_STRANGERS];
    uint32_t stranger_count;
    char rumour[160]; /* who was turned away last, to explain a missing rank; empty: nobody */
};

/* Listens at the configured port, or takes the configured listening socket over. 0 or -errno with *error. */
int door_open(struct door *d, const struct bootstrap_config *config, char *error, size_t error_size);
void door_close(struct door *d);

/* Adds what to poll for (DOOR_STRANGERS + 1 at most); returns how many. *deadline is lowered to when a
 * stranger's time is up. */
uint32_t door_watch(const struct door *d, struct pollfd *fds, uint64_t *deadline);

/* Looks who is there; never blocks. 1: somebody showed the token; *arrived (the caller's now), *hello and the
 * version that it speaks are filled; call again. 0: nobody. -errno: the listener is out of order. */
int door_step(struct door *d, struct peer *arrived, struct wire_hello *hello, uint32_t *version);

/* Tells a peer why it cannot stay, and closes. */
void door_refuse(struct peer *p, int error, const char *text);

#endif
