/* Machine files: their words, and the one that is compiled in. */
#include "core/model/machine.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The files of experiments/machines/, each with a 0 behind it. */
#define SHIPPED(symbol, file)                                                                      \
    extern const char machine_file_##symbol[];                                                     \
    __asm__(".section .rodata\n.global machine_file_" #symbol "\nmachine_file_" #symbol            \
            ":\n.incbin \"experiments/machines/" file "\"\n.byte 0\n.size machine_file_" #symbol   \
            ", . - machine_file_" #symbol "\n.type machine_file_" #symbol                          \
            ", @object\n.previous\n")
SHIPPED(cx7, "8xH200-cx7");
SHIPPED(efa, "8xH200-efa");
SHIPPED(h100, "8xH100-cx7");
SHIPPED(b200, "8xB200-cx7");
SHIPPED(softnic, "softnic");
static const struct {
    const char *name, *text;
} shipped_files[] = {{"8xH200-cx7", machine_file_cx7}, /* the default */
                     {"8xH200-efa", machine_file_efa},
                     {"8xH100-cx7", machine_file_h100},
                     {"8xB200-cx7", machine_file_b200},
                     {"softnic", machine_file_softnic}};
enum { SHIPPED_FILES = sizeof shipped_files / sizeof *shipped_files };

#define MOST_BYTES (1u << 16)

enum unit {
    UNIT_TIME,
    UNIT_RATE,
    UNIT_CLOCK,
    UNIT_POWER,
    UNIT_ENERGY,
    UNIT_BYTES,
    UNIT_FLOP,
    UNIT_NONE
};

static const struct {
    const char *name;
    enum unit unit;
    double factor;
} units[] = {{"ns", UNIT_TIME, 1},    {"us", UNIT_TIME, 1e3},   {"ms", UNIT_TIME, 1e6},
             {"GB/s", UNIT_RATE, 1},  {"TB/s", UNIT_RATE, 1e3}, {"MHz", UNIT_CLOCK, 1},
             {"W", UNIT_POWER, 1},    {"pJ", UNIT_ENERGY, 1},   {"TF/s", UNIT_FLOP, 1e3},
             {"MB", UNIT_BYTES, 1e6}, {"", UNIT_NONE, 1}};

/* What a number of each unit may be besides 0, which means that there is none: 1 kB/s to 10 PB/s, a
 * second at most. Times that follow from such numbers fit a simulation's 64 bits of ns. */
static const struct {
    double least, most;
} ranges[] = {[UNIT_TIME] = {0, 1e9},    [UNIT_RATE] = {1e-6, 1e7}, [UNIT_CLOCK] = {0, 1e6},
              [UNIT_POWER] = {0, 1e6},   [UNIT_ENERGY] = {0, 1e9},  [UNIT_BYTES] = {0, 1e12},
              [UNIT_FLOP] = {1e-6, 1e9}, [UNIT_NONE] = {1e-9, 1e9}};

struct field {
    const char *name;
    enum unit unit;
    size_t offset;
    int needed; /* not 0 */
};

#define NEEDED(name, unit)                                                                         \
    {                                                                                              \
#name, unit, offsetof(struct mk_machine, name), 1                                          \
    }
#define FIELD(name, unit)                                                                          \
    {                                                                                              \
#name, unit, offsetof(struct mk_machine, name), 0                                          \
    }
