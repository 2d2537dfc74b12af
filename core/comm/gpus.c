#include "core/comm/gpus.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t gpus_whole(uint32_t sms)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double percent = text ? strtod(text, NULL) : 100;
    return percent > 0 && percent < 100 ? (uint32_t)(sms * 100 / percent) : sms;
}

uint32_t gpus_share(uint32_t sms, uint32_t whole, uint32_t ranks, int at_once)
{
    uint32_t share = whole / (ranks ? ranks : 1);
    if (!at_once || ranks < 2)
        return 0;
    return share > sms ? sms : share ? share : 1;
}

uint64_t gpus_wait_limit(uint64_t timeout_ns, int watched)
{
    return watched && timeout_ns > GPUS_WATCHED_NS ? GPUS_WATCHED_NS : timeout_ns;
}

int gpus_peers_wanted(char *error, size_t size)
{
    const char *text = getenv("MKERNEL_P2P");
    if (!text || !*text || !strcmp(text, "on"))
        return 1;
    if (!strcmp(text, "off"))
        return 0;
    return mk_fail(-EINVAL, error, size, "MKERNEL_P2P=%s: it is on or off", text);
}

int gpus_heap_wanted(char *error, size_t size)
{
    const char *text = getenv("MKERNEL_HEAP");
    if (!text || !*text || !strcmp(text, "ipc"))
        return 0;
    if (!strcmp(text, "vmm"))
        return 1;
    return mk_fail(-EINVAL, error, size, "MKERNEL_HEAP=%s: it is ipc or vmm", text);
}
