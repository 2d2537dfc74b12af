/* The GPU executor, over a CUDA that this file plays in host memory: closing after a kernel that
 * does not end frees nothing and does not wait for it, one that the driver ends is explained, peers
 * without native atomics are refused before they are mapped, a rank without peers shares nothing, a
 * plan that goes leaves its words, flags and heap as they were, by MKERNEL_HEAP=vmm ranks map each
 * other's heaps through descriptors, nothing is launched on another GPU than the communicator's, and
 * nothing that collects tracks waits for streams of the program's. */
#include "tests/helpers/test.h"

#ifdef MK_HAVE_CUDA
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "kernels/host/gpu_clock.h"
#include "tests/helpers/job.h"

/* What CUDA was asked, and how it behaves. */
static struct {
    int frees, mapped, ordered; /* calls of cudaFree and its like; peers; asynchronous copies */
    int endless;                /* the kernel does not end */
    cudaError_t ends;           /* with what it ends */
    int atomics;                /* between any two GPUs */
    int nameless;               /* they have no bus ids */
    int one, mps;               /* all ranks are on one GPU; MPS serves it */
    int display;                /* it has one */
    CUdevice_attribute lacks;   /* what no device has */
    const char *missing;        /* a function that the driver has not; NULL: it has all */
    int refuses;                /* the driver maps no other process's memory */
    int unshared;               /* cudaIpc gives no handle, as in WSL2 */
    int direct;                 /* the memory was made for NICs, too */
    int current;                /* the thread's GPU */
    int traced;                 /* events of a track that are asked for */
    int legacy, sampled;        /* calls on the legacy stream; clock samples */
    int full;                   /* no SM is free for the clock's kernel */
    cudaStream_t runs;          /* has not ended */
} cuda;

/* Ten times as fast as the host's, so that a test does not last. */
static uint64_t play_now(void)
{
    return 10 * mk_now_ns();
}

static cudaError_t play_error(void)
{
    return cudaSuccess;
}

static const char *play_text(cudaError_t error)
{
    return "what CUDA says";
}

static cudaError_t play_alloc(void **out, size_t bytes)
{
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*out)
        memset(*out, 0x77, bytes);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t play_host_alloc(void **out, size_t bytes, unsigned flags)
{
    return play_alloc(out, bytes);
}

/* As CUDA's: waits for what the GPU does. */
static cudaError_t play_free(void *memory)
{
    cuda.frees++;
    while (cuda.endless)
        job_sleep(0.001);
    free(memory);
    return cudaSuccess;
}

static cudaError_t play_set(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

static cudaError_t play_set_on(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return play_set(to, value, bytes);
}

static cudaError_t play_copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                             cudaStream_t stream)
{
    cuda.ordered++;
    cuda.legacy += !stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

static cudaError_t play_copy_columns(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind,
                                     cudaStream_t stream)
{
    for (size_t i = 0; i < height; i++)
        play_copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind,
                  stream);
    return cudaSuccess;
}

static int play_sample(struct gpu_clock_mailbox *mailbox, cudaStream_t stream,
                       struct gpu_clock_sample *out)
{
    cuda.sampled++;
    cuda.legacy += !stream;
    *out = (struct gpu_clock_sample){.gpu = mk_now_ns(), .host = mk_now_ns()};
    return cuda.full ? -ETIMEDOUT : 0;
}

static cudaError_t play_nothing(void)
{
    return cudaSuccess;
}

static cudaError_t play_stream(cudaStream_t *out, unsigned flags)
{
    *out = flags & cudaStreamNonBlocking ? (cudaStream_t)(void *)&cuda : NULL;
    return cudaSuccess;
}

static cudaError_t play_of_stream(cudaStream_t stream)
{
    return cudaSuccess;
}

static cudaError_t play_query(cudaStream_t stream)
{
    return cuda.endless || (stream && stream == cuda.runs) ? cudaErrorNotReady : cuda.ends;
}

static cudaError_t play_number(int *out)
{
    *out = cuda.current;
    return cudaSuccess;
}

static cudaError_t play_count(int *out)
{
    *out = 2;
    return cudaSuccess;
}

static cudaError_t play_choose(int device)
{
    cuda.current = device;
    return cudaSuccess;
}

