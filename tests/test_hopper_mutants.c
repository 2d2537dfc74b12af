/* The emulation finds mistakes in device code. At each place in the kernels where a fence, a
 * barrier, an arrival, a wait, a copy or a product stands, it is left out or done wrong, one at a
 * time; each such mutant is a wrong result, or a sentence that names the line, within a few orders.
 * Those that are not, and why, are in `equivalent`; nothing else may survive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/helpers/hopper.h"
#include "tests/helpers/hopper_ops.h"

enum { SEEDS = 3, MOST = 600 };

/* ---- what is mutated ---- */

static int gemm(uint64_t seed, const struct hopper_mutation *m, uint32_t count, int cluster,
                char *text, size_t size,
                void (*sites)(void *, const struct hopper_site *, uint32_t))
{
    const struct hopper_gemm g = {
        cluster ? 300 : 260, 72, 328, cluster, {128, cluster ? 128 : 64, 1 + (uint32_t)cluster}, 2};
    return hopper_gemm_mutated(&g, seed, m, count, sites, NULL, text, size, NULL);
}

static int operator(enum mk_op op, uint32_t nodes, uint32_t gpus, uint64_t columns, uint64_t seed,
                    const struct hopper_mutation *m, uint32_t count, char *text, size_t size,
                    void (*sites)(void *, const struct hopper_site *, uint32_t))
{
    const uint64_t shape[] = {66, columns, 136};
    struct sim_world_config c = hopper_ops_config(op, nodes, gpus, shape, seed);
    struct sim_world_result result;
    c.mutations = m;
    c.mutation_count = count;
    c.sites = sites;
    c.max_steps = 20000;
    c.launches = 3;
    int rc = sim_world_run(&c, &result);
    snprintf(text, size, "%s", result.sentence);
    return rc;
}

enum { SUBJECTS = 8 };
static int run(uint32_t subject, uint64_t seed, const struct hopper_mutation *m, uint32_t count,
               char *text, size_t size, void (*sites)(void *, const struct hopper_site *, uint32_t))
{
    switch (subject) {
    case 0:
        return gemm(seed, m, count, 0, text, size, sites);
    case 1:
        return gemm(seed, m, count, 1, text, size, sites);
    case 2: /* intra_comm copies by TMA */
        return operator(MK_OP_AG_GEMM, 1, 2, 72, 20 * seed + 13, m, count, text, size, sites);
    case 3: /* and by the lanes of an auxiliary warp */
        return operator(MK_OP_AG_GEMM, 1, 2, 72, 20 * seed + 2, m, count, text, size, sites);
    case 4: /* more tiles of a CTA than its outbox holds */
        return operator(MK_OP_GEMM_RS, 1, 2, 640, 20 * seed + 3, m, count, text, size, sites);
    case 5:
        return operator(MK_OP_GEMM_AR, 1, 2, 72, 20 * seed + 3, m, count, text, size, sites);
    case 6:
        return operator(MK_OP_GEMM_AR, 2, 1, 72, 20 * seed + 3, m, count, text, size, sites);
    default:
        return operator(MK_OP_AG_GEMM, 2, 1, 72, 20 * seed + 2, m, count, text, size, sites);
    }
}

/* ---- mutants ---- */

/* Mutants that are no mistakes, or that this model cannot see, by file and kind: at most so many
 * survive. */
static const struct {
    const char *file;
    enum hopper_primitive what;
    uint32_t most;
} equivalent[] = {
    /* the producer's warp comes together again: nothing is ordered by it */
    {"gemm.cuh", HOPPER_P_SYNCWARP, 1},
    /* consumers with fewer registers than ptxas was told: its business */
    {"gemm.cuh", HOPPER_P_REGISTERS, 1},
    /* at the end: the drained ring has told already that nothing more comes */
    {"gemm.cuh", HOPPER_P_CLUSTER, 1},
    /* a warp would have to begin when its launch is over: no order here did */
    {"gemm_launch.cuh", HOPPER_P_BARRIER, 1},
    /* who leaves last publishes the epoch to the next launch, which is ordered anyway */
    {"cta.cuh", HOPPER_P_FENCE, 2},
    /* behind a wait for all bulk stores, which is a proxy fence itself */
    {"cta.cuh", HOPPER_P_FENCE_ASYNC, 1},
    {"gemm_reduce.cuh", HOPPER_P_FENCE_ASYNC, 1}, /* the same */
    /* at the end of a CTA whose last flag has waited for its stores */
    {"cta.cuh", HOPPER_P_BULK_WAIT, 2},
};
enum { EQUIVALENT = sizeof equivalent / sizeof *equivalent };

