/* A message's data: carried behind a frame, referred to by address for the peer to fetch, placed
 * where it belongs. */
#include "gpu.h"

#include <errno.h>
#include <string.h>

bool softnic_payload_carry(struct softnic_link *link, const struct softnic_frame *head,
                           const struct softnic_wqe *wqe, const struct iovec *from, int count)
{
    char *to = softnic_link_reserve(link, head, head->payload);
    if (!to)
        return false;
    if (wqe->is_inline)
        memcpy(to, wqe->inline_data, head->payload);
    for (int i = 0; i < count; to += from[i].iov_len, i++)
        memcpy(to, from[i].iov_base, from[i].iov_len);
    return true;
}

bool softnic_payload_refer(struct softnic_link *link, struct softnic_frame *head,
                           const struct iovec *from, int count)
{
    struct softnic_segment segment[SOFTNIC_MAX_SEGMENTS];
    for (int i = 0; i < count; i++)
        segment[i] = (struct softnic_segment){(uintptr_t)from[i].iov_base, from[i].iov_len};
    head->segments = (uint16_t)count;
    head->flags |= SOFTNIC_FLAG_PULL;
    return softnic_link_send(link, head, segment, (size_t)count * sizeof(segment[0]));
}

int softnic_payload_land(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                         struct softnic_mr **mr, int count, const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    bool gpu = softnic_regions_in_gpu(mr, count);
    for (int i = 0; i < head->segments && link->mappings; i++)
        gpu |= softnic_mapped_address(link, message->segment[i].address, 1, NULL) != 0;
    if (gpu)
        return softnic_gpu_place(link, qp, to, mr, count, message);
    if (head->segments)
        return softnic_pull_pinned(link, qp, to, mr, count, message->segment, head->segments,
                                   head->length - head->offset);
    const uint8_t *from = message->payload;
    for (int i = 0; i < count; from += to[i].iov_len, i++)
        softnic_copy_in(to[i].iov_base, from, to[i].iov_len);
    return 0;
}

void softnic_payload_answer(struct softnic_link *link, struct softnic_frame *data, const char *from,
                            uint32_t end, bool refer)
{
    if (refer && end > data->offset) {
        struct softnic_segment segment = {(uintptr_t)from + data->offset, end - data->offset};
        data->flags = SOFTNIC_FLAG_PULL;
        data->segments = 1;
        softnic_link_send(link, data, &segment, sizeof(segment));
        return;
    }
    do { /* of no bytes: one frame */
        uint32_t left = end - data->offset;
        data->payload = left < SOFTNIC_MAX_PAYLOAD ? left : SOFTNIC_MAX_PAYLOAD;
        softnic_link_send(link, data, left ? from + data->offset : NULL, data->payload);
        data->offset += data->payload;
    } while (data->offset < end && !link->dead);
}

int softnic_payload_arrive(struct softnic_link *link, struct softnic_qp *qp,
                           const struct softnic_wqe *wqe, const struct softnic_message *message,
                           uint32_t *arrived)
{
    const struct softnic_frame *head = &message->head;
    uint32_t bytes = head->segments ? head->length - head->offset : head->payload;
    struct iovec to[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    if (wqe->opcode != IBV_WR_RDMA_READ || head->length != wqe->length || head->offset != *arrived)
        return -EPROTO;
    int error = 0,
        count = softnic_wqe_slice(qp, wqe, IBV_ACCESS_LOCAL_WRITE, head->offset, bytes, to, mr);
    if (count < 0)
        return -EACCES;
    if (head->segments)
        error =
            softnic_pull_pinned(link, qp, to, mr, count, message->segment, head->segments, bytes);
    const uint8_t *from = message->payload;
    for (int i = 0; i < count && !head->segments; from += to[i].iov_len, i++)
        softnic_copy_in(to[i].iov_base, from, to[i].iov_len);
    if (error)
        return error;
    qp->counters.received_bytes += bytes;
    *arrived += bytes;
    return *arrived == head->length;
}