static cudaError_t play_attribute(int *out, enum cudaDeviceAttr attribute, int device)
{
    *out = attribute == cudaDevAttrMultiProcessorCount ? 8
           : attribute == cudaDevAttrMpsEnabled        ? cuda.mps
           : attribute == cudaDevAttrKernelExecTimeout ? cuda.display
                                                       : 9;
    return cudaSuccess;
}

static unsigned played_rank;

static cudaError_t play_properties(struct cudaDeviceProp *out, int device)
{
    snprintf(out->name, sizeof out->name, "a played GPU");
    memset(&out->uuid, 0, sizeof out->uuid);
    out->uuid.bytes[0] = cuda.one ? 1 : (char)(1 + played_rank);
    return cudaSuccess;
}

static cudaError_t play_bus(char *out, int size, int device)
{
    snprintf(out, (size_t)size, "0000:0%u:00.0", played_rank);
    return cuda.nameless ? cudaErrorNotSupported : cudaSuccess;
}

static cudaError_t play_of_bus(int *out, const char *bus)
{
    *out = bus[6] - '0';
    return cudaSuccess;
}

static cudaError_t play_between(int *out, enum cudaDeviceP2PAttr attribute, int one, int other)
{
    *out = attribute == cudaDevP2PAttrNativeAtomicSupported ? cuda.atomics : 1;
    return cudaSuccess;
}

static cudaError_t play_handle(cudaIpcMemHandle_t *out, void *memory)
{
    memset(out, 0, sizeof *out);
    return cuda.unshared ? cudaErrorNotSupported : cudaSuccess;
}

static cudaError_t play_map(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    cuda.mapped++;
    return play_alloc(out, 4096);
}

/* ---- a driver whose memory is a file without a name: a handle is its descriptor ---- */

static CUresult play_driver_attribute(int *out, CUdevice_attribute which, CUdevice device)
{
    *out = which != cuda.lacks;
    return CUDA_SUCCESS;
}

static CUresult play_driver_words(CUresult error, const char **out)
{
    *out = "what the driver says";
    return CUDA_SUCCESS;
}

static CUresult play_granularity(size_t *out, const CUmemAllocationProp *what,
                                 CUmemAllocationGranularity_flags flags)
{
    *out = 2 << 20;
    return CUDA_SUCCESS;
}

