/* softnic's own four calls, beside the libibverbs calls that the library exports.
 *
 * Everything else of a softnic device is reached through <infiniband/verbs.h>. These four are for
 * programs that test: they look the functions up with dlsym in build/libsoftnic.so. All four may be
 * called from any thread and do not block longer than a device's lock is held. */
#pragma once

#include <stdint.h>

struct ibv_context;

/* Change the options of this process: the same string as the environment's SOFTNIC
 * (docs/SOFTNIC.md). Keys that the string does not name keep their values; `devices` counts from
 * the next ibv_get_device_list. Open devices take the change at once. Returns 0 or -EINVAL; after
 * an error nothing has changed and softnic_error() says why. */
int softnic_configure(const char *options);

/* The sentence that belongs to this thread's last refused option string; "" when there is none.
 * Owned by the library. */
const char *softnic_error(void);

/* For programs that ask softnic_error: from now on nothing is printed. Without it the sentence
 * about a SOFTNIC that is refused goes to stderr, once in a process, since libibverbs has no other
 * way to tell people why there is no device. */
void softnic_silent(void);

/* Payload bytes and messages, counted when a message is handed to the link (sent) or has been
 * placed in memory (received). A retransmitted message counts again as sent, and once as received.
 * READ counts as received at the requester and as sent at the responder. */
struct softnic_counters {
    uint64_t sent_bytes, sent_messages;
    uint64_t received_bytes, received_messages;
    uint64_t retransmissions; /* messages sent again after a timeout or a receiver-not-ready */
};

/* qp_num 0 asks for the sum over all QPs that this context has ever had. Returns 0 or -ENOENT (no
 * such QP). */
int softnic_counters(struct ibv_context *context, uint32_t qp_num, struct softnic_counters *out);
