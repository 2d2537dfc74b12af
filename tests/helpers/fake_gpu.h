/* A GPU that a test holds in its hand, behind softnic's table of CUDA calls. Its memory is at
 * addresses that the CPU cannot touch (PROT_NONE), and only its copy engine, a thread that takes
 * its time, reaches it. Memory is shared between processes that fork after fake_gpu_start: an IPC
 * handle is the allocation's number. Even allocations are of device 0, odd ones of device 1. */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/softnic_load.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { FAKE_ALLOCATIONS = 4, FAKE_QUEUE_OPS = 8192, FAKE_ALLOCATION_BYTES = 16 << 20 };

struct fake_op {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t *event; /* instead: set to `bytes` */
};

static struct {
    uint8_t *device[FAKE_ALLOCATIONS]; /* what the program sees */
    uint8_t *mapped[FAKE_ALLOCATIONS]; /* the same, as another process's mapping: other addresses */
    uint8_t *engine[FAKE_ALLOCATIONS]; /* what the copy engine sees */
    struct fake_op queue[FAKE_QUEUE_OPS];
    uint64_t head, tail;
    long slow_ns;    /* a copy takes so long */
    int fail_copies; /* the next copies are refused */
    int opens, closes, copies_device, batches, contexts;
    int held; /* the engine stands still */
    pthread_t thread;
    pthread_mutex_t lock;
    int stop;
} fake_gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The engine's address of a GPU address, or the address itself. */
static void *fake_reach(uint64_t address)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
        if (address - (uintptr_t)fake_gpu.device[i] < FAKE_ALLOCATION_BYTES)
            return fake_gpu.engine[i] + (address - (uintptr_t)fake_gpu.device[i]);
        if (address - (uintptr_t)fake_gpu.mapped[i] < FAKE_ALLOCATION_BYTES)
            return fake_gpu.engine[i] + (address - (uintptr_t)fake_gpu.mapped[i]);
    }
    return NULL;
}

static void *fake_engine(void *unused)
{
    for (;;) {
        pthread_mutex_lock(&fake_gpu.lock);
        if (fake_gpu.stop && fake_gpu.tail == fake_gpu.head) {
            pthread_mutex_unlock(&fake_gpu.lock);
            return NULL;
        }
        int idle = fake_gpu.tail == fake_gpu.head || fake_gpu.held;
        struct fake_op op = fake_gpu.queue[fake_gpu.tail % FAKE_QUEUE_OPS];
        long slow = fake_gpu.slow_ns;
        pthread_mutex_unlock(&fake_gpu.lock);
        if (idle || (slow && !op.event))
            nanosleep(&(struct timespec){.tv_nsec = idle ? 20000 : slow}, NULL);
        if (idle)
            continue;
        if (op.event)
            __atomic_store_n(op.event, op.bytes, __ATOMIC_RELEASE);
        /* as the engine does: a word at once */
        else if (op.bytes == 8 && !((uintptr_t)op.to & 7)) {
            uint64_t word;
            memcpy(&word, op.from, 8);
            __atomic_store_n((uint64_t *)op.to, word, __ATOMIC_RELEASE);
        } else {
            memcpy(op.to, op.from, op.bytes);
        }
        pthread_mutex_lock(&fake_gpu.lock);
        fake_gpu.tail++;
        pthread_mutex_unlock(&fake_gpu.lock);
    }
}

static int fake_submit(struct fake_op op)
{
    pthread_mutex_lock(&fake_gpu.lock);
    int full = fake_gpu.head - fake_gpu.tail == FAKE_QUEUE_OPS;
    int fails = full || (!op.event && (!op.to || !op.from)) || (!op.event && fake_gpu.fail_copies);
    if (!fails)
        fake_gpu.queue[fake_gpu.head++ % FAKE_QUEUE_OPS] = op;
    pthread_mutex_unlock(&fake_gpu.lock);
    return fails ? 1 : 0;
}

/* An event: [0] recorded, [1] passed. */
static int fake_event_create(void **event, unsigned flags)
{
    *event = calloc(2, sizeof(uint64_t));
    return *event ? 0 : 2;
}