static CUresult play_create(CUmemGenericAllocationHandle *out, size_t bytes,
                            const CUmemAllocationProp *what, unsigned long long flags)
{
    int fd = memfd_create("played GPU memory", MFD_CLOEXEC);
    if (fd < 0 || bytes % (2 << 20) || ftruncate(fd, (off_t)bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    cuda.direct = what->allocFlags.gpuDirectRDMACapable;
    *out = (CUmemGenericAllocationHandle)fd;
    return CUDA_SUCCESS;
}

static CUresult play_release(CUmemGenericAllocationHandle memory)
{
    return close((int)memory) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult play_reserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *out = (CUdeviceptr)(uintptr_t)at;
    return at == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult play_forget(CUdeviceptr at, size_t bytes)
{
    return munmap((void *)(uintptr_t)at, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult play_place(CUdeviceptr at, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle memory, unsigned long long flags)
{
    return mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)memory,
                (off_t)offset) == MAP_FAILED
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

static CUresult play_unmap(CUdeviceptr at, size_t bytes)
{
    return mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                -1, 0) == MAP_FAILED
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

static CUresult play_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
                            size_t count)
{
    return mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE
                                                                          : CUDA_SUCCESS;
}

static CUresult play_share(void *out, CUmemGenericAllocationHandle memory,
                           CUmemAllocationHandleType type, unsigned long long flags)
{
    int fd = dup((int)memory);
    memcpy(out, &fd, sizeof fd);
    return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult play_take(CUmemGenericAllocationHandle *out, void *fd,
                          CUmemAllocationHandleType type)
{
    int memory = cuda.refuses ? -1 : dup((int)(uintptr_t)fd);
    *out = (CUmemGenericAllocationHandle)memory;
    cuda.mapped += memory >= 0;
    return memory < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static int play_find(const char *name, void *function)
{
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"cuDeviceGetAttribute", (void *)play_driver_attribute},
               {"cuGetErrorString", (void *)play_driver_words},
               {"cuMemGetAllocationGranularity", (void *)play_granularity},
               {"cuMemCreate", (void *)play_create},
               {"cuMemRelease", (void *)play_release},
               {"cuMemAddressReserve", (void *)play_reserve},
               {"cuMemAddressFree", (void *)play_forget},
               {"cuMemMap", (void *)play_place},
               {"cuMemUnmap", (void *)play_unmap},
               {"cuMemSetAccess", (void *)play_access},
               {"cuMemExportToShareableHandle", (void *)play_share},
               {"cuMemImportFromShareableHandle", (void *)play_take}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name) && !(cuda.missing && !strcmp(cuda.missing, name))) {
            memcpy(function, &all[i].function, sizeof all[i].function);
            return 0;
        }
    return -EOPNOTSUPP;
}

#define mk_now_ns play_now
#define cudaGetLastError play_error
#define cudaGetErrorString play_text
#define cudaMalloc play_alloc
#define cudaHostAlloc play_host_alloc
#define cudaFree play_free
#define cudaFreeHost play_free
#define cudaMemset play_set
#define cudaMemsetAsync play_set_on
#define cudaMemcpyAsync play_copy
#define cudaMemcpy2DAsync play_copy_columns
#define cudaMemcpy(to, from, bytes, kind) play_copy(to, from, bytes, kind, NULL)
#define cudaMemcpy2D(...) play_copy_columns(__VA_ARGS__, NULL)
#define gpu_clock_sample(mailbox, stream, out) play_sample(mailbox, stream, out)
#define cuda_tracks_create played_tracks_create
#define cuda_tracks_device played_tracks_device
#define cuda_tracks_collect played_tracks_collect
#define cuda_tracks_forget played_tracks_forget
#define cuda_tracks_destroy played_tracks_destroy
#define cudaDeviceSynchronize play_nothing
#define cudaStreamCreateWithFlags play_stream
#define cudaStreamDestroy play_of_stream
#define cudaStreamSynchronize play_of_stream
#define cudaStreamQuery play_query
#define cudaGetDevice play_number
#define cudaGetDeviceCount play_count
#define cudaSetDevice play_choose
#define cudaDeviceGetAttribute play_attribute
#undef cudaGetDeviceProperties
#define cudaGetDeviceProperties play_properties
#define cudaDeviceGetPCIBusId play_bus
#define cudaDeviceGetByPCIBusId play_of_bus
#define cudaDeviceGetP2PAttribute play_between
#define cudaIpcGetMemHandle play_handle
#define cudaIpcOpenMemHandle play_map
#define cudaIpcCloseMemHandle play_free
#define cuda_device_choose played_device_choose
#define cuda_heap_open played_heap_open
#define cuda_heap_close played_heap_close
#define exec_cuda played_exec_cuda
#define ag_gemm_prepare played_prepare
#define ag_gemm_launch played_launch
#define cuda_driver_find play_find
#define cuda_vmm_check played_vmm_check
#define cuda_vmm_make played_vmm_make
#define cuda_vmm_map played_vmm_map
#define cuda_vmm_unmap played_vmm_unmap
#include "kernels/host/cuda_vmm.c"
#include "kernels/host/cuda_device.c"
#include "kernels/host/cuda_heap.c"
#include "kernels/host/cuda_tracks.c"
#include "kernels/host/exec_cuda.c"

int played_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return 0;
}

int played_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    return 0;
}

static struct mk_comm *open_one(const struct bootstrap_config *c, int *result)
{
    static struct mk_config config;
    struct mk_comm *comm;
    config = (struct mk_config){.exec = MK_EXEC_CUDA, .nodes = 1, .gpus = 1, .listen_fd = -1};
    config.heap_bytes = 1 << 20;
    config.flag_bytes = 4096;
    config.trace_events = (uint32_t)cuda.traced;
    snprintf(config.tuning, sizeof config.tuning, "none");
    if (c) {
        config.rank = played_rank = c->rank;
        config.gpus = c->world;
        config.port = c->port;
        config.listen_fd = c->listen_fd;
        config.timeout_ns = c->timeout_ns;
        memcpy(config.host, c->host, sizeof config.host);
        memcpy(config.token, c->token, sizeof config.token);
    }
    *result = comm_open_with(&comm, &config, &exec_cuda, NULL);
    return comm;
}