struct mutant {
    struct hopper_mutation m;
    int caught;
};
static struct mutant mutants[MOST];
static uint32_t mutant_count;

static void note(void *context, const struct hopper_site *sites, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t v = 1; hopper_variant(sites[i].what, v); v++) {
            uint32_t j = 0;
            while (j < mutant_count &&
                   !(mutants[j].m.at.line == sites[i].line &&
                     mutants[j].m.at.what == sites[i].what && mutants[j].m.variant == v &&
                     !strcmp(mutants[j].m.at.file, sites[i].file)))
                j++;
            if (j == mutant_count && mutant_count < MOST)
                mutants[mutant_count++] = (struct mutant){{sites[i], v}, 0};
        }
}

static int here[SUBJECTS][MOST]; /* a subject comes to the mutant's place */

static uint32_t subject_noted;
static void note_here(void *context, const struct hopper_site *sites, uint32_t count)
{
    note(context, sites, count);
    for (uint32_t j = 0; j < mutant_count; j++)
        for (uint32_t i = 0; i < count; i++)
            here[subject_noted][j] |= mutants[j].m.at.line == sites[i].line &&
                                      mutants[j].m.at.what == sites[i].what &&
                                      !strcmp(mutants[j].m.at.file, sites[i].file);
}

static int skipped_already(uint32_t subject, const struct mutant *m)
{
    return m->caught || !here[subject][m - mutants];
}

static void test_mutants(void **state)
{
    char text[1024];
    uint32_t caught = 0;
    for (subject_noted = 0; subject_noted < SUBJECTS; subject_noted++) {
        int rc = run(subject_noted, 0, NULL, 0, text, sizeof text, note_here);
        if (rc)
            print_error("unbroken: %s\n", text);
        assert_int_equal(rc, 0);
    }
    for (uint32_t subject = 0; subject < SUBJECTS; subject++)
        for (uint32_t i = 0; i < mutant_count; i++)
            for (uint64_t seed = 0; seed < SEEDS && !skipped_already(subject, &mutants[i]);
                 seed++) {
                const struct hopper_mutation *m = &mutants[i].m;
                if (!run(subject, seed, m, 1, text, sizeof text, NULL))
                    continue;
                mutants[i].caught = 1;
                caught++;
                print_message("%s:%d %s, subject %d, seed %d: %s\n", strrchr(m->at.file, '/') + 1,
                              m->at.line, hopper_variant(m->at.what, m->variant), (int)subject,
                              (int)seed, text);
            }
    uint32_t survived[EQUIVALENT] = {0}, unexpected = 0;
    for (uint32_t i = 0; i < mutant_count; i++) {
        const struct hopper_site *at = &mutants[i].m.at;
        const char *file = strrchr(at->file, '/') + 1;
        uint32_t e = 0;
        if (mutants[i].caught)
            continue;
        while (e < EQUIVALENT &&
               (strcmp(file, equivalent[e].file) || at->what != equivalent[e].what))
            e++;
        int expected = e < EQUIVALENT && ++survived[e] <= equivalent[e].most;
        unexpected += !expected;
        print_message("%s:%d %s: SURVIVED%s\n", file, at->line,
                      hopper_variant(at->what, mutants[i].m.variant),
                      expected ? ", as it may" : "");
    }
    print_message("%u of %u mutants caught\n", caught, mutant_count);
    assert_true(caught >= 100);
    assert_int_equal(unexpected, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
