/* The conformance suite (tests/gpu_conform.cu) on the emulated Hopper: each primitive alone runs
 * without a mistake, in every order that is tried, and gives the same bits in all of them. What a
 * GPU gives, `gpu_conform check` compares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim/hopper/hopper.h"

const char *emulated_conform_name(uint32_t number);
int emulated_conform_launch(uint32_t number, const uint32_t *in, uint32_t *out);
void emulated_conform_inputs(uint16_t *in, uint16_t *out);
uint64_t emulated_conform_hash(const uint16_t *out);

enum { BYTES = 65536, SEEDS = 6 };

static uint64_t hash_of(uint32_t number, uint64_t seed)
{
    struct hopper *h;
    const struct hopper_config config = {
        .ranks = 1, .sms = 2, .seed = seed, .races = 1, .memory = (size_t)1 << 28};
    assert_int_equal(hopper_create(&h, &config), 0);
    uint16_t *in = hopper_memory(h, BYTES), *out = hopper_memory(h, BYTES);
    emulated_conform_inputs(in, out);
    int rc = emulated_conform_launch(number, (const uint32_t *)(const void *)in,
                                     (uint32_t *)(void *)out);
    if (!rc)
        rc = hopper_run(h);
    if (rc)
        print_error("%s, seed %d: %s\n", emulated_conform_name(number), (int)seed,
                    hopper_error(h) ? hopper_error(h) : "not launched");
    assert_int_equal(rc, 0);
    uint64_t hash = emulated_conform_hash(out);
    hopper_destroy(h);
    return hash;
}

static void test_every_order_gives_the_same_bits(void **state)
{
    uint32_t number = 0;
    for (; emulated_conform_name(number); number++) {
        uint64_t hash = hash_of(number, 0);
        print_message("%s %016llx\n", emulated_conform_name(number), (unsigned long long)hash);
        for (uint64_t seed = 1; seed < SEEDS; seed++)
            assert_true(hash_of(number, seed) == hash);
    }
    assert_true(number >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_order_gives_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
