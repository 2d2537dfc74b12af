/* A machine file says every number that there is, is read as it was written, and a wrong line is
 * told by its number; what things take follows from the numbers. */
#include "core/model/machine.h"
#include "core/plan/pipeline.h"
#include "tests/helpers/test.h"
#include <dirent.h>
#include <math.h>

static uint32_t numbers_of(struct mk_machine *m)
{
    char name[MACHINE_NAME];
    const char *unit;
    double factor;
    uint32_t count = 0;
    while (machine_number(m, count, name, &unit, &factor))
        count++;
    return count;
}

/* A number that a file leaves out stays what it was: read over two different machines, a file that
 * says all numbers makes the same of both. */
CASE(files_are_whole)
{
    struct dirent *entry;
    uint32_t files = 0;
    DIR *folder = opendir("experiments/machines");
    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        struct mk_machine a = {.tiles = {{.tile_m = 8, .tile_n = 8}}}, b = a;
        char path[512], error[512] = "", name[MACHINE_NAME];
        const char *unit;
        double *from, *to, factor;
        if (entry->d_name[0] == '.')
            continue;
        for (uint32_t i = 0; (to = machine_number(&b, i, name, &unit, &factor)); i++)
            *to = 1e6 + i;
        snprintf(path, sizeof path, "experiments/machines/%s", entry->d_name);
        if (machine_read(&a, path, error, sizeof error) ||
            machine_read(&b, path, error, sizeof error))
            fail_msg("%s", error);
        for (uint32_t i = 0; (from = machine_number(&a, i, name, &unit, &factor)); i++) {
            to = machine_number(&b, i, name, &unit, &factor);
            if (*from != *to && !strstr(name, "8x8"))
                fail_msg("%s does not say %s", path, name);
        }
        assert_true(*a.name && *a.device);
        char found[8192], there[8192];
        struct mk_machine c = {.sms = 0}, d = c;
        assert_int_equal(machine_find(&c, entry->d_name, error, sizeof error), 0);
        assert_int_equal(machine_read(&d, path, error, sizeof error), 0);
        machine_write(&c, found, sizeof found);
        machine_write(&d, there, sizeof there);
        assert_string_equal(found, there);
        files++;
    }
    closedir(folder);
    assert_true(files >= 5);
    struct mk_machine m = {0};
    char error[512];
    assert_int_equal(machine_find(&m, "9xH300", error, sizeof error), -ENOENT);
    assert_non_null(
        strstr(error, "machines are 8xH200-cx7, 8xH200-efa, 8xH100-cx7, 8xB200-cx7, softnic"));
    assert_int_equal(machine_find(&m, "./9xH300", error, sizeof error), -ENOENT);
    assert_non_null(strstr(error, "machine file './9xH300'"));
}

CASE(shipped_is_the_file)
{
    struct mk_machine m = {0};
    char error[512], a[8192], b[8192];
    assert_int_equal(machine_read(&m, "experiments/machines/8xH200-cx7", error, sizeof error), 0);
    assert_true(machine_write(&m, a, sizeof a) < sizeof a);
    machine_write(machine_default(), b, sizeof b);
    assert_string_equal(a, b);
    assert_true(machine_default()->sms == 132);
}

/* A file that is like another has all its numbers but those that it says. */
CASE(like_another)
{
    struct mk_machine m = {.sms = 3, .name = "before"};
    char error[512];
    assert_int_equal(machine_parse(&m, "name = mine\nlike = softnic\nnic_rate = 7 GB/s\n", "m",
                                   error, sizeof error),
                     0);
    assert_string_equal(m.name, "mine");
    assert_string_equal(m.device, "NVIDIA_H200");
    assert_true(m.sms == 132 && m.nic_rate == 7 && m.put == 5900);
    assert_true(m.tiles[0].stage == machine_default()->tiles[0].stage);
}

