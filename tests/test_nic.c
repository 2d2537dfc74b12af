/* The survey finds softnic's devices as they are configured, and a choice takes devices that were
 * named, the nearest, or in turn, and says in one sentence why a device cannot be had. */
#define OWN_MAIN
#include "backends/nic.h"
#include "tests/helpers/sysfs_tree.h"

#include <sys/resource.h>
#include "tests/helpers/test.h"

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

CASE(test_survey)
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

/* Asks for one rank of `ranks`; the answer is in *c. */
static int ask(struct nic_choice *c, const char *names, uint32_t rank, uint32_t ranks,
               uint32_t rails, char error[256])
{
    struct nic_request r = {
        .names = names, .rails = rails, .local_rank = rank, .local_ranks = ranks};
    return nic_choose(c, &r, error, 256);
}

static void skip_without_verbs(void)
{
    nic_survey(&survey);
    if (survey.verbs_in_build)
        return;
    printf("built without <infiniband/verbs.h>\n");
    skip();
}

CASE(test_choice)
{
    struct nic_choice c;
    char error[256] = "";
    skip_without_verbs();
    for (uint32_t rank = 0; rank < 7; rank++) {
        char wanted[16];
        snprintf(wanted, sizeof wanted, "soft%u", rank % 3);
        assert_int_equal(ask(&c, "soft", rank, 7, 0, error), 0);
        assert_true(c.soft == 1 && c.count == 1); /* nothing is known to be any rank's own */
        assert_string_equal(c.devices[0], wanted);
    }
    assert_int_equal(ask(&c, "soft2", 0, 1, 0, error), 0);
    assert_string_equal(c.devices[0], "soft2");
    assert_int_equal(ask(&c, "mlx5_99", 0, 1, 0, error), -ENODEV);
    assert_non_null(strstr(error, "there is no NIC mlx5_99"));
    assert_int_equal(ask(&c, "softefa0", 0, 1, 0, error), -ENODEV);
    assert_non_null(strstr(error, "no RC"));
    assert_int_equal(ask(&c, "", 0, 1, 0, error), 0);
    assert_int_equal(c.soft, !active_hardware()); /* a real device where one is up, else soft */
    assert_int_equal(ask(&c, "soft", 3, 3, 0, error), -EINVAL);
}

CASE(test_several)
{
    struct nic_choice c;
    char error[256] = "";
    skip_without_verbs();
    /* two of three for each: every device has two ranks */
    for (uint32_t rank = 0; rank < 3; rank++) {
        static uint32_t loads[3];
        assert_int_equal(ask(&c, "soft", rank, 3, 2, error), 0);
        assert_int_equal(c.count, 2);
        for (int i = 0; i < 2; i++)
            loads[c.devices[i][4] - '0']++;
        assert_string_not_equal(c.devices[0], c.devices[1]);
        if (rank == 2)
            assert_true(loads[0] == 2 && loads[1] == 2 && loads[2] == 2);
    }
    assert_int_equal(ask(&c, "soft", 0, 1, 3, error), 0);
    assert_int_equal(c.count, 3);
    /* fewer than asked for is not what was asked for */
    assert_int_equal(ask(&c, "soft", 0, 1, 4, error), -EINVAL);
    assert_non_null(strstr(error, "only 3 may be used"));
    assert_int_equal(ask(&c, "soft0,soft", 0, 1, 0, error), -ENODEV);
    assert_non_null(strstr(error, "all of softnic's devices"));
    /* Names allow, and the rest of the rule chooses among them. */
    assert_int_equal(ask(&c, "soft2,soft0", 1, 2, 0, error), 0);
    assert_int_equal(c.count, 1);
    assert_string_equal(c.devices[0], "soft0");
    assert_int_equal(ask(&c, "soft2,soft0", 1, 2, 2, error), 0);
    assert_int_equal(c.count, 2);
    assert_int_equal(ask(&c, "soft1,soft1", 0, 1, 0, error), -EINVAL);
    assert_non_null(strstr(error, "soft1 is named twice"));
    assert_int_equal(ask(&c, "soft1,,soft2", 0, 1, 0, error), -EINVAL);
    assert_non_null(strstr(error, "commas"));
    assert_int_equal(ask(&c, "soft1,soft7", 0, 1, 0, error), -ENODEV);
    assert_non_null(strstr(error, "there is no NIC soft7"));

    struct nic_request efa = {.names = "soft", .efa = 1, .local_ranks = 1};
    assert_int_equal(nic_choose(&c, &efa, error, sizeof error), 0);
    assert_string_equal(c.devices[0], "softefa0");
    efa.names = "soft0";
    assert_int_equal(nic_choose(&c, &efa, error, sizeof error), -ENODEV);
    assert_non_null(strstr(error, "not an EFA device"));
}

