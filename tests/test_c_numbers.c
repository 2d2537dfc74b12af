/* In a program that has set a locale with a decimal comma, the library reads tuned plans, options
 * and settings and prints options and sentences as elsewhere, and the program keeps its locale. */
#include "core/comm.h"
#include "tests/helpers/test.h"

#include <locale.h>

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

static void a_comma_changes_nothing(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_comma_changes_nothing)};
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
