/* GPU memory: copies by the GPU's copy engines, all of a context's on one stream, in the order in
 * which its progress thread places messages, but for what gather.h says of runs between GPUs. So a
 * flag lands behind its data; an answer waits in `entries` until the event behind its copies has
 * passed. Nothing here launches a kernel: SMs may all be busy waiting for these very bytes.
 *
 * Only the progress thread touches the stream, the staging ring and the batches; entries and counts
 * on QPs and regions are under context->lock. */
#include "gpu.h"
#include "gather.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* batches of copies that have started; what comes meanwhile is gathered */
    IN_FLIGHT = 2,
    BATCHES = IN_FLIGHT + 1, /* and an event to spare */
    ENTRIES = 1024,          /* answers and pins that wait */
    STAGING = 8 << 20,       /* pinned bytes, on the way between host memory and the GPU */
    PIECE = 1 << 20,
    SETTLE_NS = 2000000000, /* a copy engine that takes longer has failed */
};

/* Something to do when the copies before it have ended. */
struct entry {
    struct softnic_qp *qp; /* qp->copies counts it */
    unsigned generation;
    struct softnic_mr *mr;     /* pinned; NULL: none */
    struct softnic_link *link; /* answer `request` there; NULL: no answer, or the link is gone */
    softnic_copied *answer;
    struct softnic_frame request;
};

struct softnic_gpu {
    const struct softnic_cuda *cuda;
    int device;
    void *primary, *stream;
    struct softnic_gather gather; /* on the stream next */
    bool current;                 /* the progress thread has the device's context */
    bool broken;                  /* the driver reported an error: every further copy fails */
    uint8_t *staging;
    uint64_t staging_head, staging_tail; /* bytes ever taken, given back */
    struct entry entries[ENTRIES];
    uint64_t entry_head, entry_tail; /* added, retired */
    struct {
        void *event;
        uint64_t entries, staging; /* heads when it was recorded */
    } batches[BATCHES];
    uint64_t batch_head, batch_tail;
};

/* ---- life ---- */

static void gpu_release(struct softnic_gpu *gpu)
{
    const struct softnic_cuda *cuda = gpu->cuda;
    void *ignored;
    if (gpu->primary && !cuda->context_push(gpu->primary)) {
        for (int i = 0; i < BATCHES; i++)
            if (gpu->batches[i].event)
                cuda->event_destroy(gpu->batches[i].event);
        if (gpu->stream)
            cuda->stream_destroy(gpu->stream);
        if (gpu->staging)
            cuda->host_free(gpu->staging);
        cuda->context_pop(&ignored);
    }
    if (gpu->primary)
        cuda->primary_release(gpu->device);
    free(gpu);
}

static struct softnic_gpu *gpu_make(const struct softnic_cuda *cuda, int ordinal)
{
    struct softnic_gpu *gpu = calloc(1, sizeof(*gpu));
    void *ignored;
    if (!gpu)
        return NULL;
    gpu->cuda = cuda;
    int error = cuda->device_get(&gpu->device, ordinal);
    if (!error)
        error = cuda->primary_retain(&gpu->primary, gpu->device);
    if (error)
        gpu->primary = NULL;
    if (!error)
        error = cuda->context_push(gpu->primary);
    if (!error) {
        error = cuda->stream_create(&gpu->stream, SOFTNIC_CUDA_STREAM_NON_BLOCKING);
        if (!error)
            error = cuda->host_alloc((void **)&gpu->staging, STAGING);
        for (int i = 0; i < BATCHES && !error; i++)
            error = cuda->event_create(&gpu->batches[i].event, SOFTNIC_CUDA_EVENT_DISABLE_TIMING);
        cuda->context_pop(&ignored);
    }
    gpu->gather.cuda = cuda;
    gpu->gather.stream = gpu->stream;
    if (!error)
        return gpu;
    gpu_release(gpu);
    return NULL;
}

int softnic_gpu_open(struct softnic_context *ctx, int ordinal)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    const struct softnic_cuda *cuda = softnic_cuda();
    int error = 0;
    if (!cuda || ctx->options.gpu_refuse)
        return -EOPNOTSUPP;
    pthread_mutex_lock(&opening);
    struct softnic_gpu *gpu = ctx->gpu ? NULL : gpu_make(cuda, ordinal);
    pthread_mutex_lock(&ctx->lock);
    if (!ctx->gpu)
        ctx->gpu = gpu;
    if (!ctx->gpu)
        error = -ENOMEM;
    pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_unlock(&opening);
    return error;
}

