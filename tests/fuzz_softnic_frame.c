/* No bytes from a peer make softnic's frame parser read outside them or hand on a frame that breaks
 * its rules. */
#include <stdlib.h>
#include <string.h>

#include "backends/softnic/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                            \
    if (!(condition))                                                                              \
    abort()

static void check(const struct softnic_message *m, const uint8_t *bytes, size_t used)
{
    const struct softnic_frame *head = &m->head;
    MUST(head->kind >= SOFTNIC_HELLO && head->kind < SOFTNIC_KINDS);
    MUST(head->qpn_to < 1 << 24 && head->qpn_from < 1 << 24 && head->psn < 1 << 24);
    MUST(head->length <= SOFTNIC_MAX_MESSAGE && head->offset <= head->length &&
         head->payload <= head->length - head->offset);
    MUST(head->segments <= SOFTNIC_MAX_SEGMENTS && !(head->segments && head->payload));
    MUST(m->payload >= bytes && m->payload + head->payload == bytes + used);
    uint64_t sum = 0;
    for (int i = 0; i < head->segments; i++) {
        MUST(m->segment[i].length <= SOFTNIC_MAX_MESSAGE);
        sum += m->segment[i].length;
    }
    MUST(!head->segments || sum == head->length - head->offset);
    if (head->payload) { /* every byte can be read */
        uint8_t *copy = malloc(head->payload);
        memcpy(copy, m->payload, head->payload);
        free(copy);
    }
}

/* The input is a stream of frames, as a socket delivers it. The magic is put in so that the fuzzer
 * gets past it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = malloc(size ? size : 1); /* exactly as large: reading further is caught */
    struct softnic_message message;
    if (size)
        memcpy(bytes, data, size);
    for (size_t at = 0; at < size;) {
        uint32_t magic = SOFTNIC_FRAME_MAGIC;
        if (size - at >= sizeof(magic) && bytes[at] != 0)
            memcpy(bytes + at, &magic, sizeof(magic));
        ssize_t used = softnic_frame_parse(bytes + at, size - at, &message);
        if (used <= 0)
            break;
        MUST((size_t)used >= sizeof(struct softnic_frame) && (size_t)used <= size - at);
        check(&message, bytes + at, (size_t)used);
        at += (size_t)used;
    }
    free(bytes);
    return 0;
}
