/* tests/gpu_host.sh does what it says on a host that nobody has yet: every plan that it asks for is
 * accepted on 1, 2 and 8 GPUs, what fails, hangs or is not there is told and counted, and a budget
 * of time is kept. The GPUs are a driver's word alone: where ranks open them they fail, with status
 * 3, which counts as done here. */
#include <sys/stat.h>

#include "core/comm/comm.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/shell.h"

extern const struct mk_exec_ops exec_cuda __attribute__((weak));

static char out[1 << 16];

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

/* What `mkernel info` and `run` ask of libcuda: Hopper GPUs, as many as GPU_HOST_GPUS says, or,
 * with GPU_HOST_OTHER, GPUs of compute capability 8.9 with 36 SMs. */
static const char driver[] =
    "#include <stdio.h>\n#include <stdlib.h>\n"
    "int cuInit(unsigned f) { return 0; }\n"
    "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n"
    "int cuDeviceGetCount(int *n) { *n = atoi(getenv(\"GPU_HOST_GPUS\")); return 0; }\n"
    "int cuDeviceGet(int *d, int i) { *d = i; return 0; }\n"
    "int cuDeviceGetName(char *s, int n, int d) { snprintf(s, (size_t)n, \"NVIDIA H200\"); return "
    "0; }\n"
    "int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)140 << 30; return 0; }\n"
    "int cuDeviceGetAttribute(int *v, int a, int d) { int o = !!getenv(\"GPU_HOST_OTHER\"); *v = a "
    "== "
    "75 ? 9 - o : a == 76 ? 9 * o : a == 16 ? (o ? 36 : 132) : a == 13 ? 1980000 : a == 133 ? "
    "!!getenv(\"CUDA_MPS_PIPE_DIRECTORY\") : 0; return 0; }\n"
    "int cuDeviceCanAccessPeer(int *v, int a, int b) { *v = 1; return 0; }\n"
    "int cuDeviceGetP2PAttribute(int *v, int k, int a, int b) { *v = !getenv(\"GPU_HOST_PCIE\"); "
    "return 0; }\n"
    "int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, (size_t)n, \"0000:%02x:00.0\", d "
    "+ 1); return 0; }\n";

/* The endless job: as many children as GPUs; when the second dies or stops, the job says so and
 * ends. Where a bench is asked why, its parts are told. */
static const char job[] =
    "#!/bin/sh\n"
    "case \"$*\" in trace*) echo 'worst clock: none'; exit 0;; esac\n"
    "case \"$*\" in *'--capacity 1000') echo 'rank 0 has room for 1000 rows of its experts, and "
    "4277 came in epoch 1'; exit 3;; "
    "esac\n"
    "case \"$*\" in *1000000*)\n"
    "    for i in $(seq $GPU_HOST_GPUS); do sleep 40 & all=\"$all $!\"; [ $i = 2 ] && second=$!; "
    "done\n"
    "    while grep -q '^State:.[RS]' /proc/$second/status; do sleep 0.1; done\n"
    "    echo 'rank 1 is lost'; kill -9 $all; exit 3;;\n"
    "esac\n"
    "LD_LIBRARY_PATH=$GPU_HOST_FOLDER timeout 60 $GPU_HOST_MKERNEL \"$@\"\n"
    "s=$?; [ $s = 3 ] || exit $((s ? s : 1))\n"
    "case \"$*\" in *--why*)\n"
    "    for json; do :; done\n"
    "    echo '{\"rows\": [{\"ms\": 0.1, \"why\": {\"whole_ns\": 100000, \"launch_ns\": "
    "100000}}]}' >$json;;\n"
    "esac\n";

