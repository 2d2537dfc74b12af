/* The conformance suite (tests/gpu_conform.cu) on the emulated Hopper: each primitive alone runs
 * without a mistake, in every order that is tried, and gives the same bits in all of them: those of
 * the golden file, whose lines are in the order of the cases, with which `gpu_conform check` compares
 * what a GPU gives. */
#include "tests/helpers/test.h"
#include "sim/hopper/hopper.h"

const char *emulated_conform_name(uint32_t number);
int emulated_conform_launch(uint32_t number, const uint32_t *in, uint32_t *out);
void emulated_conform_inputs(uint16_t *in, uint16_t *out);
uint64_t emulated_conform_hash(const uint16_t *out);

enum { BYTES = 65536, SEEDS = 6 };

static struct hopper_site waits[8]; /* of the last case, for bulk or other copies */
static uint32_t wait_count;

static void note_waits(const struct hopper *h)
{
    uint32_t count;
    const struct hopper_site *sites = hopper_sites(h, &count);
    wait_count = 0;
    for (uint32_t i = 0; i < count && wait_count < 8; i++)
        if (sites[i].what == HOPPER_P_BULK_WAIT)
            waits[wait_count++] = sites[i];
}

/* 0 where a mistake is found. */
static uint64_t hash_of(uint32_t number, uint64_t seed, const struct hopper_mutation *mutation)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1,
                                         .sms = 2,
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 28,
                                         .mutations = mutation,
                                         .mutation_count = mutation != NULL};
    assert_int_equal(hopper_create(&h, &config), 0);
    uint16_t *in = hopper_memory(h, BYTES), *out = hopper_memory(h, BYTES);
    emulated_conform_inputs(in, out);
    int rc = emulated_conform_launch(number, (const uint32_t *)(const void *)in,
                                     (uint32_t *)(void *)out);
    if (!rc)
        rc = hopper_run(h);
    if (rc && !mutation)
        print_error("%s, seed %d: %s\n", emulated_conform_name(number), (int)seed,
                    hopper_error(h) ? hopper_error(h) : "not launched");
    assert_true(!rc || mutation);
    uint64_t hash = rc ? 0 : emulated_conform_hash(out);
    if (!mutation)
        note_waits(h);
    hopper_destroy(h);
    return hash;
}

CASE(test_every_order_gives_the_same_bits)
{
    FILE *golden = fopen("tests/golden/hopper_conformance.txt", "r");
    assert_non_null(golden);
    uint32_t number = 0;
    for (; emulated_conform_name(number); number++) {
        char wanted[96] = "", line[96];
        uint64_t hash = hash_of(number, 0, NULL);
        snprintf(line, sizeof line, "%s %016llx\n", emulated_conform_name(number),
                 (unsigned long long)hash);
        print_message("%s", line);
        for (uint64_t seed = 1; seed < SEEDS; seed++)
            assert_true(hash_of(number, seed, NULL) == hash);
        (void)!fgets(wanted, sizeof wanted, golden);
        assert_string_equal(line, wanted);
    }
    assert_true(number >= 56 && fgetc(golden) == EOF);
    fclose(golden);
}

static uint32_t number_of(const char *name)
{
    uint32_t number = 0;
    while (strcmp(emulated_conform_name(number), name))
        number++;
    return number;
}

/* Sums that mma.sync leaves in a warpgroup's registers lie as wgmma's do. */
CASE(test_mma_gives_what_wgmma_gives)
{
    assert_true(hash_of(number_of("mma_64_nk"), 0, NULL) ==
                hash_of(number_of("wgmma_64_nk"), 0, NULL));
    assert_true(hash_of(number_of("mma_64_kn"), 0, NULL) ==
                hash_of(number_of("wgmma_64_kn"), 0, NULL));
}

/* Numbers that both types have make the same sums. */
CASE(test_fp16_gives_what_bf16_gives)
{
    static const char *const of[][2] = {{"mma_64_f16_nk", "mma_64_nk"},
                                        {"mma_64_f16_kn", "mma_64_kn"},
                                        {"wgmma_256_f16_nk", "wgmma_256_nk"},
                                        {"wgmma_64_f16_kn", "wgmma_64_kn"}};
    for (int i = 0; i < 4; i++)
        assert_true(hash_of(number_of(of[i][0]), 0, NULL) == hash_of(number_of(of[i][1]), 0, NULL));
}

/* cp.async without one of its `count` waits, or with one group more left open. */
static void copies_are_waited_for(const char *name, uint32_t count)
{
    uint32_t number = number_of(name);
    uint64_t right = hash_of(number, 0, NULL);
    assert_int_equal(wait_count, count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t variant = 1; variant <= 2; variant++) {
            const struct hopper_mutation m = {waits[i], variant};
            for (uint64_t seed = 0; seed < SEEDS; seed++)
                assert_true(hash_of(number, seed, &m) != right);
        }
}

CASE(test_copies_are_waited_for)
{
    copies_are_waited_for("copy_async", 2);
    copies_are_waited_for("copy_groups", 5);
}