static const struct field fields[] = {
    NEEDED(sms, UNIT_NONE),          FIELD(clock, UNIT_CLOCK),
    FIELD(clock_low, UNIT_CLOCK),    FIELD(hbm_rate, UNIT_RATE),
    FIELD(launch, UNIT_TIME),        FIELD(flag, UNIT_TIME),
    FIELD(flag_own, UNIT_TIME),      FIELD(settle, UNIT_TIME),
    FIELD(wait, UNIT_TIME),          FIELD(between, UNIT_TIME),
    FIELD(early, UNIT_TIME),         FIELD(attention64, UNIT_FLOP),
    FIELD(attention128, UNIT_FLOP),  FIELD(attention_tile, UNIT_TIME),
    FIELD(stage_kn, UNIT_NONE),      FIELD(stage_fp8, UNIT_NONE),
    FIELD(end_fp32, UNIT_NONE),      FIELD(route_count, UNIT_TIME),
    FIELD(route_place, UNIT_TIME),   FIELD(beside, UNIT_NONE),
    FIELD(beside_peer, UNIT_NONE),   FIELD(spill, UNIT_NONE),
    FIELD(l2, UNIT_BYTES),           FIELD(grouped_rate, UNIT_RATE),
    FIELD(under, UNIT_NONE),         FIELD(outbox, UNIT_TIME),
    FIELD(paced, UNIT_TIME),         FIELD(deliver, UNIT_TIME),
    FIELD(send, UNIT_RATE),          FIELD(watts, UNIT_POWER),
    FIELD(watts_idle, UNIT_POWER),   FIELD(joule_flop, UNIT_ENERGY),
    FIELD(joule_byte, UNIT_ENERGY),  FIELD(joule_hbm, UNIT_ENERGY),
    FIELD(joule_link, UNIT_ENERGY),  FIELD(heat, UNIT_TIME),
    FIELD(heat_rested, UNIT_TIME),   NEEDED(nvlink_out, UNIT_RATE),
    NEEDED(nvlink_in, UNIT_RATE),    FIELD(nic_rate, UNIT_RATE),
    FIELD(nic_latency, UNIT_TIME),   FIELD(nic_message, UNIT_TIME),
    FIELD(nic_flag, UNIT_TIME),      FIELD(command, UNIT_TIME),
    FIELD(proxy_command, UNIT_TIME), FIELD(proxy_completion, UNIT_TIME),
    FIELD(receive, UNIT_TIME),       FIELD(in_flight, UNIT_NONE),
    FIELD(put, UNIT_TIME),           FIELD(staged, UNIT_NONE),
    FIELD(pcie, UNIT_RATE),          FIELD(pcie_latency, UNIT_TIME),
    FIELD(jitter, UNIT_NONE),        FIELD(stage_fp8_sums, UNIT_NONE),
    FIELD(fp8_narrow, UNIT_NONE),    FIELD(promote_moe, UNIT_TIME),
    FIELD(route_lay, UNIT_TIME),     FIELD(route_order, UNIT_TIME),
    FIELD(route_id, UNIT_TIME),      FIELD(fill, UNIT_NONE),
    FIELD(nvlink_joint, UNIT_NONE),
};
#undef FIELD
#undef NEEDED
enum { FIELDS = sizeof fields / sizeof *fields };

static const char *const mover_names[MACHINE_MOVERS] = {"warp", "tma", "block"};

static const struct field mover_fields[] = {
    {"start", UNIT_TIME, offsetof(struct machine_rate, start), 0},
    {"own", UNIT_RATE, offsetof(struct machine_rate, own), 0},
    {"peer", UNIT_RATE, offsetof(struct machine_rate, peer), 0},
    {"add", UNIT_RATE, offsetof(struct machine_rate, add), 0},
    {"room", UNIT_RATE, offsetof(struct machine_rate, room), 0},
    {"add_room", UNIT_RATE, offsetof(struct machine_rate, add_room), 0},
};
enum { MOVER_FIELDS = sizeof mover_fields / sizeof *mover_fields };

static const struct field tile_fields[] = {
    {"begin", UNIT_TIME, offsetof(struct machine_tile, begin), 0},
    {"stage", UNIT_TIME, offsetof(struct machine_tile, stage), 0},
    {"end", UNIT_TIME, offsetof(struct machine_tile, end), 0},
};
enum { TILE_FIELDS = sizeof tile_fields / sizeof *tile_fields };

static double *machine_at(void *base, const struct field *f)
{
    return (double *)(void *)((char *)base + f->offset);
}

/* Number `i`, and the row of the tables above that says what it is. */
static double *machine_entry(struct mk_machine *m, uint32_t i, char name[MACHINE_NAME],
                             const struct field **f)
{
    if (i < FIELDS) {
        *f = &fields[i];
        snprintf(name, MACHINE_NAME, "%s", (*f)->name);
        return machine_at(m, *f);
    }
    i -= FIELDS;
    if (i < MACHINE_MOVERS * MOVER_FIELDS) {
        *f = &mover_fields[i % MOVER_FIELDS];
        snprintf(name, MACHINE_NAME, "%s.%s", mover_names[i / MOVER_FIELDS], (*f)->name);
        return machine_at(&m->movers[i / MOVER_FIELDS], *f);
    }
    i -= MACHINE_MOVERS * MOVER_FIELDS;
    if (i / TILE_FIELDS >= MACHINE_TILES || m->tiles[i / TILE_FIELDS].tile_m <= 0)
        return NULL;
    struct machine_tile *t = &m->tiles[i / TILE_FIELDS];
    *f = &tile_fields[i % TILE_FIELDS];
    snprintf(name, MACHINE_NAME, "tile.%.0fx%.0f.%s", t->tile_m, t->tile_n, (*f)->name);
    return machine_at(t, *f);
}