static int make_host(void **state)
{
    char command[512];
    if (!&exec_cuda || folder_make(state))
        return &exec_cuda ? -1 : 0;
    snprintf(command, sizeof command, "mkdir -p %s/bin %s/build/tests", folder, folder);
    if (system(command))
        return -1;
    write_file("driver.c", driver);
    write_file("build/mkernel", job);
    write_file("bin/nvidia-cuda-mps-control", "#!/bin/sh\n");
    snprintf(
        command, sizeof command,
        "for t in %.*s/gpu_*.cu; do p=%s/build/tests/$(basename $t .cu); echo '#!/bin/sh' >$p; "
        "chmod +x $p; done",
        (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__, folder);
    if (system(command))
        return -1;
    write_file("build/tests/gpu_ring", "#!/bin/sh\n${GPU_HOST_RING:-exit 0}\n");
    write_file("bin/nvidia-smi",
               "#!/bin/sh\nfor i in $(seq $GPU_HOST_GPUS); do case $1$GPU_HOST_OTHER in\n"
               "--query*) echo 8.9;; -L) echo GPU: NVIDIA H200;; *) echo GPU: NVIDIA RTX;;\n"
               "esac; done\n");
    write_file("bin/compute-sanitizer",
               "#!/bin/sh\nwhile [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"\n");
    snprintf(command, sizeof command, "%s -shared -fPIC -o %s/libcuda.so.1 %s/driver.c",
             getenv("CC") ? getenv("CC") : "cc", folder, folder);
    return system(command) ? -1 : 0;
}

static int remove_host(void **state)
{
    return &exec_cuda ? folder_remove(state) : 0;
}

/* Its exit status; what it says is in `out`. */
static int gpu_host(int gpus, const char *environment, const char *arguments)
{
    char command[1024], mkernel[256], source[256];
    if (!&exec_cuda) {
        print_message("skipped: this build is without CUDA\n");
        skip();
    }
    command_path(mkernel, sizeof mkernel);
    snprintf(source, sizeof source, "%s", __FILE__);
    *strrchr(source, '/') = '\0';
    snprintf(command, sizeof command,
             "env -u ONLY -u BUDGET -u GPUS -u ENGINE PATH=%s/bin:\"$PATH\" GPU_HOST_GPUS=%d "
             "GPU_HOST_FOLDER=%s GPU_HOST_MKERNEL=%s "
             "MKERNEL_TUNING=none %s bash %s/gpu_host.sh %s/build %s 2>&1",
             folder, gpus, folder, mkernel, environment, source, folder, arguments);
    return shell(command, out, sizeof out);
}

/* "N passed, 0 failed, 0 skipped" at the end; N. */
static int all_passed(int status)
{
    int passed = 0, failed = -1, skipped = -1;
    char *end = strrchr(out, ',');
    while (end && end > out && end[-1] != '\n')
        end--;
    if (status || !end ||
        sscanf(end, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped) != 3 ||
        failed || skipped)
        fail_msg("status %d: ...%s", status, strlen(out) > 900 ? out + strlen(out) - 900 : out);
    return passed;
}

CASE(every_plan_is_accepted)
{
    assert_true(all_passed(gpu_host(1, "ONLY='^[^a]|^a[^_]'", "")) > 30);
    assert_true(all_passed(gpu_host(2, "ONLY='nodes|srd|staged|dedicated|share|mps'", "")) > 10);
    assert_true(all_passed(gpu_host(8, "ONLY='nodes|srd|staged|dedicated|share|tiles|bench_[^t]'",
                                    "bench")) > 25);
}

/* GPUs of another kind: plans of engine mma for as many SMs as they have, and what needs no engine;
 * nothing that is Hopper's. */
CASE(other_gpus_run_their_engine)
{
    assert_true(all_passed(gpu_host(1, "GPU_HOST_OTHER=yes", "")) > 80);
    assert_non_null(strstr(out, "OK ] on_engine_mma_blocks_push\n"));
    assert_non_null(strstr(out, "OK ] layer_on_engine_mma_nk\n"));
    assert_non_null(strstr(out, "OK ] mps_gemm_ar_2_ranks\n"));
    assert_null(strstr(out, "OK ] engine_any_shape\n"));
    assert_null(strstr(out, "OK ] commands_reach_the_proxy\n"));
    assert_null(strstr(out, "OK ] one_gpu\n"));
    assert_null(strstr(out, "OK ] fp8_one_gpu\n"));
}

/* Whatever names no engine, by the one that is named; what it has not is left out with a word. */
CASE(an_engine_is_taken)
{
    int passed = 0, failed = -1, skipped = -1;
    assert_int_equal(
        gpu_host(2, "ENGINE=mma ONLY='^(gemm_rs|two|over|moe_odd|moe_one|engine)'", ""), 0);
    const char *end = strstr(out, " passed, ");
    while (end && end > out && end[-1] != '\n')
        end--;
    assert_true(end &&
                sscanf(end, "%d passed, %d failed, %d skipped", &passed, &failed, &skipped) == 3);
    if (failed || skipped < 5 || passed < 30)
        fail_msg("%d passed, %d failed, %d skipped", passed, failed, skipped);
    assert_non_null(strstr(out, "OK ] gemm_rs_two_nodes_on_engine_mma\n"));
    assert_non_null(strstr(out, "OK ] over_srd_on_engine_mma\n"));
    assert_non_null(strstr(out, "[  SKIPPED ] gemm_rs_split_k_on_engine_mma\n"));
    assert_null(strstr(out, "engine_any_shape"));
}

CASE(a_rank_is_killed_or_stopped)
{
    assert_int_equal(all_passed(gpu_host(2, "ONLY='a_rank_(killed|stopped)'", "")), 3);
    assert_non_null(strstr(out, "figure: a rank with SIGKILL: status 3 after "));
    assert_non_null(strstr(out, ": rank 1 is lost"));
}

CASE(what_fails_is_told)
{
    assert_int_equal(gpu_host(2,
                              "GPU_HOST_RING=false "
                              "ONLY='bench_ring$|commands|^engine_any|bench_engine$'",
                              "bench"),
                     1);
    assert_non_null(strstr(out, "[  FAILED  ] commands_reach_the_proxy\n"));
    assert_non_null(strstr(out, "[  FAILED  ] bench_ring\n"));
    assert_non_null(strstr(out, "\n2 passed, 2 failed, 0 skipped"));
    assert_int_equal(gpu_host(2, "ONLY=nothing", ""), 2);
    assert_non_null(strstr(out, "ONLY=nothing matches no check"));
    assert_int_equal(gpu_host(0, "", ""), 0);
    assert_non_null(strstr(out, "no GPU of compute capability 8.0 or up"));
}

/* What `mkernel run` says to GPUs that ranks share, and to those that do not reach each other. */
CASE(gpus_are_shared_or_apart)
{
    static const struct {
        int gpus, status;
        const char *environment, *options, *said;
    } cases[] = {
        {2, 0, "", "", "1 x 2 ranks (cuda) would run"},
        {2, 0, "GPU_HOST_PCIE=1", "", "2 x 1 ranks (cuda) would run"},
        {2, 0, "MKERNEL_P2P=off", "", "2 x 1 ranks (cuda) would run"},
        {2, 0, "MKERNEL_P2P=off", "--nodes 4", "4 x 1 ranks (cuda) would run"},
        {2, 2, "MKERNEL_P2P=off", "--gpus 2",
         "--gpus 2: the GPUs of this host are not to reach each other's memory (MKERNEL_P2P=off), "
         "so each is a node of its own: --nodes 2 --gpus 1; "},
        {2, 2, "GPU_HOST_PCIE=1", "--nodes 2 --gpus 2", "do not reach each other's memory with"},
        {1, 0, "MKERNEL_P2P=off", "--gpus 2", "1 x 2 ranks (cuda) would run"},
        {2, 2, "MKERNEL_P2P=maybe", "", "MKERNEL_P2P=maybe: it is on or off; "},
        {1, 0, "CUDA_MPS_PIPE_DIRECTORY=/x", "--gpus 2 --roles compute=64,intra_comm=2",
         "compute=64"},
        {1, 2, "CUDA_MPS_PIPE_DIRECTORY=/x", "--gpus 2 --roles compute=66,intra_comm=2",
         "68 thread blocks in clusters of 2 on what sms= or other ranks on the GPU leave to the "
         "plan, 66 SMs"},
        {1, 0, "", "--gpus 2 --roles compute=130,intra_comm=2", "compute=130"},
    };
    char mkernel[256], command[1024];
    if (!&exec_cuda) {
        print_message("skipped: this build is without CUDA\n");
        skip();
    }
    command_path(mkernel, sizeof mkernel);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command,
                 "GPU_HOST_GPUS=%d LD_LIBRARY_PATH=%s MKERNEL_TUNING=none %s %s run ag_gemm --exec "
                 "cuda --shape 1024,1024,1024 --tile 256,128 --dry-run %s 2>&1",
                 cases[i].gpus, folder, cases[i].environment, mkernel, cases[i].options);
        int status = shell(command, out, sizeof out);
        if (status != cases[i].status || !strstr(out, cases[i].said))
            fail_msg("%s: %d: %s", command, status, out);
    }
}

CASE(a_budget_is_kept)
{
    /* the first begins where 10 s are left: there are 20 s for a machine that is busy */
    assert_int_equal(gpu_host(2, "BUDGET=30 GPU_HOST_RING='sleep 300' ONLY='commands|^engine'", ""),
                     0);
    assert_non_null(
        strstr(out, "cut off by the budget of 30 s\n[  SKIPPED ] commands_reach_the_proxy"));
    assert_non_null(strstr(out, "no time left of 30 s\n[  SKIPPED ] engine_any_shape"));
    assert_non_null(strstr(out, "\n0 passed, 0 failed, 2 skipped"));
}

FIXTURE(make_host, remove_host)
