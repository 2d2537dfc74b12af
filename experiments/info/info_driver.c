#include "experiments/info/info_driver.h"

#include <stdio.h>

/* The build has code for it, not PTX alone: sm_80, sm_90a, and sm_120 where nvcc knows it
 * (Makefile). */
static int info_driver_has_code(const struct gpu_device *g, int built)
{
    return g->major == 8 || gpu_is_hopper(g) || (g->major == 12 && built >= 12080);
}

int info_driver_lacks(const struct gpu_device *g, unsigned number, int driver, int built,
                      char *text, size_t size)
{
    const int major = driver / 1000, minor = driver % 1000 / 10;
    if (!built || !gpu_has_mma(g) || driver >= built)
        return 0;
    if (major < built / 1000)
        snprintf(
            text, size,
            "the driver is one of CUDA %d.%d and this build is of CUDA %d.%d: --exec cuda needs "
            "a newer driver, or a build by CUDA %d",
            major, minor, built / 1000, built % 1000 / 10, major);
    else if (!info_driver_has_code(g, built))
        snprintf(text, size,
                 "GPU %u runs PTX of CUDA %d.%d, and a driver of CUDA %d.%d takes none that is "
                 "newer than itself: --exec cuda needs a newer driver, or a build by CUDA %d.%d",
                 number, built / 1000, built % 1000 / 10, major, minor, major, minor);
    else
        return 0;
    return 1;
}

void info_command(unsigned gpus, int built, int soft, char *text, size_t size)
{
    const int cuda = built && gpus, nodes = soft && !(cuda && gpus > 1);
    snprintf(text, size, "mkernel run ag_gemm --exec %s%s --check", cuda ? "cuda" : "host",
             !nodes ? ""
             : cuda ? " --nodes 2 --gpus 1 --nic soft"
                    : " --nodes 2 --nic soft");
}
