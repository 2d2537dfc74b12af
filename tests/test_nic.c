/* The survey finds softnic's devices as they are configured, and a choice takes the device that was named,
 * turns through several, and says in one sentence why a device cannot be had. */
#include "backends/nic.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct nic_survey survey;

static const struct nic_info *find(const char *name)
{
    for (uint32_t i = 0; i < survey.count; i++)
        if (!strcmp(survey.nics[i].name, name))
            return &survey.nics[i];
    return NULL;
}

static int active_hardware(void)
{
    int n = 0;
    for (uint32_t i = 0; i < survey.count; i++)
        n += !survey.nics[i].soft && !survey.nics[i].problem[0];
    return n;
}

static void test_survey(void **state)
{
    nic_survey(&survey);
    if (!survey.verbs_in_build) {
        printf("built without <infiniband/verbs.h>\n");
        skip();
    }
    assert_string_equal(survey.soft_problem, "");
    const struct nic_info *n = find("soft1");
    assert_non_null(n);
    assert_int_equal(n->soft, 1);
    assert_int_equal(n->active, 1);
    assert_int_equal(n->reliable, 1);
    assert_int_equal(n->port, 1);
    assert_true(n->mtu >= 256);
    assert_string_equal(n->state, "active");
    assert_string_equal(n->link_layer, "Ethernet");
    assert_string_equal(n->problem, "");
    assert_true(n->gid_index >= 0 && strchr(n->gid, ':'));
    assert_string_equal(n->gid_type, "RoCE v2");
    assert_null(find("soft3"));
    n = find("softefa0"); /* an EFA device is sound, and no device of the verbs fabric */
    assert_non_null(n);
    assert_true(n->efa && !n->reliable);
    assert_string_equal(n->problem, "");
}

static void test_choice(void **state)
{
    struct nic_choice c;
    char error[256] = "";
    nic_survey(&survey);
    if (!survey.verbs_in_build) {
        printf("built without <infiniband/verbs.h>\n");
        skip();
    }
    for (uint32_t rank = 0; rank < 7; rank++) {
        char wanted[16];
        snprintf(wanted, sizeof wanted, "soft%u", rank % 3);
        assert_int_equal(nic_choose(&c, "soft", rank, error, sizeof error), 0);
        assert_int_equal(c.soft, 1);
        assert_string_equal(c.device, wanted);
    }
    assert_int_equal(nic_choose(&c, "soft2", 0, error, sizeof error), 0);
    assert_string_equal(c.device, "soft2");
    assert_int_equal(nic_choose(&c, "mlx5_99", 0, error, sizeof error), -ENODEV);
    assert_non_null(strstr(error, "there is no NIC mlx5_99"));
    assert_int_equal(nic_choose(&c, "softefa0", 0, error, sizeof error), -ENODEV);
    assert_non_null(strstr(error, "no RC"));
    assert_int_equal(nic_choose(&c, "", 0, error, sizeof error), 0);
    assert_int_equal(c.soft, !active_hardware()); /* a real device where one is up, else soft */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_survey),
        cmocka_unit_test(test_choice),
    };
    setenv("SOFTNIC", "devices=3,efa=1,link=roce", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