/* Once what has been submitted has ended: as the driver keeps an event until then. */
static int fake_event_destroy(void *event)
{
    for (int idle = 0; !idle; usleep(100)) {
        pthread_mutex_lock(&fake_gpu.lock);
        idle = fake_gpu.tail == fake_gpu.head || fake_gpu.stop;
        pthread_mutex_unlock(&fake_gpu.lock);
    }
    free(event);
    return 0;
}

static int fake_event_record(void *event, void *stream)
{
    uint64_t *e = event;
    return fake_submit((struct fake_op){.event = e + 1, .bytes = ++e[0]});
}

static int fake_event_query(void *event)
{
    uint64_t *e = event;
    return __atomic_load_n(e + 1, __ATOMIC_ACQUIRE) == e[0] ? 0 : SOFTNIC_CUDA_NOT_READY;
}

static int fake_which(uint64_t pointer)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++)
        if (pointer - (uintptr_t)fake_gpu.device[i] < FAKE_ALLOCATION_BYTES ||
            pointer - (uintptr_t)fake_gpu.mapped[i] < FAKE_ALLOCATION_BYTES)
            return i;
    return -1;
}

static int fake_attribute(void *value, int attribute, uint64_t pointer)
{
    int which = fake_which(pointer);
    if (which < 0)
        return 1; /* CUDA_ERROR_INVALID_VALUE: host memory that CUDA does not know */
    /* has the opener's ordinal */
    int opened = pointer - (uintptr_t)fake_gpu.mapped[which] < FAKE_ALLOCATION_BYTES;
    *(int *)value = attribute == SOFTNIC_CUDA_MEMORY_TYPE      ? SOFTNIC_CUDA_DEVICE_MEMORY
                    : attribute == SOFTNIC_CUDA_DEVICE_ORDINAL ? (opened ? 1 : which % 2)
                                                               : 0;
    return 0;
}

static int fake_range(uint64_t *base, size_t *size, uint64_t pointer)
{
    *base = (uintptr_t)fake_gpu.device[fake_which(pointer)];
    *size = FAKE_ALLOCATION_BYTES;
    return 0;
}

static int fake_ipc_get(struct softnic_cuda_handle *handle, uint64_t pointer)
{
    memset(handle, 0, sizeof(*handle));
    handle->bytes[0] = (char)(1 + fake_which(pointer));
    return 0;
}

static int fake_ipc_open(uint64_t *pointer, struct softnic_cuda_handle handle, unsigned flags)
{
    int i = handle.bytes[0] - 1;
    if (i < 0 || i >= FAKE_ALLOCATIONS)
        return 1;
    __atomic_add_fetch(&fake_gpu.opens, 1, __ATOMIC_RELEASE);
    *pointer = (uintptr_t)fake_gpu.mapped[i];
    return 0;
}

static int fake_ipc_close(uint64_t pointer)
{
    __atomic_add_fetch(&fake_gpu.closes, 1, __ATOMIC_RELEASE);
    return 0;
}

