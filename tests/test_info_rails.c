/* `mkernel info` says for each GPU which NICs its rank takes, how far they are, and how far the
 * others, as the choice itself has it: on real machines' trees whose NICs are softnic's devices
 * here. */
#define OWN_MAIN
#include "experiments/info/info_rails.h"
#include "tests/helpers/sysfs_tree.h"
#include "tests/helpers/test.h"

static const char *const dgx_gpus[] = {"0000:1B:00.0", "0000:43:00.0", "0000:52:00.0",
                                       "0000:61:00.0", "0000:9D:00.0", "0000:C3:00.0",
                                       "0000:D1:00.0", "0000:DF:00.0"};

static char text[8192];

/* What info says of a fixture whose NICs are called soft0, soft1, ... */
static void tell(const char *fixture, const char *prefix, const char *const *gpus, uint32_t count)
{
    static struct nic_survey survey;
    struct sysfs_tree t;
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    assert_int_equal(tree_unpack_as(&t, fixture, prefix, "soft"), 0);
    nic_survey(&survey);
    if (!survey.verbs_in_build) {
        fclose(out);
        tree_close(&t);
        printf("built without <infiniband/verbs.h>\n");
        skip();
    }
    for (uint32_t i = 0; i < survey.count; i++)
        if (!survey.nics[i].soft && !survey.nics[i].problem[0]) {
            fclose(out);
            tree_close(&t);
            printf("this machine has NICs, which go before softnic's\n");
            skip();
        }
    info_rails(out, t.root, &survey, gpus, count);
    fclose(out);
    tree_close(&t);
}

static void expect(const char *says)
{
    if (!strstr(text, says))
        fail_msg("\"%s\" is not in: %s", says, text);
}

CASE(test_dgx)
{
    tell("dgx_h100", "mlx5_", dgx_gpus, 8);
    expect("rails     GPU 0 at 0000:1B:00.0 on soft0 (PXB); others: 5 NODE, 6 SYS\n");
    expect("\n          GPU 4 at 0000:9D:00.0 on soft6 (PXB); others: 5 NODE, 6 SYS\n");
    expect("GPU 7 at 0000:DF:00.0 on soft11 (PXB)");
    assert_null(strstr(text, "EFA")); /* softnic's EFA devices are no reason to speak of it */
}

CASE(test_shared_switch)
{
    static const char *const gpus[] = {"0000:04:00.0", "0000:0b:00.0"};
    /* a job on every second GPU has the switch's both NICs */
    tell("shared_switch", "mlx5_", gpus, 2);
    expect("rails     GPU 0 at 0000:04:00.0 on soft0 (PIX) + soft1 (PIX); others: 2 PHB, 4 SYS, 4 "
           "unknown\n");
    expect("GPU 1 at 0000:0b:00.0 on soft2 (PIX) + soft3 (PIX)");
}

CASE(test_nothing_known)
{
    static const char *const gpus[] = {"0000:00:06.0", "0000:00:07.0"};
    tell("flat_vm", "rxe", gpus, 2);
    expect("GPU 0 at 0000:00:06.0 on soft0 (unknown); others: 11 unknown\n");
    expect("GPU 1 at 0000:00:07.0 on soft1 (unknown)");
    tell("flat_vm", "rxe", NULL, 0);
    assert_string_equal(text, "rails     local rank 0 on soft0, local rank 1 on soft1\n");
}

int main(void)
{
    setenv("SOFTNIC", "devices=12", 1);
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