/* Where softnic cannot have its sockets that is what is said: there is no module to load for it. */
CASE(test_no_descriptors)
{
    struct rlimit before, none;
    skip_without_verbs();
    memset(&survey, 0, sizeof survey);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    nic_survey_add(&survey, 1);
    struct nic_choice c;
    char error[256] = "";
    int chosen = ask(&c, "soft", 0, 1, 0, error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(chosen, -ENODEV);
    assert_string_equal(
        error, "no NIC is usable, not even softnic: soft0 cannot be opened: Too many open files");
    const struct nic_info *n = find("soft0");
    assert_non_null(n);
    assert_string_equal(n->problem, "cannot be opened: Too many open files");
}

/* softnic's devices, placed by a tree: soft0 far from both GPUs, soft1 and soft2 behind the second
 * GPU's switch. */
CASE(test_nearest)
{
    static const char *const lines[] = {
        "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0/numa_node = 0",
        "bus/pci/devices/0000:03:00.0 -> "
        "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
        "devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:8a:00.0/numa_node = 1",
        "bus/pci/devices/0000:8a:00.0 -> "
        "../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:8a:00.0",
        "devices/pci0000:20/0000:20:00.0/numa_node = 0",
        "class/infiniband/soft0/device -> ../../../devices/pci0000:20/0000:20:00.0",
        "devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0/numa_node = 1",
        "class/infiniband/soft1/device -> "
        "../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0",
        "devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:02.0/0000:85:00.0/numa_node = 1",
        "class/infiniband/soft2/device -> "
        "../../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:02.0/0000:85:00.0",
    };
    struct sysfs_tree t;
    struct nic_choice c;
    char error[256];
    struct nic_place places[2] = {{.gpu = "0000:03:00.0", .numa = -1},
                                  {.gpu = "0000:8A:00.0", .numa = -1}};
    struct nic_request r = {.names = "soft", .local_ranks = 2, .places = places, .sysfs = t.root};
    skip_without_verbs();
    assert_int_equal(tree_open(&t), 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_int_equal(tree_add(&t, lines[i]), 0);
    assert_int_equal(nic_choose(&c, &r, error, sizeof error), 0);
    assert_true(c.count == 1 && c.distances[0] == TOPOLOGY_NODE); /* both ranks have as many: one */
    assert_string_equal(c.devices[0], "soft0");
    r.local_rank = 1;
    assert_int_equal(nic_choose(&c, &r, error, sizeof error), 0);
    assert_true(c.count == 1 && c.distances[0] == TOPOLOGY_PIX);
    assert_string_equal(c.devices[0], "soft1");
    places[0] = places[1]; /* alone with its GPU's switch: both devices */
    r = (struct nic_request){.names = "soft", .local_ranks = 1, .places = places, .sysfs = t.root};
    assert_int_equal(nic_choose(&c, &r, error, sizeof error), 0);
    assert_int_equal(c.count, 2);
    assert_string_equal(c.devices[0], "soft1");
    assert_string_equal(c.devices[1], "soft2");
    places[0] = (struct nic_place){.gpu = "", .numa = 0}; /* no GPU, bound to the first socket */
    assert_int_equal(nic_choose(&c, &r, error, sizeof error), 0);
    assert_int_equal(c.count, 1);
    assert_string_equal(c.devices[0], "soft0");
    tree_close(&t);
}

int main(void)
{
    setenv("SOFTNIC", "devices=3,efa=1,link=roce", 1);
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