/* The unit that a number is written in. */
static uint32_t machine_unit(enum unit unit)
{
    uint32_t u = 0;
    while (units[u].unit != unit)
        u++;
    return u;
}

double *machine_number(struct mk_machine *m, uint32_t i, char name[MACHINE_NAME], const char **unit,
                       double *factor)
{
    const struct field *f;
    double *number = machine_entry(m, i, name, &f);
    if (number) {
        *unit = units[machine_unit(f->unit)].name;
        *factor = units[machine_unit(f->unit)].factor;
    }
    return number;
}

/* ---- the file ---- */

/* Room for the tile that a name begins with, "tile.256x128.". 0, or what is wrong. */
static const char *machine_open_tile(struct mk_machine *m, const char *name)
{
    unsigned rows, columns;
    int length = 0;
    if (strncmp(name, "tile.", 5))
        return NULL;
    if (sscanf(name, "tile.%5ux%5u.%n", &rows, &columns, &length) != 2 || !length || !rows ||
        !columns)
        return "a tile is written: tile.256x128.stage = 380 ns";
    for (uint32_t i = 0; i < MACHINE_TILES; i++) {
        struct machine_tile *t = &m->tiles[i];
        if (t->tile_m <= 0)
            *t = (struct machine_tile){.tile_m = rows, .tile_n = columns};
        if ((unsigned)t->tile_m == rows && (unsigned)t->tile_n == columns)
            return NULL;
    }
    return "it has more than 8 kinds of tiles";
}

static const char *machine_unit_names(enum unit unit)
{
    static const char *const names[] = {"its unit is ns, us or ms", "its unit is GB/s or TB/s",
                                        "its unit is MHz",          "its unit is W",
                                        "its unit is pJ",           "its unit is MB",
                                        "its unit is TF/s",         "it has no unit"};
    return names[unit];
}

static const char *machine_set_number(struct mk_machine *m, const char *name, double value,
                                      const char *unit, uint64_t *seen)
{
    char at[MACHINE_NAME];
    const struct field *f;
    const char *wrong = machine_open_tile(m, name);
    double *number;
    if (wrong)
        return wrong;
    for (uint32_t i = 0; (number = machine_entry(m, i, at, &f)); i++) {
        if (strcmp(at, name))
            continue;
        if (seen[i / 64] >> i % 64 & 1)
            return "it is there twice";
        seen[i / 64] |= 1ull << i % 64;
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            if (units[u].unit != f->unit || strcmp(units[u].name, unit))
                continue;
            value *= units[u].factor;
            if (!(value >= ranges[f->unit].least && value <= ranges[f->unit].most) &&
                (value != 0 || f->needed))
                return "the value is out of range";
            *number = value;
            return NULL;
        }
        return machine_unit_names(f->unit);
    }
    return "there is no number of this name; `mkernel calibrate --print` writes a file with all";
}

/* The numbers of a machine that is compiled in. Such a file says `like` of the default's alone. */
static const char *machine_take_like(struct mk_machine *m, const char *name, const uint64_t *seen)
{
    char error[256];
    if (seen[0] | seen[1] | seen[2] | seen[3])
        return "like comes before all numbers";
    for (uint32_t i = 0; i < SHIPPED_FILES; i++) {
        if (strcmp(name, shipped_files[i].name))
            continue;
        struct mk_machine of = {.sms = 0};
        if (machine_parse(&of, shipped_files[i].text, name, error, sizeof error))
            break;
        memcpy(of.name, m->name, sizeof of.name);
        *m = of;
        return NULL;
    }
    return "like names a machine that is compiled in: like = 8xH200-cx7";
}

