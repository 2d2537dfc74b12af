/* The distance of GPUs and NICs follows from sysfs as `nvidia-smi topo -m` would name it, on trees
 * of real machines, and every rank gets the NICs nearest to it, dealt out as evenly as the machine
 * allows. */
#include "backends/topology.h"
#include "tests/helpers/sysfs_tree.h"

#include <sched.h>
#include "tests/helpers/test.h"

enum { MOST = 16 };

static struct topology_place pci(const struct sysfs_tree *t, const char *bus_id)
{
    struct topology_place p;
    if (topology_pci(t->root, bus_id, &p))
        fail_msg("no PCI device %s", bus_id);
    return p;
}

static struct topology_place rdma(const struct sysfs_tree *t, const char *name)
{
    struct topology_place p;
    if (topology_rdma(t->root, name, &p))
        fail_msg("no RDMA device %s", name);
    return p;
}

static const char *between(const struct sysfs_tree *t, const char *gpu, const char *nic)
{
    struct topology_place a = pci(t, gpu), b = rdma(t, nic);
    enum topology_distance d = topology_distance(&a, &b);
    assert_int_equal(d, topology_distance(&b, &a));
    return topology_name(d);
}

/* ---- the machines ---- */

static const char *const dgx_gpus[8] = {"0000:1B:00.0", "0000:43:00.0", "0000:52:00.0",
                                        "0000:61:00.0", "0000:9D:00.0", "0000:C3:00.0",
                                        "0000:D1:00.0", "0000:DF:00.0"};
/* In the kernel's order; the storage ports are 1, 2, 7 and 8. */
static const char *const dgx_nics[12] = {"mlx5_0", "mlx5_1", "mlx5_2",  "mlx5_3",
                                         "mlx5_4", "mlx5_5", "mlx5_6",  "mlx5_7",
                                         "mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11"};
static const uint32_t dgx_own[8] = {0, 3, 4, 5, 6, 9, 10, 11};

static int dgx_storage(uint32_t nic)
{
    return nic == 1 || nic == 2 || nic == 7 || nic == 8;
}

static uint32_t load_dgx(struct sysfs_tree *t, struct topology_place gpus[8],
                         struct topology_nic nics[12])
{
    assert_int_equal(tree_unpack(t, "dgx_h100"), 0);
    for (int i = 0; i < 8; i++)
        gpus[i] = pci(t, dgx_gpus[i]);
    for (uint32_t i = 0; i < 12; i++)
        nics[i] = (struct topology_nic){rdma(t, dgx_nics[i]), dgx_storage(i) ? 200 : 400};
    return 12;
}

/* How many ranks have each NIC; every rank has `rails` different ones. */
static void count_loads(const struct topology_choice *choice, uint32_t ranks, uint32_t rails,
                        uint32_t loads[MOST])
{
    memset(loads, 0, MOST * sizeof *loads);
    for (uint32_t r = 0; r < ranks; r++) {
        assert_int_equal(choice[r].count, rails);
        for (uint32_t i = 0; i < rails; i++) {
            loads[choice[r].nics[i]]++;
            for (uint32_t j = 0; j < i; j++)
                assert_int_not_equal(choice[r].nics[i], choice[r].nics[j]);
        }
    }
}

CASE(test_eight_nics)
{
    struct sysfs_tree t;
    struct topology_place gpus[8], reversed[8];
    struct topology_nic nics[12];
    struct topology_choice choice[8];
    uint32_t count = load_dgx(&t, gpus, nics), loads[MOST];
    assert_string_equal(between(&t, "0000:1B:00.0", "mlx5_0"), "PXB");
    assert_string_equal(between(&t, "0000:1b:00.0", "mlx5_3"), "NODE");
    assert_string_equal(between(&t, "00000000:1B:00.0", "mlx5_1"), "NODE");
    assert_string_equal(between(&t, "0000:1b:00.0", "mlx5_11"), "SYS");
    assert_string_equal(between(&t, "0000:df:00.0", "mlx5_11"), "PXB");
    assert_string_equal(between(&t, "0000:18:00.0", "mlx5_0"), "PIX"); /* the NIC itself */
    struct topology_place port = rdma(&t, "mlx5_1"), other = rdma(&t, "mlx5_2");
    assert_int_equal(topology_distance(&port, &other), TOPOLOGY_PIX);

    /* Each GPU its own NIC, beside any other NICs, and with any order of ranks. */
    assert_int_equal(topology_choose(gpus, 8, nics, count, 0, choice), 0);
    for (int r = 0; r < 8; r++) {
        assert_int_equal(choice[r].count, 1);
        assert_int_equal(choice[r].nics[0], dgx_own[r]);
        reversed[r] = gpus[7 - r];
    }
    assert_int_equal(topology_choose(reversed, 8, nics, count, 0, choice), 0);
    for (int r = 0; r < 8; r++)
        assert_int_equal(choice[r].nics[0], dgx_own[7 - r]);

    /* Two each: the second is another GPU's of the same socket, no NIC has more than two ranks,
     * none is a slower one. */
    assert_int_equal(topology_choose(gpus, 8, nics, count, 2, choice), 0);
    count_loads(choice, 8, 2, loads);
    for (uint32_t n = 0; n < count; n++)
        assert_int_equal(loads[n], dgx_storage(n) ? 0 : 2);
    for (int r = 0; r < 8; r++) {
        assert_int_equal(choice[r].nics[0], dgx_own[r]);
        assert_int_equal(nics[choice[r].nics[1]].place.numa, r / 4);
    }
    /* A job on two GPUs of the machine takes those two's. */
    assert_int_equal(topology_choose(gpus + 4, 2, nics, count, 0, choice), 0);
    assert_int_equal(choice[0].nics[0], dgx_own[4]);
    assert_int_equal(choice[1].nics[0], dgx_own[5]);
    tree_close(&t);
}

