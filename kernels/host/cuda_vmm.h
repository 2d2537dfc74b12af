/* GPU memory by the driver's virtual memory management, that other processes map through file
 * descriptors: what cudaMalloc and cudaIpc do for others, with addresses and access rights apart
 * from the memory (CUDA driver API, virtual memory management). It lives until all have unmapped
 * it.
 *
 * Functions return 0 or -errno with a sentence in `error`; the current device is the one whose
 * memory it is, and which maps. One thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Whether the device can. -ENODEV: it, or its driver, cannot. */
int cuda_vmm_check(int device, char *error, size_t size);

/* Makes memory of at least `bytes`: its address in *base, all its bytes in *mapped, and a
 * descriptor in *fd, which the caller closes. on_network: NICs are to reach it (GPUDirect RDMA),
 * where the device lets them. -ENOMEM, -EIO. */
int cuda_vmm_make(int device, uint64_t bytes, int on_network, void **base, uint64_t *mapped,
                  int *fd, char *error, size_t size);

/* Maps another process's memory of `mapped` bytes; `fd` stays the caller's. -EIO: also where this
 * device cannot reach the other's. */
int cuda_vmm_map(int device, int fd, uint64_t mapped, void **base, char *error, size_t size);

/* Unmaps either. */
void cuda_vmm_unmap(void *base, uint64_t mapped);
