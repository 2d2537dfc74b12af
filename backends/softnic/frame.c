/* The parser of a peer's frames. Pure: no state, no allocation; tests/fuzz_softnic_frame.c feeds it
 * anything. */
#include "frame.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Per kind: the flags that may be set, and whether message bytes may follow. */
static const struct {
    uint8_t flags;
    bool data;
} rules[SOFTNIC_KINDS] = {
    [SOFTNIC_WELCOME] = {SOFTNIC_FLAG_PULL, false},
    [SOFTNIC_WRITE] = {SOFTNIC_FLAG_IMM | SOFTNIC_FLAG_SOLICITED | SOFTNIC_FLAG_PULL, true},
    [SOFTNIC_SEND] = {SOFTNIC_FLAG_IMM | SOFTNIC_FLAG_SOLICITED | SOFTNIC_FLAG_PULL, true},
    [SOFTNIC_READ] = {SOFTNIC_FLAG_PULL, false},
    [SOFTNIC_SHARE] = {0, true},
    [SOFTNIC_READ_DATA] = {SOFTNIC_FLAG_PULL, true},
};

static bool frame_head_valid(const struct softnic_frame *head)
{
    if (head->magic != SOFTNIC_FRAME_MAGIC || head->kind < SOFTNIC_HELLO ||
        head->kind >= SOFTNIC_KINDS)
        return false;
    if (head->flags & ~rules[head->kind].flags)
        return false;
    if ((head->qpn_to | head->qpn_from | head->psn) >> 24)
        return false;
    if (head->length > SOFTNIC_MAX_MESSAGE || head->offset > head->length)
        return false;
    if (head->segments > SOFTNIC_MAX_SEGMENTS || head->payload > SOFTNIC_MAX_PAYLOAD)
        return false;
    if ((head->segments || head->payload) && !rules[head->kind].data)
        return false;
    if (head->segments && (!(head->flags & SOFTNIC_FLAG_PULL) || head->payload))
        return false;
    if (head->payload > head->length - head->offset)
        return false;
    if (rules[head->kind].data && head->length && !head->segments && !head->payload)
        return false; /* would never finish its message */
    if (head->kind == SOFTNIC_READ && head->operand[0] > head->length - head->offset)
        return false;
    if (head->kind == SOFTNIC_SHARE &&
        (!head->operand[0] || head->address + head->operand[0] < head->address ||
         head->payload != head->length || head->length != SOFTNIC_HANDLE_BYTES))
        return false;
    if (head->kind == SOFTNIC_NAK &&
        (head->operand[0] < 1 || head->operand[0] >= SOFTNIC_NAKS || head->operand[1] > 31))
        return false;
    if ((head->kind == SOFTNIC_COMPARE_SWAP || head->kind == SOFTNIC_FETCH_ADD) &&
        (head->length != 8 || head->offset))
        return false;
    /* the range [address, address + length) must not wrap */
    return head->address + head->length >= head->address;
}

ssize_t softnic_frame_parse(const uint8_t *bytes, size_t have, struct softnic_message *out)
{
    if (have < sizeof(out->head))
        return 0;
    memcpy(&out->head, bytes, sizeof(out->head));
    const struct softnic_frame *head = &out->head;
    if (!frame_head_valid(head))
        return -EPROTO;

    size_t segment_bytes = head->segments * sizeof(struct softnic_segment);
    size_t size = sizeof(*head) + segment_bytes + head->payload;
    if (have < size)
        return 0;
    memcpy(out->segment, bytes + sizeof(*head), segment_bytes);
    out->payload = bytes + sizeof(*head) + segment_bytes;

    if (head->segments) {
        uint64_t sum = 0;
        for (int i = 0; i < head->segments; i++) {
            const struct softnic_segment *segment = &out->segment[i];
            if (segment->length > SOFTNIC_MAX_MESSAGE ||
                segment->address + segment->length < segment->address)
                return -EPROTO;
            sum += segment->length;
        }
        if (sum != head->length - head->offset)
            return -EPROTO;
    }
    return (ssize_t)size;
}