static struct mk_problem small(void)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = 128, .n = 64, .k = 64};
    return q;
}

/* ---- the end of a kernel that has none ---- */

static int hang(const struct bootstrap_config *c, char *text, size_t size, void *waits)
{
    static uint16_t memory[128 * 64] __attribute__((aligned(16))),
        output[128 * 64] __attribute__((aligned(16)));
    int result;
    struct mk_comm *comm = open_one(NULL, &result);
    struct mk_plan *plan;
    struct mk_problem q = small();
    struct mk_failure f = {.kind = MK_FAIL_SETUP, .detail = "another rank is gone"};
    if (result || (result = comm_make_plan(&plan, comm, &q)) ||
        (result = mk_ag_gemm(plan, memory, memory, output, NULL))) {
        snprintf(text, size, "%s", mk_error(comm));
        return result;
    }
    cuda.endless = 1;
    cuda.frees = cuda.ordered = 0;
    comm_fail(comm, &f);
    if (waits)
        result = mk_wait(comm);
    double began = test_seconds();
    mk_comm_close(comm);
    snprintf(text, size, "%d frees, %d copies, %.1f s", cuda.frees, cuda.ordered,
             test_seconds() - began);
    /* with no wait before, closing is what asks the kernel to end, and gives it its 2 s */
    return cuda.frees || !cuda.ordered || test_seconds() - began > (waits ? 0.1 : 2.0) ? -1 : 0;
}

CASE(closing_leaves_a_kernel_that_hangs)
{
    for (int waits = 0; waits < 2; waits++) {
        struct job j;
        job_init(&j, 1, 20);
        job_start_all(&j, hang, waits ? &j : NULL);
        job_finish(&j);
        if (!j.reports[0].came || j.reports[0].result)
            fail_msg("%s: came %d, %d: %s", waits ? "waited for" : "not waited for",
                     j.reports[0].came, j.reports[0].result, j.reports[0].text);
    }
}

static int outlast(const struct bootstrap_config *c, char *text, size_t size, void *unused)
{
    static uint16_t memory[128 * 64] __attribute__((aligned(16))),
        output[128 * 64] __attribute__((aligned(16)));
    int result;
    struct mk_comm *comm = open_one(NULL, &result);
    struct mk_plan *plan;
    struct mk_problem q = small();
    if (result || (result = comm_make_plan(&plan, comm, &q)) ||
        (result = mk_ag_gemm(plan, memory, memory, output, NULL)))
        return result;
    cuda.ends = cudaErrorLaunchTimeout;
    result = mk_wait(comm);
    snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

CASE(a_launch_that_the_driver_ends_is_explained)
{
    struct job j;
    job_init(&j, 1, 20);
    job_start_all(&j, outlast, NULL);
    job_finish(&j);
    assert_true(j.reports[0].came);
    assert_int_equal(j.reports[0].result, -EIO);
    if (!strstr(j.reports[0].text, "the device of rank 0 failed: what CUDA says; a driver with a "
                                   "display on its GPU ends launches of several seconds: smaller "
                                   "ones fit, or the display on another GPU"))
        fail_msg("%s", j.reports[0].text);
}

/* ---- peers ---- */

static int join(const struct bootstrap_config *c, char *text, size_t size, void *atomics)
{
    int result;
    cuda.atomics = atomics != NULL;
    struct mk_comm *comm = open_one(c, &result);
    snprintf(text, size, "%d mapped: %s", cuda.mapped, mk_error(comm));
    mk_comm_close(comm);
    return result;
}

static int join_nameless(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    cuda.nameless = 1;
    setenv("MKERNEL_P2P", "off", 1);
    return join(c, text, size, argument);
}

/* Two GPUs whose bus ids are not known are not one GPU. */
CASE(gpus_without_ids_are_two)
{
    struct job j;
    job_init(&j, 2, 20);
    job_start_all(&j, join_nameless, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 2; r++) {
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, -ENODEV);
        if (!strstr(j.reports[r].text, "MKERNEL_P2P=off: this GPU () and"))
            fail_msg("%s", j.reports[r].text);
    }
}