static int fake_device_get(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

static int fake_uuid(struct softnic_cuda_uuid *uuid, int device)
{
    memset(uuid, 0x55, sizeof(*uuid));
    uuid->bytes[15] = (char)device;
    return 0;
}

static int fake_retain(void **context, int device)
{
    fake_gpu.contexts++;
    *context = &fake_gpu;
    return 0;
}

static int fake_release(int device)
{
    fake_gpu.contexts--;
    return 0;
}

static int fake_push(void *context)
{
    return context != &fake_gpu;
}

static int fake_pop(void **context)
{
    *context = &fake_gpu;
    return 0;
}

static int fake_stream_create(void **stream, unsigned flags)
{
    *stream = &fake_gpu.queue;
    return flags != SOFTNIC_CUDA_STREAM_NON_BLOCKING;
}

static int fake_stream_destroy(void *stream)
{
    return 0;
}

static int fake_host_alloc(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    return *memory ? 0 : 2;
}

static int fake_host_free(void *memory)
{
    free(memory);
    return 0;
}

static int fake_copy_device(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    __atomic_add_fetch(&fake_gpu.copies_device, 1, __ATOMIC_RELEASE);
    return fake_submit((struct fake_op){fake_reach(to), fake_reach(from), bytes, NULL});
}

static int fake_copy_to_device(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return fake_submit((struct fake_op){fake_reach(to), from, bytes, NULL});
}

static int fake_copy_to_host(void *to, uint64_t from, size_t bytes, void *stream)
{
    return fake_submit((struct fake_op){to, fake_reach(from), bytes, NULL});
}

/* Copies of a batch come in any order: here, backwards. */
static int fake_copy_batch(uint64_t *to, uint64_t *from, size_t *bytes, size_t count,
                           struct softnic_cuda_attributes *attributes, size_t *first,
                           size_t attribute_count, size_t *failed, void *stream)
{
    int error = attributes->order != SOFTNIC_CUDA_STREAM_ORDER || *first || attribute_count != 1;
    __atomic_add_fetch(&fake_gpu.batches, 1, __ATOMIC_RELEASE);
    for (size_t i = count; i-- > 0 && !error;) {
        if (fake_which(from[i]) >= 0)
            error = fake_copy_device(to[i], from[i], bytes[i], stream);
        else
            error = fake_copy_to_device(to[i], (const void *)(uintptr_t)from[i], bytes[i], stream);
    }
    return error;
}

static struct softnic_cuda fake_cuda = {.pointer_attribute = fake_attribute,
                                        .address_range = fake_range,
                                        .ipc_get = fake_ipc_get,
                                        .ipc_open = fake_ipc_open,
                                        .ipc_close = fake_ipc_close,
                                        .device_get = fake_device_get,
                                        .device_uuid = fake_uuid,
                                        .primary_retain = fake_retain,
                                        .primary_release = fake_release,
                                        .context_push = fake_push,
                                        .context_pop = fake_pop,
                                        .stream_create = fake_stream_create,
                                        .stream_destroy = fake_stream_destroy,
                                        .event_create = fake_event_create,
                                        .event_destroy = fake_event_destroy,
                                        .event_record = fake_event_record,
                                        .event_query = fake_event_query,
                                        .host_alloc = fake_host_alloc,
                                        .host_free = fake_host_free,
                                        .copy_device = fake_copy_device,
                                        .copy_to_device = fake_copy_to_device,
                                        .copy_to_host = fake_copy_to_host,
                                        .copy_batch = fake_copy_batch};

/* Allocates the memory. 0, or -1 where the system gives none. */
static int fake_gpu_start(void)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
        int fd = memfd_create("gpu", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, FAKE_ALLOCATION_BYTES))
            return -1;
        fake_gpu.engine[i] =
            mmap(NULL, FAKE_ALLOCATION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        fake_gpu.device[i] = mmap(NULL, FAKE_ALLOCATION_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
        fake_gpu.mapped[i] = mmap(NULL, FAKE_ALLOCATION_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
        close(fd);
        if (fake_gpu.engine[i] == MAP_FAILED || fake_gpu.device[i] == MAP_FAILED ||
            fake_gpu.mapped[i] == MAP_FAILED)
            return -1;
    }
    return 0;
}

/* Each process has an engine of its own (threads do not survive a fork). */
static int fake_gpu_engine_start(void)
{
    fake_gpu.stop = 0;
    return pthread_create(&fake_gpu.thread, NULL, fake_engine, NULL);
}

static void fake_gpu_engine_stop(void)
{
    pthread_mutex_lock(&fake_gpu.lock);
    fake_gpu.stop = 1;
    fake_gpu.held = 0;
    pthread_mutex_unlock(&fake_gpu.lock);
    pthread_join(fake_gpu.thread, NULL);
}

static void fake_gpu_hold(int held)
{
    pthread_mutex_lock(&fake_gpu.lock);
    fake_gpu.held = held;
    pthread_mutex_unlock(&fake_gpu.lock);
}

/* For a group's setup and teardown, where softnic has been loaded (tests/softnic_load.h). */
static int fake_gpu_begin(void **state)
{
    if (fake_gpu_start() || fake_gpu_engine_start())
        return -1;
    nic.softnic_provide_cuda(&fake_cuda);
    return 0;
}

static int fake_gpu_end(void **state)
{
    fake_gpu_engine_stop();
    return 0;
}