CASE(written_is_read)
{
    struct mk_machine m = *machine_default(), again = {0};
    char error[512], name[MACHINE_NAME], text[8192];
    const char *unit;
    double *number, factor;
    for (uint32_t i = 0; (number = machine_number(&m, i, name, &unit, &factor)); i++)
        *number = (3 + i) * factor;
    size_t length = machine_write(&m, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(machine_parse(&again, text, "text", error, sizeof error), 0);
    assert_int_equal(numbers_of(&m), numbers_of(&again));
    for (uint32_t i = 0; (number = machine_number(&m, i, name, &unit, &factor)); i++)
        if (*number != *machine_number(&again, i, name, &unit, &factor))
            fail_msg("%s: %g was written, %g read", name, *number,
                     *machine_number(&again, i, name, &unit, &factor));
    assert_string_equal(m.name, again.name);
    assert_string_equal(m.device, again.device);
}

CASE(wrong_lines)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"sms = 132\nnvlink_out 3\n", "line 2 of the machine file 'm': a line is written"},
        {"nvlink = 3 GB/s", "line 1 of the machine file 'm': there is no number of this name"},
        {"flag = 3 GB/s", "its unit is ns, us or ms"},
        {"flag = 3", "its unit is ns, us or ms"},
        {"sms = 3 us", "it has no unit"},
        {"l2 = 3", "its unit is MB"},
        {"sms = -3", "the value is out of range"},
        {"hbm_rate = nan TB/s", "the value is out of range"},
        {"hbm_rate = 1 GB/s # one\n\nhbm_rate = 2 GB/s", "line 3 of the machine file 'm': it is "
                                                         "there twice"},
        {"like = 9xH300", "like names a machine that is compiled in"},
        {"sms = 3\nlike = 8xH200-cx7", "line 2 of the machine file 'm': like comes before all"},
        {"tile.256.stage = 1 ns", "a tile is written"},
        {"tile.0x128.stage = 1 ns", "a tile is written"},
        {"tile.256x128.middle = 1 ns", "there is no number of this name"},
    };
    struct mk_machine before = *machine_default();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct mk_machine m = before;
        char error[512] = "";
        assert_int_equal(machine_parse(&m, wrong[i].text, "m", error, sizeof error), -EINVAL);
        if (!strstr(error, wrong[i].says))
            fail_msg("'%s' is refused with: %s", wrong[i].text, error);
        assert_memory_equal(&m, &before, sizeof m);
    }
    char many[1024] = "", error[512];
    for (int i = 0; i < 9; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "tile.%dx8.stage = 1 ns\n",
                 8 * (i + 1));
    struct mk_machine m = {0};
    assert_int_equal(machine_parse(&m, many, "m", error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "line 9"));
    assert_int_equal(machine_read(&m, "experiments", error, sizeof error), -EISDIR);
    assert_int_equal(machine_read(&m, "/nowhere", error, sizeof error), -ENOENT);
}