int softnic_gpu_describe(struct softnic_context *ctx, uint64_t pointer, int ordinal, uint64_t *base,
                         size_t *size, struct softnic_cuda_handle *handle,
                         struct softnic_cuda_uuid *which)
{
    struct softnic_gpu *gpu = ctx->gpu;
    void *ignored;
    int device;
    if (gpu->cuda->context_push(gpu->primary))
        return -EOPNOTSUPP;
    int error = gpu->cuda->address_range(base, size, pointer);
    if (!error)
        error = gpu->cuda->ipc_get(handle, *base);
    if (!error)
        error = gpu->cuda->device_get(&device, ordinal);
    if (!error)
        error = gpu->cuda->device_uuid(which, device);
    gpu->cuda->context_pop(&ignored);
    return error ? -EOPNOTSUPP : 0;
}

void softnic_gpu_close(struct softnic_context *ctx)
{
    void *ignored;
    if (!ctx->gpu)
        return;
    softnic_gpu_settle(ctx);
    if (ctx->gpu->current)
        ctx->gpu->cuda->context_pop(&ignored);
    gpu_release(ctx->gpu);
    ctx->gpu = NULL;
}

const struct softnic_cuda *softnic_gpu_calls(struct softnic_context *ctx)
{
    struct softnic_gpu *gpu = ctx->gpu;
    if (!gpu->current)
        gpu->current = !gpu->cuda->context_push(gpu->primary);
    return gpu->current ? gpu->cuda : NULL;
}

/* ---- answers that wait for copies ---- */

static void gpu_begin_gathered(struct softnic_gpu *gpu)
{
    if (softnic_gather_start(&gpu->gather))
        gpu->broken = true;
}

static void gpu_close_batch(struct softnic_gpu *gpu)
{
    if (gpu->batch_head - gpu->batch_tail >= IN_FLIGHT)
        return;
    gpu_begin_gathered(gpu);
    uint64_t last = gpu->batch_head == gpu->batch_tail
                        ? gpu->entry_tail
                        : gpu->batches[(gpu->batch_head - 1) % BATCHES].entries;
    if (gpu->entry_head == last)
        return;
    if (!gpu->broken &&
        gpu->cuda->event_record(gpu->batches[gpu->batch_head % BATCHES].event, gpu->stream))
        gpu->broken = true;
    gpu->batches[gpu->batch_head % BATCHES].entries = gpu->entry_head;
    gpu->batches[gpu->batch_head % BATCHES].staging = gpu->staging_head;
    gpu->batch_head++;
}

static void gpu_retire(struct softnic_context *ctx, struct entry *e, bool broken)
{
    if (e->mr)
        e->mr->busy--;
    e->qp->copies--;
    if (!e->link || e->link->dead || e->qp->generation != e->generation)
        return;
    e->answer(e->link, e->qp, &e->request, broken);
}

void softnic_gpu_start(struct softnic_context *ctx)
{
    struct softnic_gpu *gpu = ctx->gpu;
    if (!gpu || gpu->batch_head - gpu->batch_tail >= IN_FLIGHT || !softnic_gpu_calls(ctx))
        return;
    pthread_mutex_unlock(&ctx->lock);
    gpu_begin_gathered(gpu);
    pthread_mutex_lock(&ctx->lock);
}

bool softnic_gpu_poll(struct softnic_context *ctx)
{
    struct softnic_gpu *gpu = ctx->gpu;
    if (!gpu || !softnic_gpu_calls(ctx))
        return false;
    gpu_close_batch(gpu);
    uint64_t before = gpu->batch_tail;
    while (gpu->batch_tail != gpu->batch_head) {
        int state =
            gpu->broken ? 0 : gpu->cuda->event_query(gpu->batches[gpu->batch_tail % BATCHES].event);
        if (state == SOFTNIC_CUDA_NOT_READY)
            break;
        if (state != SOFTNIC_CUDA_SUCCESS)
            gpu->broken = true;
        while (gpu->entry_tail != gpu->batches[gpu->batch_tail % BATCHES].entries)
            gpu_retire(ctx, &gpu->entries[gpu->entry_tail++ % ENTRIES], gpu->broken);
        gpu->staging_tail = gpu->batches[gpu->batch_tail % BATCHES].staging;
        gpu->batch_tail++;
    }
    if (gpu->batch_tail != before) {
        pthread_cond_broadcast(&ctx->idle);
        for (struct softnic_link *link = ctx->links; link; link = link->next)
            if (!link->requester && !link->dead)
                softnic_link_flush_acks(link);
    }
    return gpu->entry_tail != gpu->entry_head;
}

