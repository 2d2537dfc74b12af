/* `mkernel info` says what a driver does not take of a build: one of an older major version
 * nothing, an older one of the same no PTX, which GPUs run from that the build has no code for. The
 * command that it suggests runs on GPUs where there are any. And waits on a GPU with a display end
 * before its driver ends the launch. */
#include "tests/helpers/test.h"
#include "core/comm/gpus.h"
#include "experiments/info/info_driver.h"

CASE(test_drivers)
{
    static const struct {
        int major, minor, driver, built;
        const char *said; /* NULL: nothing */
    } cases[] = {
        {8, 9, 13000, 13000, NULL},
        {8, 9, 13010, 12090, NULL},
        {8, 9, 12040, 12090, NULL},
        {8, 6, 12090, 13000, "one of CUDA 12.9 and this build is of CUDA 13.0"},
        {8, 6, 12090, 13000, "or a build by CUDA 12"},
        {9, 0, 12040, 12090, NULL},
        {12, 0, 12080, 12090, NULL},
        {12, 1, 12040, 12060, "GPU 3 runs PTX of CUDA 12.6"}, /* whose nvcc had no sm_120 */
        {10, 0, 13000, 13010, "a driver of CUDA 13.0 takes none that is newer than itself"},
        {10, 0, 13010, 13010, NULL},
        {7, 5, 12040, 13000, NULL}, /* which has no engine */
        {8, 9, 12040, 0, NULL},     /* a build without CUDA */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gpu_device g = {.major = cases[i].major, .minor = cases[i].minor};
        char text[300] = "";
        int lacks = info_driver_lacks(&g, 3, cases[i].driver, cases[i].built, text, sizeof text);
        assert_int_equal(lacks, cases[i].said != NULL);
        if (lacks)
            assert_non_null(strstr(text, cases[i].said));
    }
}

CASE(test_commands)
{
    static const struct {
        unsigned gpus;
        int built, soft;
        const char *command;
    } cases[] = {
        {0, 13000, 1, "mkernel run ag_gemm --exec host --nodes 2 --nic soft --check"},
        {0, 13000, 0, "mkernel run ag_gemm --exec host --check"},
        {1, 0, 1, "mkernel run ag_gemm --exec host --nodes 2 --nic soft --check"},
        {1, 13000, 1, "mkernel run ag_gemm --exec cuda --nodes 2 --gpus 1 --nic soft --check"},
        {1, 13000, 0, "mkernel run ag_gemm --exec cuda --check"},
        {8, 13000, 1, "mkernel run ag_gemm --exec cuda --check"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        info_command(cases[i].gpus, cases[i].built, cases[i].soft, text, sizeof text);
        assert_string_equal(text, cases[i].command);
    }
}

CASE(test_displays)
{
    assert_int_equal(gpus_wait_limit(10000000000, 0), 10000000000);
    assert_int_equal(gpus_wait_limit(10000000000, 1), GPUS_WATCHED_NS);
    assert_int_equal(gpus_wait_limit(500000000, 1), 500000000);
}