CASE(costs_follow)
{
    struct mk_machine m = {
        .nvlink_out = 100,
        .watts = 300,
        .watts_idle = 100,
        .joule_flop = 1,
        .heat = 1000,
        .hbm_rate = 10,
        .beside = 0.5,
        .end_fp32 = 3,
        .stage_kn = 2,
        .stage_fp8 = 1.5,
        .stage_fp8_sums = 1.75,
        .promote_moe = 3,
        .tiles = {{256, 128, 10, 20, 30}, {128, 64, 1, 2, 3}},
        .paced = 2,
        .movers = {[MACHINE_WARP] =
                       {.start = 5, .own = 8, .peer = 4, .add = 2, .room = 16, .add_room = 20},
                   [MACHINE_TMA] = {.start = 1, .peer = 4}}};
    struct machine_load load = {.sms = 132, .slower = 1};
    const struct machine_tile *t = machine_tile_of(&m, 256, 128, 2);
    assert_ptr_equal(t, &m.tiles[0]);
    assert_ptr_equal(machine_tile_of(&m, 128, 64, 1), &m.tiles[1]);
    assert_ptr_equal(machine_tile_of(&m, 256, 256, 2), &m.tiles[0]);
    /* a CTA alone that does what one of a pair does takes as long */
    const struct mk_machine *d = machine_default();
    assert_ptr_equal(machine_tile_of(d, 128, 256, 1), machine_tile_of(d, 256, 256, 2));
    assert_true(machine_tile_of(d, 128, 128, 1)->tile_m == 128);
    assert_true(machine_tile_of(d, 256, 128, 2)->tile_m == 256);
    assert_true(machine_tile_ns(&m, t, &load, 65, 0) == 10 + 2 * 20 + 30);
    load = (struct machine_load){.slower = 2, .beside = 2, .b_kn = 1, .fp32 = 1};
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 2 * 2 * 2 + 90);
    load.fp8 = 1;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 1.5 * 2 * 2 * 2 + 90);
    load.fp8 = load.summed = 1;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 1.75 * 2 * 2 * 2 + 90);
    m.stage_fp8_sums = 0;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 1.5 * 2 * 2 * 2 + 90);
    m.fp8_narrow = 1.25; /* less than both */
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 1.5 * 2 * 2 * 2 + 90);
    m.fp8_narrow = 2.5; /* of tiles of 128 columns */
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 * 2.5 * 2 * 2 * 2 + 90);
    assert_true(machine_tile_ns(&m, &m.tiles[1], &load, 64, 0) == 1 + 2 * 1.5 * 2 * 2 * 2 + 9);
    load.summed = 0;
    load.grouped = 1;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + (20 * 2 + 3) * 2 * 2 + 90);
    /* of half of a CTA's 128 rows one consumer has none, and what is not there is not loaded */
    load.rows = 64;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) ==
                10 + (20 * 2 * MK_HALF_TILE + 3) * 2 * 2 + 90);
    m.sms = 132;
    m.grouped_rate = 132 * 128.0 * (64 + 128) / 1000;
    assert_true(fabs(machine_tile_ns(&m, t, &load, 64, 0) - (10 + 1000 + 90)) < 1e-6);
    load.rows = 65;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) > 10 + 1000 + 90);
    m.grouped_rate = 0;
    load.grouped = 0;
    load.rows = 0;
    load.fp8 = 0;
    /* memory's time counts where it is the longer, and where it is near somewhat more */
    double slow = machine_tile_ns(&m, t, &load, 64, 5000) - 100;
    assert_true(slow >= 500 && slow < 505);
    assert_true(machine_tile_ns(&m, t, &load, 64, 800) - 100 < 163);
    slow = machine_tile_ns(&m, t, &load, 64, 1600) - 100;
    assert_true(slow > 180 && slow < 200);
    /* of several groups: 132 SMs load 128 rows and 128 columns each, 128 bytes of all of them */
    load = (struct machine_load){.slower = 1, .grouped = 1};
    m.sms = 132;
    m.grouped_rate = 4325.376;
    assert_true(fabs(machine_tile_ns(&m, t, &load, 64, 0) - (10 + 1000 + 30)) < 1e-6);
    /* what is stored, and a part of what comes from HBM, take of it, too; but an SM alone has no more
     * than its share */
    m.fill = 0.5;
    m.hbm_rate = 1e9;
    load.stored = 32768;
    assert_true(fabs(machine_tile_ns(&m, t, &load, 64, 4325376) - (10 + 2500 + 30)) < 1e-6);
    load.stored = 0;
    load.engines = 33;
    assert_true(fabs(machine_tile_ns(&m, t, &load, 64, 4325376) - (10 + 1000 + 30)) < 1e-6);
    m.grouped_rate = 1e9;
    assert_true(machine_tile_ns(&m, t, &load, 64, 0) == 10 + 20 + 30);
    /* a put by way of host memory: its slowest way, and two more */
    m.nic_rate = 10;
    assert_true(machine_wire_ns(&m, 400) == 40 && machine_through_host_ns(&m, 400) == 0);
    m.staged = 1;
    m.pcie = 5;
    m.pcie_latency = 7;
    assert_true(machine_wire_ns(&m, 400) == 80 && machine_through_host_ns(&m, 400) == 174);
    m.heat_rested = 9000;
    assert_true(machine_rested(&m).heat == 9000 && machine_rested(&m).pcie == 5);
    /* what it takes alone and its share of what all take; to peers the longer of both, and paced
     * the pace; a thread by TMA waits for both */
    assert_true(machine_copy_ns(&m, MACHINE_WARP, 1, 1, MK_PACE_NONE, 400) == 105);
    assert_true(machine_copy_ns(&m, MACHINE_WARP, 100, 1, MK_PACE_NONE, 400) == 400);
    assert_true(machine_copy_ns(&m, MACHINE_WARP, 1, 1, 512, 400) == 407);
    assert_true(machine_copy_ns(&m, MACHINE_WARP, 4, 0, 512, 400) == 155);
    assert_true(machine_copy_ns(&m, MACHINE_TMA, 10, 1, 512, 400) == 141);
    assert_true(machine_add_ns(&m, MACHINE_WARP, 1, 400) == 225);
    assert_true(machine_add_ns(&m, MACHINE_WARP, 16, 400) == 525);
    /* more than NVLink takes */
    assert_true(machine_wanted(&m, 25, MK_PACE_NONE) == 0);
    assert_true(machine_wanted(&m, 50, MK_PACE_NONE) > 0.7 && machine_wanted(&m, 50, 256) == 0);
    /* 200 W may be drawn beyond the idle ones: twice as much takes twice as long, where the launch
     * is long, and half of that more where it is as long as `heat` */
    double flop = 400e6; /* in 1000 ns: 400 W at 1 pJ each */
    assert_true(machine_slower(&m, 1000, flop / 2, 0) == 1);
    double slower = machine_slower(&m, 1000, flop, 0);
    assert_true(slower > 1.499 && slower < 1.501);
    m.watts = 0;
    assert_true(machine_slower(&m, 1000, flop, 0) == 1);
}