CASE(test_efa)
{
    struct sysfs_tree t;
    struct topology_place gpus[8];
    struct topology_nic nics[16];
    struct topology_choice choice[8];
    uint32_t loads[MOST];
    assert_int_equal(tree_unpack(&t, "p5en"), 0);
    for (uint32_t i = 0; i < 8; i++) {
        char id[16], name[16];
        uint32_t bus = 0x4f + 0x11 * i;
        snprintf(id, sizeof id, "0000:%02X:00.0", bus + 4);
        gpus[i] = pci(&t, id);
        for (uint32_t k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "rdmap%us0", bus + k);
            nics[2 * i + k] = (struct topology_nic){rdma(&t, name), 200};
        }
    }
    assert_string_equal(between(&t, "0000:53:00.0", "rdmap79s0"), "PIX");
    assert_string_equal(between(&t, "0000:53:00.0", "rdmap96s0"), "NODE");
    assert_string_equal(between(&t, "0000:53:00.0", "rdmap198s0"), "SYS");
    assert_int_equal(topology_choose(gpus, 8, nics, 16, 0, choice), 0);
    for (uint32_t r = 0; r < 8; r++) { /* all 16 at work, each for the GPU next to it */
        assert_int_equal(choice[r].count, 2);
        assert_int_equal(choice[r].nics[0], 2 * r);
        assert_int_equal(choice[r].nics[1], 2 * r + 1);
    }
    assert_int_equal(topology_choose(gpus, 8, nics, 16, 1, choice), 0);
    for (uint32_t r = 0; r < 8; r++)
        assert_int_equal(choice[r].nics[0] / 2, r);
    assert_int_equal(topology_choose(gpus, 8, nics, 16, 4, choice), 0);
    count_loads(choice, 8, 4, loads);
    for (uint32_t n = 0; n < 16; n++)
        assert_int_equal(loads[n], 2);
    for (uint32_t r = 0; r < 8; r++)
        assert_true(choice[r].nics[0] / 2 == r && choice[r].nics[1] / 2 == r &&
                    choice[r].nics[3] / 8 == r / 4);
    assert_int_equal(topology_choose(gpus + 3, 1, nics, 16, 99, choice), 0);
    assert_int_equal(choice[0].count, TOPOLOGY_RAILS_MAX);
    tree_close(&t);
}

CASE(test_shared_switch)
{
    static const uint32_t buses[8] = {0x04, 0x05, 0x0b, 0x0c, 0x84, 0x85, 0x8b, 0x8c};
    struct sysfs_tree t;
    struct topology_place gpus[8];
    struct topology_nic nics[8];
    struct topology_choice choice[8];
    assert_int_equal(tree_unpack(&t, "shared_switch"), 0);
    for (uint32_t i = 0; i < 8; i++) {
        char id[16], name[16];
        snprintf(id, sizeof id, "0000:%02x:00.0", buses[i]);
        snprintf(name, sizeof name, "mlx5_%u", i);
        gpus[i] = pci(&t, id);
        nics[i] = (struct topology_nic){rdma(&t, name), 200};
    }
    assert_string_equal(between(&t, "0000:04:00.0", "mlx5_1"), "PIX");
    assert_string_equal(between(&t, "0000:04:00.0", "mlx5_2"), "PHB");
    assert_string_equal(between(&t, "0000:04:00.0", "mlx5_4"), "SYS");
    assert_int_equal(topology_choose(gpus, 8, nics, 8, 0, choice), 0);
    for (uint32_t r = 0; r < 8; r++) { /* both are as near to both: one each */
        assert_int_equal(choice[r].count, 1);
        assert_int_equal(choice[r].nics[0], r);
    }
    struct topology_place every_second[4] = {gpus[0], gpus[2], gpus[4], gpus[6]};
    assert_int_equal(topology_choose(every_second, 4, nics, 8, 0, choice), 0);
    for (uint32_t r = 0; r < 4; r++) { /* no other rank wants the second */
        assert_int_equal(choice[r].count, 2);
        assert_true(choice[r].nics[0] / 2 == r && choice[r].nics[1] / 2 == r);
    }
    tree_close(&t);
}