CASE(peers_without_native_atomics_are_refused)
{
    for (int atomics = 0; atomics < 2; atomics++) {
        struct job j;
        job_init(&j, 2, 20);
        job_start_all(&j, join, atomics ? &j : NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < 2; r++) {
            const struct job_report *p = &j.reports[r];
            assert_true(p->came);
            assert_int_equal(p->result, atomics ? 0 : -ENODEV);
            if (!strstr(p->text, atomics ? "1 mapped" : "0 mapped") ||
                !strstr(p->text, atomics ? "" : "have no native atomics between them"))
                fail_msg("%s", p->text);
        }
    }
}

static int join_unshared(const struct bootstrap_config *c, char *text, size_t size, void *unused)
{
    cuda.unshared = 1;
    return join(c, text, size, text);
}

/* A rank that no other maps needs none. */
CASE(heaps_that_cannot_be_shared_are_refused)
{
    for (uint32_t world = 1; world <= 2; world++) {
        struct job j;
        job_init(&j, world, 20);
        job_start_all(&j, join_unshared, NULL);
        job_finish(&j);
        for (uint32_t r = 0; r < world; r++) {
            const struct job_report *p = &j.reports[r];
            assert_true(p->came);
            assert_int_equal(p->result, world > 1 ? -EIO : 0);
            if (!strstr(p->text, world > 1 ? "cannot be shared with other processes (WSL2" : ""))
                fail_msg("%s", p->text);
        }
    }
}

static int join_apart(const struct bootstrap_config *c, char *text, size_t size, void *unused)
{
    setenv("MKERNEL_P2P", "off", 1);
    return join(c, text, size, text);
}

CASE(peers_are_refused_without_p2p)
{
    struct job j;
    job_init(&j, 2, 20);
    job_start_all(&j, join_apart, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 2; r++) {
        const struct job_report *p = &j.reports[r];
        assert_true(p->came);
        assert_int_equal(p->result, -ENODEV);
        if (!strstr(p->text, "MKERNEL_P2P=off: this GPU") || !strstr(p->text, "0 mapped") ||
            !strstr(p->text, "--nodes 2 --gpus 1"))
            fail_msg("%s", p->text);
    }
}

/* ---- heaps that are mapped by the driver ---- */

static int count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Every rank writes what names both into all heaps, and finds what all have written into its
 * own. */
static int write_to_all(const struct bootstrap_config *c, char *text, size_t size, void *unused)
{
    int result, before = count_descriptors();
    cuda.atomics = 1;
    setenv("MKERNEL_HEAP", "vmm", 1);
    struct mk_comm *comm = open_one(c, &result);
    if (result) {
        snprintf(text, size, "%s", mk_error(comm));
        mk_comm_close(comm);
        return result;
    }
    for (uint32_t i = 0; i < c->world; i++)
        ((uint64_t *)comm->heap.peers[i])[8 + c->rank] = 1 + i * 100 + c->rank;
    result = bootstrap_barrier(comm->bootstrap);
    for (uint32_t i = 0; i < c->world && !result; i++)
        if (((uint64_t *)comm->heap.base)[8 + i] != 1 + c->rank * 100 + i)
            result = -EIO;
    snprintf(text, size, "%d mapped", cuda.mapped);
    mk_comm_close(comm);
    return result ? result : count_descriptors() <= before ? 0 : -EMFILE;
}

CASE(heaps_are_mapped_through_descriptors)
{
    struct job j;
    job_init(&j, 4, 20);
    job_start_all(&j, write_to_all, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 4; r++) {
        assert_true(j.reports[r].came);
        if (j.reports[r].result)
            fail_msg("rank %u: %d: %s", r, j.reports[r].result, j.reports[r].text);
        assert_string_equal(j.reports[r].text, "3 mapped");
    }
}

enum { NO_VMM, NO_FUNCTION, NO_WAY, NOT_ALL, NEITHER, TROUBLES };