/* One line without its comment. NULL, or what is wrong with it. */
static const char *machine_read_line(struct mk_machine *m, const char *line, uint64_t *seen)
{
    char name[MACHINE_NAME], unit[8] = "", more;
    double value;
    if (sscanf(line, " like = %47s %c", name, &more) == 1)
        return machine_take_like(m, name, seen);
    if (sscanf(line, " name = %63[^\n]", m->name) == 1 ||
        sscanf(line, " device = %63s", m->device) == 1)
        return NULL;
    int read = sscanf(line, " %47[a-z0-9_.] = %lf %7s %c", name, &value, unit, &more);
    if (read != 2 && read != 3)
        return "a line is written: nvlink_out = 389 GB/s";
    return machine_set_number(m, name, value, unit, seen);
}

int machine_parse(struct mk_machine *m, const char *text, const char *file, char *error,
                  size_t size)
{
    struct mk_machine read = *m;
    uint64_t seen[4] = {0};
    char line[256];
    for (uint32_t number = 1; *text; number++) {
        size_t length = strcspn(text, "\n"), kept = length < sizeof line ? length : 0;
        memcpy(line, text, kept);
        line[kept] = '\0';
        line[strcspn(line, "#")] = '\0';
        size_t used = strlen(line);
        while (used && strchr(" \t\r", line[used - 1]))
            line[--used] = '\0';
        const char *wrong = length >= sizeof line         ? "it is longer than 255 characters"
                            : line[strspn(line, " \t\r")] ? machine_read_line(&read, line, seen)
                                                          : NULL;
        if (wrong)
            return mk_fail(-EINVAL, error, size, "line %u of the machine file '%s': %s", number,
                           file, wrong);
        text += length + (text[length] == '\n');
    }
    *m = read;
    return 0;
}

int machine_read(struct mk_machine *m, const char *path, char *error, size_t size)
{
    char *text = malloc(MOST_BYTES + 1);
    FILE *f = text ? fopen(path, "re") : NULL;
    int result = !text ? -ENOMEM : !f ? -errno : 0;
    size_t used = f ? fread(text, 1, MOST_BYTES + 1, f) : 0;
    if (f && ferror(f))
        result = -errno;
    else if (used > MOST_BYTES)
        result = -EFBIG;
    if (f)
        fclose(f);
    if (result) {
        snprintf(error, size, "the machine file '%s': %s", path, strerror(-result));
    } else if (!used || memchr(text, '\0', used)) {
        result = mk_fail(-EINVAL, error, size, "the machine file '%s' is %s", path,
                         used ? "no text" : "empty");
    } else {
        text[used] = '\0';
        result = machine_parse(m, text, path, error, size);
    }
    free(text);
    return result;
}

size_t machine_write(const struct mk_machine *m, char *text, size_t size)
{
    struct mk_machine copy = *m;
    char name[MACHINE_NAME];
    const char *unit;
    double *number, factor;
    size_t used = (size_t)snprintf(text, size, "name = %s\ndevice = %s\n", m->name, m->device);
    for (uint32_t i = 0; (number = machine_number(&copy, i, name, &unit, &factor)); i++)
        used += (size_t)snprintf(used < size ? text + used : NULL, used < size ? size - used : 0,
                                 "%s = %.5g%s%s\n", name, *number / factor, *unit ? " " : "", unit);
    return used;
}

/* ---- those that are compiled in ---- */

int machine_find(struct mk_machine *m, const char *name, char *error, size_t size)
{
    char names[256] = "";
    for (uint32_t i = 0; i < SHIPPED_FILES; i++) {
        if (!strcmp(name, shipped_files[i].name))
            return machine_parse(m, shipped_files[i].text, name, error, size);
        mk_append(names, sizeof names, "%s%s", i ? ", " : "", shipped_files[i].name);
    }
    if (strchr(name, '/') || !access(name, F_OK))
        return machine_read(m, name, error, size);
    return mk_fail(-ENOENT, error, size, "'%s' is no machine and no file; machines are %s", name,
                   names);
}

static struct mk_machine shipped;
static pthread_once_t shipped_once = PTHREAD_ONCE_INIT;

/* A mistake in it would be one of this build, and tests/test_machine.c finds it. */
static void machine_load_shipped(void)
{
    char error[256];
    machine_parse(&shipped, shipped_files[0].text, shipped_files[0].name, error, sizeof error);
}

const struct mk_machine *machine_default(void)
{
    pthread_once(&shipped_once, machine_load_shipped);
    return &shipped;
}