CASE(test_one_nic)
{
    static const uint32_t buses[8] = {0x17, 0x3d, 0x4d, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb};
    struct sysfs_tree t;
    struct topology_place gpus[8];
    struct topology_choice choice[8];
    assert_int_equal(tree_unpack(&t, "one_nic"), 0);
    struct topology_nic nic = {rdma(&t, "mlx5_0"), 0};
    for (uint32_t i = 0; i < 8; i++) {
        char id[16];
        snprintf(id, sizeof id, "0000:%02x:00.0", buses[i]);
        gpus[i] = pci(&t, id);
        assert_string_equal(between(&t, id, "mlx5_0"), i < 4 ? "NODE" : "SYS");
    }
    for (uint32_t rails = 0; rails < 3; rails++) {
        assert_int_equal(topology_choose(gpus, 8, &nic, 1, rails, choice), 0);
        for (uint32_t r = 0; r < 8; r++)
            assert_true(choice[r].count == 1 && choice[r].nics[0] == 0);
    }
    tree_close(&t);
}

CASE(test_no_nic)
{
    struct sysfs_tree t;
    struct topology_place gpu, p;
    struct topology_nic rxe = {.gbit = 1};
    struct topology_choice choice[2];
    assert_int_equal(tree_unpack(&t, "flat_vm"), 0);
    gpu = pci(&t, "00000000:00:06.0");
    assert_int_equal(gpu.numa, -1);
    p = pci(&t, "0000:00:09.0");
    assert_int_equal(topology_distance(&gpu, &p), TOPOLOGY_PHB);
    assert_int_equal(topology_choose(&gpu, 1, NULL, 0, 0, choice), -EINVAL);
    /* soft-RoCE has no place: as far from everything, and taken where there is nothing else */
    assert_int_equal(topology_rdma(t.root, "rxe0", &rxe.place), -ENODEV);
    assert_string_equal(rxe.place.chain, "");
    assert_string_equal(topology_name(topology_distance(&gpu, &rxe.place)), "unknown");
    assert_int_equal(topology_choose((struct topology_place[]){gpu, p}, 2, &rxe, 1, 0, choice), 0);
    assert_true(choice[0].count == 1 && choice[1].count == 1);
    assert_int_equal(topology_rdma(t.root, "mlx5_0", &p), -ENODEV);
    assert_int_equal(topology_pci(t.root, "0000:00:0a.0", &p), -ENODEV);
    assert_int_equal(topology_pci(t.root, "GPU-ad536355", &p), -EINVAL);
    assert_int_equal(topology_pci("/nowhere", "0000:00:06.0", &p), -ENODEV);
    assert_true(p.numa == -1 && !p.chain[0]);
    tree_close(&t);
}

/* ---- ranks without a GPU ---- */

CASE(test_ranks_without_gpus)
{
    struct sysfs_tree t;
    struct topology_place gpus[8], ranks[10];
    struct topology_nic nics[12];
    struct topology_choice choice[10];
    uint32_t count = load_dgx(&t, gpus, nics);
    for (int r = 0; r < 10; r++)
        ranks[r] = TOPOLOGY_NOWHERE;
    assert_int_equal(topology_choose(ranks, 10, nics, count, 0, choice), 0);
    for (int r = 0; r < 10; r++) { /* in turn, over the fast ones */
        assert_int_equal(choice[r].count, 1);
        assert_int_equal(choice[r].nics[0], dgx_own[r % 8]);
    }
    /* one that is bound to the second socket goes first there, and leaves the others theirs */
    ranks[0].numa = 1;
    assert_int_equal(topology_choose(ranks, 8, nics, count, 0, choice), 0);
    assert_int_equal(nics[choice[0].nics[0]].place.numa, 1);
    uint32_t loads[MOST];
    count_loads(choice, 8, 1, loads);
    for (int r = 0; r < 8; r++)
        assert_int_equal(loads[dgx_own[r]], 1);
    tree_close(&t);
}

