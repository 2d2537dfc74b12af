/* In a program that has set a locale with a decimal comma, the library reads tuned plans, options
 * and settings and prints options and sentences as elsewhere, and the program keeps its locale. The software NIC
 * reads its options so, too, and every subcommand reads and prints points in such a locale. */
/* WAITS */
#include "core/comm/comm.h"

#include <dlfcn.h>
#include <locale.h>

#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"

static struct mk_comm *comm;

/* A locale of the machine's, or one that is made for this test. */
static void set_comma(void)
{
    char command[256];
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        snprintf(command, sizeof command,
                 "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
        int made = !system(command) && !setenv("LOCPATH", folder, 1);
        if (!made || !setlocale(LC_ALL, "de_DE.UTF-8")) {
            print_message("skipped: there is no locale with a decimal comma, and localedef makes "
                          "none here\n");
            skip();
        }
    }
    snprintf(command, sizeof command, "%.1f", 0.5);
    assert_string_equal(command, "0,5");
}

static void open_comm(const char *tuning)
{
    char setting[160];
    snprintf(setting, sizeof setting, "tuning=%s", tuning);
    const char *const settings[] = {"rank=0", "nodes=1", "gpus=1", "heap_bytes=1048576",
                                    setting,  NULL};
    if (mk_comm_open_settings(&comm, MK_VERSION_NUMBER, settings))
        fail_msg("%s", mk_error(comm));
}

CASE(a_comma_changes_nothing)
{
    char path[64], text[16];
    struct mk_plan *plan;
    set_comma();
    snprintf(path, sizeof path, "%s/plans", folder);
    FILE *f = fopen(path, "w");
    fputs("ag_gemm 64,64,64 kn fast 1x1 host pieces=1 ms=0.0988 formula_ms=0.1121 "
          "date=2026-11-21\n",
          f);
    fclose(f);
    open_comm(path);
    const char *const settings[] = {"op=gemm_rs", "shape=64,64,64",
                                    "options=epilogue=residual+rmsnorm eps=0.5", NULL};
    if (mk_plan_create_settings(&plan, comm, settings))
        fail_msg("%s", mk_error(comm));
    assert_non_null(strstr(mk_plan_options(plan), "eps=0.5"));
    struct mk_spec spec = {.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}};
    if (mk_plan_create(&plan, comm, &spec))
        fail_msg("%s", mk_error(comm));
    assert_non_null(strstr(mk_plan_tuned(plan), "pieces=1 as measured at 64,64,64"));
    struct mk_failure failure = {
        .kind = MK_FAIL_TIMEOUT, .op = UINT32_MAX, .waited_ns = 1500000000};
    char sentence[256];
    failure_sentence(&failure, sentence, sizeof sentence);
    assert_non_null(strstr(sentence, "waited 1.5 s"));
    mk_comm_close(comm);
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5"); /* the program's own */
}

/* A program's own call of the NIC, as of any other. */
CASE(the_software_nic_reads_points)
{
    char path[4096];
    int count = 0;
    set_comma();
    command_path(path, sizeof path);
    memcpy(strrchr(path, '/'), "/libsoftnic.so", sizeof "/libsoftnic.so");
    void *nic = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!nic) { /* built without verbs */
        print_message("skipped: %s\n", dlerror());
        skip();
    }
    setenv("SOFTNIC", "devices=3,bw=1.5GB/s,latency=2.5us", 1);
    void *(*list)(int *);
    *(void **)&list = dlsym(nic, "ibv_get_device_list");
    assert_non_null(list(&count));
    unsetenv("SOFTNIC");
    assert_true(count >= 3);
    dlclose(nic);
}

/* What is printed and written is the same in both locales, where it is not measured; what is
 * measured is read again. */
CASE(subcommands_read_and_print_points)
{
    static const char script[] =
        "cd %s && for l in C de_DE.UTF-8; do export LC_ALL=$l; mkdir in.$l && cd in.$l || exit 9; "
        "sed 's/^nvlink_out .*/nvlink_out = 400.5 GB\\/s/' %s/experiments/machines/8xH200-cx7 "
        ">m && grep -q 400.5 m || exit 8; "
        "$M sim ag_gemm --shape 2048,2048,2048 --machine m --json s >o || exit 1; "
        "grep -v '\"seconds\"' s >sim; grep -v ^speed o >>sim; "
        "SOFTNIC=bw=1.5GB/s $M run ag_gemm --exec host --nic soft --nodes 2 --gpus 1 --shape "
        "256,64,64 --iters 3 --timeout 9.5 --json run >o || exit 2; "
        "grep -E '\"[a-z_0-9]+\": [0-9]+\\.[0-9]+' run >/dev/null || exit 3; "
        "$M tune ag_gemm --exec host --shape 64,64,64 --iters 3 --tuning t >o || exit 4; "
        "grep -E ' ms=[0-9]+\\.[0-9]+ ' t >/dev/null || exit 5; "
        "$M run ag_gemm --exec host --shape 64,64,64 --iters 3 --tuning t >o || exit 6; "
        "[ $l != C ] || $M sweep --vary 'op=ag_gemm;exec=host;nic=soft;shape=64,64,64;iters=3;"
        "timeout=9.5' --out ../r.db >o || exit 7; "
        "$M results ../r.db >table; $M results ../r.db export --csv csv --json json >o || exit 10; "
        "$M info >info; cd ..; done; "
        "for f in sim table csv json info; do cmp in.C/$f in.de_DE.UTF-8/$f || exit 11; done";
    char whole[4096], path[4096], here[1024];
    struct command_run r;
    set_comma();
    assert_non_null(getcwd(here, sizeof here));
    command_path(path, sizeof path);
    setenv("M", path, 1);
    snprintf(whole, sizeof whole, script, folder, here);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", whole, NULL});
    command_finish(&r, 120);
    if (r.status)
        fail_msg("%d: %s%s", r.status, r.out_text, r.err_text);
}

FIXTURE(folder_make, folder_remove)