bool softnic_gpu_busy(const struct softnic_context *ctx)
{
    return ctx->gpu && ctx->gpu->entry_tail != ctx->gpu->entry_head;
}

void softnic_gpu_settle(struct softnic_context *ctx)
{
    uint64_t begun = softnic_now();
    while (softnic_gpu_poll(ctx)) {
        if (softnic_now() - begun > SETTLE_NS)
            ctx->gpu->broken = true;
        sched_yield();
    }
}

void softnic_gpu_forget_link(struct softnic_context *ctx, const struct softnic_link *link)
{
    struct softnic_gpu *gpu = ctx->gpu;
    for (uint64_t i = gpu ? gpu->entry_tail : 0; gpu && i != gpu->entry_head; i++)
        if (gpu->entries[i % ENTRIES].link == link)
            gpu->entries[i % ENTRIES].link = NULL;
}

static struct entry *gpu_add_entry(struct softnic_context *ctx, struct softnic_qp *qp)
{
    struct softnic_gpu *gpu = ctx->gpu;
    if (gpu->entry_head - gpu->entry_tail == ENTRIES)
        softnic_gpu_settle(ctx);
    struct entry *e = &gpu->entries[gpu->entry_head++ % ENTRIES];
    *e = (struct entry){.qp = qp, .generation = qp->generation};
    qp->copies++;
    return e;
}

void softnic_gpu_answer_later(struct softnic_link *link, struct softnic_qp *qp,
                              const struct softnic_frame *request, softnic_copied *answer)
{
    struct entry *e = gpu_add_entry(link->context, qp);
    e->link = link;
    e->answer = answer;
    e->request = *request;
}

/* ---- copies: context->lock is not held ---- */

/* `bytes` of the staging ring, in one piece. Waits for copies that use it where it is full. */
static uint8_t *gpu_stage(struct softnic_context *ctx, uint64_t bytes)
{
    struct softnic_gpu *gpu = ctx->gpu;
    uint64_t at = gpu->staging_head % STAGING, size = (bytes + 63) & ~(uint64_t)63;
    if (at + size > STAGING) {
        gpu->staging_head += STAGING - at;
        at = 0;
    }
    if (gpu->staging_head + size - gpu->staging_tail > STAGING) {
        /* Only batches free staging bytes, and what this message has staged is in none yet. */
        void *event = gpu->batches[gpu->batch_head % BATCHES].event;
        uint64_t begun = softnic_now();
        pthread_mutex_lock(&ctx->lock);
        softnic_gpu_settle(ctx);
        pthread_mutex_unlock(&ctx->lock);
        gpu_begin_gathered(gpu);
        if (gpu->cuda->event_record(event, gpu->stream))
            gpu->broken = true;
        for (int state; !gpu->broken && (state = gpu->cuda->event_query(event)); sched_yield())
            gpu->broken = state != SOFTNIC_CUDA_NOT_READY || softnic_now() - begun > SETTLE_NS;
        gpu->staging_tail = gpu->staging_head;
    }
    gpu->staging_head += size;
    return gpu->staging + at;
}

/* Waits until everything on the stream has ended. */
static int gpu_drain(struct softnic_gpu *gpu, void *event)
{
    gpu_begin_gathered(gpu);
    int state = gpu->cuda->event_record(event, gpu->stream);
    uint64_t begun = softnic_now();
    while (!state && (state = gpu->cuda->event_query(event)) == SOFTNIC_CUDA_NOT_READY &&
           softnic_now() - begun < SETTLE_NS)
        state = 0;
    return state ? -EIO : 0;
}

int softnic_gpu_probe(struct softnic_context *ctx, uint64_t address)
{
    struct softnic_gpu *gpu = ctx->gpu;
    uint8_t *staged = gpu_stage(ctx, 8);
    if (gpu->cuda->copy_to_host(staged, address, 8, gpu->stream))
        return -EIO;
    return gpu_drain(gpu, gpu->batches[gpu->batch_head % BATCHES].event);
}

/* Piece by piece by way of pinned memory, also between two places of one GPU: the driver may copy
 * inside a GPU with a kernel, which would wait for an SM that waits for these bytes. (CUDA driver
 * API, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: only a hint.) mapped: where the bytes are in a
 * GPU's memory; 0: they came as `payload`, or lie at the peer's `from`. */