CASE(test_own_numa)
{
    struct sysfs_tree t;
    cpu_set_t before, one;
    char line[128];
    int cpu = sched_getcpu();
    assert_int_equal(tree_open(&t), 0);
    assert_int_equal(topology_own_numa(t.root), -1);
    assert_int_equal(tree_add(&t, "devices/system/node/node1/cpulist = 4000-4001"), 0);
    snprintf(line, sizeof line, "devices/system/node/node3/cpulist = 4002,%d,4005-4006", cpu);
    assert_int_equal(tree_add(&t, line), 0);
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) > 1)
        /* on several nodes, as far as the tree knows */
        assert_int_equal(topology_own_numa(t.root), -1);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(topology_own_numa(t.root), 3);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    tree_close(&t);
}

/* ---- evenness ---- */

/* Less for more even loads: that of the best way of giving each rank one of its nearest, by trying
 * all. */
static uint32_t least_unevenness(const uint8_t near[][MOST], uint32_t ranks, uint32_t nics,
                                 uint32_t at, uint32_t *loads)
{
    uint32_t best = UINT32_MAX;
    if (at == ranks) {
        best = 0;
        for (uint32_t n = 0; n < nics; n++)
            best += loads[n] * loads[n];
        return best;
    }
    for (uint32_t n = 0; n < nics; n++)
        if (near[at][n]) {
            loads[n]++;
            uint32_t uneven = least_unevenness(near, ranks, nics, at + 1, loads);
            loads[n]--;
            best = uneven < best ? uneven : best;
        }
    return best;
}

static struct topology_place anywhere(unsigned *seed)
{
    struct topology_place p = {.numa = rand_r(seed) % 2};
    unsigned bridge = rand_r(seed) % 4, port = rand_r(seed) % 2, deep = rand_r(seed) % 3;
    int n = snprintf(p.chain, sizeof p.chain, "pci0000:%x0/0000:%x0:0%u.0", bridge, bridge, port);
    if (deep)
        n += snprintf(p.chain + n, sizeof p.chain - (size_t)n, "/0000:%x%u:00.0", bridge, port + 1);
    if (deep == 2)
        n += snprintf(p.chain + n, sizeof p.chain - (size_t)n, "/0000:%xa:00.0/0000:%xb:00.0",
                      bridge, bridge);
    snprintf(p.chain + n, sizeof p.chain - (size_t)n, "/0000:%xe:%02x.0", bridge,
             rand_r(seed) % 32);
    if (rand_r(seed) % 8 == 0)
        p.chain[0] = '\0';
    return p;
}

CASE(test_even)
{
    for (unsigned round = 0; round < 3000; round++) {
        unsigned seed = round;
        struct topology_place ranks[6];
        struct topology_nic nics[5];
        struct topology_choice choice[6];
        uint8_t near[6][MOST] = {0};
        uint32_t rank_count = 1 + rand_r(&seed) % 6, nic_count = 1 + rand_r(&seed) % 5,
                 loads[MOST] = {0};
        for (uint32_t n = 0; n < nic_count; n++)
            nics[n] = (struct topology_nic){anywhere(&seed), rand_r(&seed) % 4 ? 400 : 100};
        for (uint32_t r = 0; r < rank_count; r++) {
            double best = 1e9;
            ranks[r] = anywhere(&seed);
            for (int pass = 0; pass < 2; pass++)
                for (uint32_t n = 0; n < nic_count; n++) {
                    double cost =
                        topology_distance(&ranks[r], &nics[n].place) * 1000. - nics[n].gbit;
                    best = cost < best ? cost : best;
                    near[r][n] = cost == best;
                }
        }
        assert_int_equal(topology_choose(ranks, rank_count, nics, nic_count, 1, choice), 0);
        for (uint32_t r = 0; r < rank_count; r++) {
            assert_int_equal(choice[r].count, 1);
            assert_true(near[r][choice[r].nics[0]]); /* evenness costs no rank a nearer NIC */
            loads[choice[r].nics[0]]++;
        }
        uint32_t uneven = 0, zero[MOST] = {0};
        for (uint32_t n = 0; n < nic_count; n++)
            uneven += loads[n] * loads[n];
        if (uneven != least_unevenness(near, rank_count, nic_count, 0, zero))
            fail_msg("case %u: ranks could be spread more evenly", round);
    }
}
