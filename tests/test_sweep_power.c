/* Where NVML is, a sweep keeps clocks, power and temperature of every GPU beside each job; and
 * where a launcher does not say which ranks share a node, `mkernel run` says what it took them for.
 * NVML is a library that this test makes. */
#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/results_ask.h"
#include "tests/helpers/free_port.h"

/* Two GPUs; the second does not tell its power. */
static const char nvml[] =
    "int nvmlInit_v2(void) { return 0; }\n"
    "int nvmlShutdown(void) { return 0; }\n"
    "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }\n"
    "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return "
    "0; }\n"
    "int nvmlDeviceGetClockInfo(void *d, int which, unsigned *mhz)\n"
    "{ *mhz = which == 1 ? 1700 + 10 * (unsigned)(long)d : which == 2 ? 2600 : 0; return 0; }\n"
    "int nvmlDeviceGetPowerUsage(void *d, unsigned *mw)\n"
    "{ *mw = 512345; return (long)d == 2 ? 3 : 0; }\n"
    "int nvmlDeviceGetTemperature(void *d, int which, unsigned *c) { *c = 41; return which; }\n";

CASE(clocks_and_power_are_kept)
{
    char line[512], path[128];
    struct command_run r;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a library without the sanitizer's runtime */
#endif
    snprintf(path, sizeof path, "%s/nvml.c", folder);
    test_write_file(path, nvml);
    snprintf(line, sizeof line, "cc -shared -fPIC -o %s/libnvidia-ml.so.1 %s 2>/dev/null", folder,
             path);
    if (system(line))
        skip();
    snprintf(database, sizeof database, "%s/r.db", folder);
    snprintf(
        line, sizeof line,
        "sweep --vary op=ag_gemm;exec=host;shape=64,64,64;iters=2 --repeats 2 --quiet --out %s",
        database);
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", folder);
    command_start(&r, line, path, NULL);
    command_finish(&r, 60);
    if (r.status)
        print_message("%s\n", r.err_text);
    assert_int_equal(r.status, 0);
    assert_int_equal(ask("SELECT count(DISTINCT job || ' ' || gpu) FROM power"), 4);
    assert_int_equal(ask("SELECT count(*) FROM power WHERE gpu = 0 AND sm_mhz = 1710 AND "
                         "memory_mhz = 2600 AND abs(watts - 512.345) < 1e-6 AND celsius "
                         "= 41"),
                     ask("SELECT count(*) FROM power WHERE gpu = 0"));
    assert_int_equal(ask("SELECT count(*) FROM power WHERE gpu = 1 AND sm_mhz = 1720 AND "
                         "watts IS NULL"),
                     ask("SELECT count(*) FROM power WHERE gpu = 1"));
    assert_int_equal(ask("SELECT count(*) FROM job WHERE load IS NOT NULL"), 2);
}

CASE(one_node_is_assumed_and_said)
{
    struct command_run ranks[2];
    char port[40], rank[2][16];
    snprintf(port, sizeof port, "MASTER_PORT=%d", free_port());
    for (int i = 0; i < 2; i++) {
        snprintf(rank[i], sizeof rank[i], "RANK=%d", i);
        command_start(&ranks[i], "run ag_gemm --exec host --shape 64,64,64 --iters 2 --check",
                      rank[i], "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port,
                      "MKERNEL_TOKEN=of the test", NULL);
    }
    for (int i = 0; i < 2; i++)
        command_finish(&ranks[i], 60);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ranks[i].status, 0);
    assert_non_null(strstr(ranks[0].out_text, "1 node of 2"));
    assert_non_null(strstr(ranks[0].err_text, "all 2 ranks are taken for one node's"));
    assert_null(strstr(ranks[1].err_text, "taken for"));
}

FIXTURE(folder_make, folder_remove)