static int gpu_copy_staged(struct softnic_link *link, void *to, bool to_gpu, const uint8_t *payload,
                           uint64_t mapped, uint64_t from, uint64_t bytes)
{
    struct softnic_gpu *gpu = link->context->gpu;
    int error = 0;
    for (uint64_t at = 0; at < bytes && !error; at += PIECE) {
        uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        uint8_t *staged = gpu_stage(link->context, n);
        struct iovec local = {staged, n};
        struct softnic_segment remote = {from + at, n};
        if (payload)
            memcpy(staged, payload + at, n);
        else if (mapped)
            error = gpu->cuda->copy_to_host(staged, mapped + at, n, gpu->stream) ? -EIO : 0;
        else
            error = softnic_pull(link, &local, 1, &remote, 1, n);
        if (!error && to_gpu)
            error =
                gpu->cuda->copy_to_device((uintptr_t)to + at, staged, n, gpu->stream) ? -EIO : 0;
        else if (!error && !(error = gpu_drain(gpu, gpu->batches[gpu->batch_head % BATCHES].event)))
            softnic_copy_in((char *)to + at, staged, n);
    }
    return error;
}

/* One run of bytes that is contiguous on both sides. `payload`: they came with the frame. What is
 * not gathered goes onto the stream at once, after what has been. */
static int gpu_copy_run(struct softnic_link *link, void *to, const struct softnic_mr *mr,
                        const uint8_t *payload, uint64_t from, uint64_t bytes)
{
    struct softnic_gpu *gpu = link->context->gpu;
    struct softnic_cuda_uuid where;
    uint64_t mapped = payload ? 0 : softnic_mapped_address(link, from, bytes, &where);
    bool inside = mr->gpu && mapped && !memcmp(&where, &mr->share->gpu, sizeof(where));
    if (mr->gpu && mapped && !inside)
        return softnic_gather_run(&gpu->gather, (uintptr_t)to, mapped, bytes);
    if (mr->gpu && payload && bytes == 8 && !((uintptr_t)to & 7))
        return softnic_gather_word(&gpu->gather, (uintptr_t)to,
                                   memcpy(gpu_stage(link->context, 8), payload, 8));
    gpu_begin_gathered(gpu);
    if (mr->gpu || mapped)
        return gpu_copy_staged(link, to, mr->gpu, payload, mapped, from, bytes);
    struct iovec local = {to, bytes};
    struct softnic_segment remote = {from, bytes};
    if (!payload)
        return softnic_pull(link, &local, 1, &remote, 1, bytes);
    softnic_copy_in(to, payload, bytes);
    return 0;
}

static int gpu_copy_all(struct softnic_link *link, const struct iovec *to,
                        struct softnic_mr *const *mr, int count,
                        const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    const uint8_t *payload = head->segments ? NULL : message->payload;
    uint64_t used = 0; /* of the segment, or the payload */
    int segment = 0, error = 0;
    if (!softnic_gpu_calls(link->context) || link->context->gpu->broken)
        return -EIO;
    for (int i = 0; i < count && !error; i++) {
        for (uint64_t at = 0, n; at < to[i].iov_len && !error; at += n) {
            n = to[i].iov_len - at;
            if (head->segments) {
                uint64_t left = message->segment[segment].length - used;
                n = n < left ? n : left;
            }
            error = gpu_copy_run(link, (char *)to[i].iov_base + at, mr[i],
                                 payload ? payload + used : NULL,
                                 head->segments ? message->segment[segment].address + used : 0, n);
            used += n;
            if (head->segments && used == message->segment[segment].length) {
                segment++;
                used = 0;
            }
        }
    }
    if (error == -EIO)
        link->context->gpu->broken = true;
    return error == -EIO ? -EFAULT : error;
}

int softnic_gpu_place(struct softnic_link *link, struct softnic_qp *qp, const struct iovec *to,
                      struct softnic_mr **mr, int count, const struct softnic_message *message)
{
    struct softnic_context *ctx = link->context;
    unsigned generation = qp->generation;
    qp->busy++;
    for (int i = 0; i < count; i++)
        mr[i]->busy++;
    pthread_mutex_unlock(&ctx->lock);
    int error = gpu_copy_all(link, to, mr, count, message);
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; i < count; i++)
        gpu_add_entry(ctx, qp)->mr = mr[i]; /* its `busy` stays until the copies have ended */
    qp->busy--;
    pthread_cond_broadcast(&ctx->idle);
    if (qp->generation != generation)
        return -ECANCELED;
    if (error && error != -EFAULT)
        softnic_link_kill(link);
    return error;
}