static int trouble(const struct bootstrap_config *c, char *text, size_t size, void *which)
{
    int result;
    cuda.atomics = 1;
    setenv("MKERNEL_HEAP", which == (void *)NEITHER ? "both" : "vmm", 1);
    if (which == (void *)NO_VMM)
        cuda.lacks = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    else if (which == (void *)NO_FUNCTION)
        cuda.missing = "cuMemSetAccess";
    else if (which == (void *)NO_WAY)
        cuda.refuses = 1;
    else if (which == (void *)NOT_ALL && c->rank)
        unsetenv("MKERNEL_HEAP");
    struct mk_comm *comm = open_one(c, &result);
    snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

CASE(what_cannot_be_mapped_is_said)
{
    static const struct {
        int result;
        const char *said;
    } wanted[TROUBLES] = {
        [NO_VMM] = {-ENODEV, "MKERNEL_HEAP=vmm: this GPU has no virtual memory management"},
        [NO_FUNCTION] = {-ENODEV, "MKERNEL_HEAP=vmm: the driver has no cuMemSetAccess"},
        [NO_WAY] = {-EIO, "a peer's heap cannot be mapped"},
        [NOT_ALL] = {-EINVAL, "MKERNEL_HEAP: rank "},
        [NEITHER] = {-EINVAL, "MKERNEL_HEAP=both: it is ipc or vmm"},
    };
    for (uintptr_t which = 0; which < TROUBLES; which++) {
        struct job j;
        job_init(&j, 2, 20);
        job_start_all(&j, trouble, (void *)which);
        job_finish(&j);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(j.reports[r].came);
            if (j.reports[r].result != wanted[which].result ||
                !strstr(j.reports[r].text, wanted[which].said))
                fail_msg("%d: %s", j.reports[r].result, j.reports[r].text);
        }
    }
}

/* ---- ranks that share a GPU ---- */

enum { SLICES, MPS, HALF_OF_MPS, HALF_OF_ONE, APART, DISPLAY, SHARINGS };

static int share(const struct bootstrap_config *c, char *text, size_t size, void *how)
{
    int result;
    struct mk_plan *plan;
    struct mk_problem q = small();
    cuda.one = how != (void *)APART && how != (void *)DISPLAY;
    cuda.mps = how != (void *)SLICES && cuda.one;
    cuda.display = how == (void *)DISPLAY && c->rank == 1;
    cuda.atomics = 1;
    /* of 16, the process sees 8 */
    if (how == (void *)HALF_OF_MPS || (how == (void *)HALF_OF_ONE && c->rank == 0))
        setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", 1);
    struct mk_comm *comm = open_one(c, &result);
    if (!result && !(result = comm_make_plan(&plan, comm, &q))) {
        const struct cuda_executor *x = comm->exec_state;
        snprintf(text, size, "most %u, %s of 8 SMs, %g s", plan->problem.sms_most,
                 mk_total_blocks(&plan->problem.tuning.split) <= 4 ? "half" : "all",
                 (double)x->launches[plan->slot].timeout_ns / 1e9);
    } else {
        snprintf(text, size, "%s", mk_error(comm));
    }
    mk_comm_close(comm);
    return result;
}

/* Under MPS no block of a plan has to wait for one of another rank's; by slices a wait lasts as
 * much longer as ranks take turns. Where a rank's GPU has a display no rank waits as long as its
 * driver lets a launch last. */
CASE(ranks_that_share_a_gpu_fit_on_it)
{
    static const char *const said[SHARINGS] = {
        [SLICES] = "most 0, all of 8 SMs, 40 s",
        [MPS] = "most 4, half of 8 SMs, 20 s",
        [HALF_OF_MPS] = "most 8, all of 8 SMs, 20 s",
        [HALF_OF_ONE] =
            "most 4, half of 8 SMs, 20 s", /* on both ranks: it is of all that they see */
        [APART] = "most 0, all of 8 SMs, 20 s",
        [DISPLAY] = "most 0, all of 8 SMs, 2 s",
    };
    for (uintptr_t how = 0; how < SHARINGS; how++) {
        struct job j;
        job_init(&j, 2, 20);
        job_start_all(&j, share, (void *)how);
        job_finish(&j);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(j.reports[r].came);
            assert_string_equal(j.reports[r].text, said[how]);
            assert_int_equal(j.reports[r].result, 0);
        }
    }
}

/* ---- plans that go ---- */

