/* What the ranks of a job make of the GPUs of a host: how those that share one divide it, and
 * whether GPUs reach each other's memory. Host code, which every build has. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* SMs of the whole GPU. This process sees `sms` of them: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE may have
 * taken the others. */
uint32_t gpus_whole(uint32_t sms);

/* SMs of a GPU that a plan may have where `ranks` ranks of the job are on it; 0: all of them. Of
 * its `whole` SMs the rank's process sees `sms`.
 *
 * at_once: kernels of several processes run on it at once, under MPS. Nothing preempts them, so
 * that blocks which did not fit would wait for ever behind those that wait for them: together
 * the ranks have no more SMs than there are. Else the ranks take turns, each with all SMs. */
uint32_t gpus_share(uint32_t sms, uint32_t whole, uint32_t ranks, int at_once);

/* The limit of a launch's waits, ns; `timeout_ns` was asked for. The driver of a GPU with a display
 * (watched) ends launches that last several seconds (5 on Linux, by what users report), and takes
 * the process's context with them. So waits end before. */
#define GPUS_WATCHED_NS 2000000000ull
uint64_t gpus_wait_limit(uint64_t timeout_ns, int watched);

/* MKERNEL_P2P: 1 where it is not set or "on", 0 where it is "off" (no GPU is reached by another or
 * by a NIC, as it is with GeForce cards), -EINVAL with a sentence for anything else. */
int gpus_peers_wanted(char *error, size_t size);

/* MKERNEL_HEAP: how ranks of a node map each other's heaps. 0 where it is not set or "ipc" (by
 * cudaIpc), 1 where it is "vmm" (by the driver's virtual memory management), -EINVAL with a
 * sentence for anything else. */
int gpus_heap_wanted(char *error, size_t size);
