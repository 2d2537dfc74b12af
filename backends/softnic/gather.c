#include "gather.h"

#include <errno.h>
#include <stdbool.h>

static bool gather_overlaps(const struct softnic_gather_list *list, uint64_t to, uint64_t bytes)
{
    for (int i = 0; i < list->count; i++)
        if (to < list->to[i] + list->bytes[i] && list->to[i] < to + bytes)
            return true;
    return false;
}

static void gather_add(struct softnic_gather_list *list, uint64_t to, uint64_t from, uint64_t bytes)
{
    list->to[list->count] = to;
    list->from[list->count] = from;
    list->bytes[list->count++] = bytes;
}

static int gather_start(struct softnic_gather *g, struct softnic_gather_list *list, bool from_host)
{
    struct softnic_cuda_attributes attributes = {.order = SOFTNIC_CUDA_STREAM_ORDER,
                                                 .flags = SOFTNIC_CUDA_BESIDE_KERNELS};
    size_t first = 0, failed;
    int error = 0, count = list->count;
    list->count = 0;
    if (count > 1 && g->cuda->copy_batch)
        return g->cuda->copy_batch(list->to, list->from, list->bytes, (size_t)count, &attributes,
                                   &first, 1, &failed, g->stream)
                   ? -EIO
                   : 0;
    for (int i = 0; i < count && !error; i++)
        error = from_host
                    ? g->cuda->copy_to_device(list->to[i], (const void *)(uintptr_t)list->from[i],
                                              8, g->stream)
                    : g->cuda->copy_device(list->to[i], list->from[i], list->bytes[i], g->stream);
    return error ? -EIO : 0;
}

int softnic_gather_start(struct softnic_gather *g)
{
    int error = gather_start(g, &g->runs, false);
    return error ? error : gather_start(g, &g->words, true);
}

int softnic_gather_run(struct softnic_gather *g, uint64_t to, uint64_t from, uint64_t bytes)
{
    int error = 0;
    if (g->runs.count == GATHER_MOST || gather_overlaps(&g->runs, to, bytes) ||
        gather_overlaps(&g->words, to, bytes))
        error = softnic_gather_start(g);
    if (!error)
        gather_add(&g->runs, to, from, bytes);
    return error;
}

int softnic_gather_word(struct softnic_gather *g, uint64_t to, const void *staged)
{
    int error = 0;
    if (g->words.count == GATHER_MOST || gather_overlaps(&g->words, to, 8))
        error = softnic_gather_start(g);
    if (!error)
        gather_add(&g->words, to, (uintptr_t)staged, 8);
    return error;
}