CASE(a_plan_that_goes_leaves_zeros)
{
    struct mk_plan *plan, *again;
    struct mk_problem q = small();
    int result;
    cuda.endless = 0;
    struct mk_comm *comm = open_one(NULL, &result);
    assert_int_equal(result, 0);
    assert_int_equal(comm_make_plan(&plan, comm, &q), 0);
    const struct cuda_executor *x = comm->exec_state;
    uint64_t *words = x->words + plan->slot * DEVICE_WORDS, base = plan->heap_base,
             bytes = plan->heap_bytes;
    uint32_t flag = plan->flag_base, flags = plan->flags, slot = plan->slot;
    char *heap = comm->heap.base;
    memset(words, 0x55, DEVICE_WORDS * sizeof *words);
    memset(heap + flag * 8ull, 0x55, flags * 8ull);
    memset(heap + base, 0x55, bytes);
    /* its puts have completed, of which the device's words tell */
    static struct mk_ring ring = {.completed = 3};
    x->words[POSTED] = 3;
    comm->rings[0] = &ring;
    comm->ring_count = 1;
    assert_int_equal(mk_plan_destroy(plan), 0);
    comm->ring_count = 0;
    for (uint32_t i = 0; i < DEVICE_WORDS; i++)
        assert_int_equal(words[i], 0);
    for (uint64_t i = 0; i < flags * 8ull; i++)
        assert_int_equal(heap[flag * 8ull + i], 0);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(heap[base + i], 0);
    assert_int_equal(comm_make_plan(&again, comm, &q), 0);
    assert_true(again->heap_base == base && again->flag_base == flag && again->slot == slot);
    mk_comm_close(comm);
}

CASE(another_current_gpu_is_refused)
{
    static uint16_t memory[128 * 64] __attribute__((aligned(16))),
        out[128 * 64] __attribute__((aligned(16)));
    struct mk_problem q = small();
    struct mk_plan *plan, *none;
    int result;
    struct mk_comm *comm = open_one(NULL, &result);
    assert_int_equal(result, 0);
    assert_int_equal(comm_make_plan(&plan, comm, &q), 0);
    cuda.current = 1;
    assert_int_equal(mk_ag_gemm(plan, memory, memory, out, NULL), -EINVAL);
    assert_string_equal(mk_error(comm),
                        "GPU 1 is current in this thread, and the communicator's is "
                        "GPU 0: cudaSetDevice(0) comes first");
    assert_int_equal(comm_make_plan(&none, comm, &q), -EINVAL);
    cuda.current = 0;
    assert_int_equal(mk_ag_gemm(plan, memory, memory, out, NULL), 0);
    mk_comm_close(comm);
}

CASE(tracks_are_collected_past_the_programs_streams)
{
    static uint16_t memory[128 * 64] __attribute__((aligned(16))),
        out[128 * 64] __attribute__((aligned(16)));
    void *one = &memory, *other = &out;
    struct mk_problem q = small();
    struct mk_plan *plan;
    int result;
    cuda.traced = 8;
    cuda.legacy = cuda.sampled = 0;
    struct mk_comm *comm = open_one(NULL, &result);
    assert_int_equal(result, 0);
    assert_int_equal(cuda.sampled, 1);
    assert_int_equal(comm_make_plan(&plan, comm, &q), 0);
    assert_int_equal(mk_ag_gemm(plan, memory, memory, out, one), 0);
    assert_int_equal(mk_wait_stream(comm, one), 0);
    assert_true(cuda.sampled == 2 && comm->track_count > 0);
    /* a launch on another stream may still record: the wait for that one collects */
    assert_int_equal(mk_ag_gemm(plan, memory, memory, out, other), 0);
    cuda.runs = other;
    assert_int_equal(mk_ag_gemm(plan, memory, memory, out, one), 0);
    assert_int_equal(mk_wait_stream(comm, one), 0);
    assert_int_equal(cuda.sampled, 2);
    cuda.runs = NULL;
    assert_int_equal(mk_wait_stream(comm, other), 0);
    assert_int_equal(cuda.sampled, 3);
    /* the program's kernels leave no SM to read the clock on: a later wait collects */
    cuda.full = 1;
    assert_int_equal(mk_wait(comm), 0);
    cuda.full = 0;
    assert_int_equal(mk_wait(comm), 0);
    assert_int_equal(cuda.sampled, 5);
    assert_int_equal(cuda.legacy, 0);
    mk_comm_close(comm);
    cuda.traced = 0;
}
#else
CASE(without_cuda)
{
    print_message("skipped: this build is without CUDA\n");
    skip();
}
#endif
