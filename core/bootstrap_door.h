/* Inside core: rank 0's front door. Whoever connects is a stranger until its greeting shows the job's token;
 * strangers are turned away and never stop the job. What they can cost is bounded: at most DOOR_STRANGERS stand here, each
 * has room for a greeting and one read of it a turn, and the silent go, sooner where the room is full. */
#ifndef MK_BOOTSTRAP_DOOR_H
#define MK_BOOTSTRAP_DOOR_H

#include "core/bootstrap.h"
#include "core/bootstrap_peer.h"

#include <poll.h>

#define DOOR_STRANGERS 32u
#define DOOR_LATE 4u /* once all ranks are in */

struct door {
    int listener; /* -1: closed */
    char token[WIRE_TOKEN_BYTES];
    uint64_t timeout_ns;
    struct peer strangers[DOOR_STRANGERS];
    uint32_t stranger_count;
    int crowded;          /* there is no descriptor for another */
    uint32_t most;        /* strangers at a time */
    uint64_t turned_away; /* strangers, so far */
    char address[64], reason[160]; /* of the last of them */
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

/* All ranks are in: who stands here is turned away, and fewer may from now on. */
void door_complete(struct door *d);

/* What strangers may have had to do with a rank that is missing: " (a connection from ... was turned away: ...)". Empty
 * where there were none. Returns text. */
char *door_strangers(const struct door *d, char *text, size_t size);

/* Tells a peer why it cannot stay, and closes. */
void door_refuse(struct peer *p, int error, const char *text);

#endif
