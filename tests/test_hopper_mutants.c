/* The emulation finds mistakes in device code. At each place in the kernels where a fence, a
 * barrier, an arrival, a wait, a copy or a product stands, it is left out or done wrong, one at a
 * time; each such mutant is a wrong result, or a sentence that names the line, within a few orders.
 * Those that are not, and why, are in `equivalent`; nothing else may survive. */
/* LIMIT=900 */
#include "tests/helpers/hopper_subjects.h"

enum { SEEDS = 3, MOST = 900 };

/* ---- mutants ---- */

/* Mutants that are no mistakes, or that this model cannot see, by file and kind: at most so many
 * survive. */
static const struct {
    const char *file;
    enum hopper_primitive what;
    uint32_t most;
} equivalent[] = {
    /* the producer's warp, or a consumer's, comes together again: nothing is ordered by it; and
     * in gemm_pass a lane would have to be two phases of a stage behind its warp's first; behind
     * gemm_give all lanes meet where the tile is stored or sent, before the next is asked for */
    {"gemm.cuh", HOPPER_P_SYNCWARP, 2},
    {"gemm_consume.cuh", HOPPER_P_SYNCWARP, 3},
    {"moe_ffn_wgmma.cuh", HOPPER_P_SYNCWARP, 1},
    {"moe_ffn_fp8.cu", HOPPER_P_SYNCWARP, 1},
    {"attention.cuh", HOPPER_P_SYNCWARP, 2},
    /* consumers, and what follows the engine, with fewer registers than ptxas was told: its
     * business */
    {"gemm.cuh", HOPPER_P_REGISTERS, 2},
    {"attention.cuh", HOPPER_P_REGISTERS, 1},
    /* at the end: the drained ring has told already that nothing more comes */
    {"gemm.cuh", HOPPER_P_CLUSTER, 1},
    /* a warp would have to begin when its launch is over: no order here did */
    {"gemm_launch.cuh", HOPPER_P_BARRIER, 1},
    /* the same; and behind a role, where the lane that is elected next has written the track itself
     */
    {"ring_attention.cu", HOPPER_P_BARRIER, 2},
    /* the same, on engine mma, and of FP8 */
    {"launch.cuh", HOPPER_P_BARRIER, 1},
    {"gemm_launch_fp8.cuh", HOPPER_P_BARRIER, 1},
    /* it keeps ptxas from loading all at once; nothing is ordered by it */
    {"fragments.cuh", HOPPER_P_SYNCWARP, 1},
    /* lanes come together before aligned instructions; nothing is ordered by it */
    {"ring.cuh", HOPPER_P_SYNCWARP, 2},
    /* a second one, and nothing was done to the registers between */
    {"attention_consumer.cuh", HOPPER_P_WGMMA_FENCE, 1},
    /* whether values are to be cleaned: all of these are finite */
    {"attention_consumer.cuh", HOPPER_P_BARRIER, 1},
    /* behind a wait for all bulk stores, which is a proxy fence itself */
    {"cta.cuh", HOPPER_P_FENCE_ASYNC, 1},
    {"gemm_reduce_source.cuh", HOPPER_P_FENCE_ASYNC, 1}, /* the same */
    {"gemm_reduce_roles.cuh", HOPPER_P_FENCE_ASYNC, 1},  /* the same */
    /* a sender would have to be two tiles behind its consumers when they come to their slice */
    {"gemm_cut.cuh", HOPPER_P_MBAR_WAIT, 1},
    /* the barrier of the call that tells of the block's end follows */
    {"gemm_reduce_roles.cuh", HOPPER_P_BARRIER, 1},
    /* a lane would have to be eight tiles behind its warp's first, and they meet in each; and where one lane has described the
     * tiles, what follows has meetings of its own */
    {"gemm_reduce.cuh", HOPPER_P_SYNCWARP, 2},
    /* of a block that passes on what the network brings: nobody does on these ranks */
    {"cta.cuh", HOPPER_P_BARRIER, 1},
    /* behind a wait or before the next barrier of the same threads */
    {"cta_route.cuh", HOPPER_P_BARRIER, 1},
    /* it is one: only blocks of this GPU look */
    {"cta_made.cuh", HOPPER_P_RELEASE, 1},
    /* of few ranks a thread reads what it has written; the next is the barrier of what follows */
    {"route_order.cuh", HOPPER_P_BARRIER, 2},
    /* counters are cleared behind it, and lanes meet before they count */
    {"route_say.cuh", HOPPER_P_SYNCWARP, 1},
    /* the next is the barrier of what follows */
    {"cta_rows.cuh", HOPPER_P_BARRIER, 1},
    /* it is one: only blocks of this GPU look */
    {"moe_ffn_wgmma.cuh", HOPPER_P_RELEASE, 1},
    /* at the end, and behind the engine, as ring_attention.cu */
    {"moe_ffn.cuh", HOPPER_P_BARRIER, 2},
    {"moe_ffn_mma.cuh", HOPPER_P_RELEASE, 1}, /* as moe_ffn_wgmma.cuh */
    /* the engine's own barrier follows; at the end as gemm_launch.cuh */
    {"moe_dispatch_gemm.cuh", HOPPER_P_BARRIER, 1},
    {"moe_take.cuh", HOPPER_P_BARRIER, 1},
    /* tables of so few experts end before what TMA loads */
    {"moe_take.cuh", HOPPER_P_FENCE_ASYNC, 1},
    /* the tile before was told of, and its stores have been waited for */
    {"moe_ffn_fp8.cu", HOPPER_P_BULK_WAIT, 2},
    /* at the end of a CTA whose last flag has waited for its stores */
    {"cta.cuh", HOPPER_P_BULK_WAIT, 2},
    /* for time alone: a wait at a barrier does not count the launches before; and of a block that
     * leaves, where each has waited for its number already */
    {"barrier.cuh", HOPPER_P_LAUNCH_WAIT, 1},
    {"cta.cuh", HOPPER_P_LAUNCH_WAIT, 1},
    /* at the end, .read for completion: what is stored is written when the kernel ends */
    {"attention_consumer.cuh", HOPPER_P_BULK_WAIT, 1},
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

static const char *file_name(const struct hopper_mutation *m)
{
    return strrchr(m->at.file, '/') + 1;
}

static uint32_t equivalent_of(const struct hopper_mutation *m)
{
    uint32_t e = 0;
    while (e < EQUIVALENT &&
           (strcmp(file_name(m), equivalent[e].file) || m->at.what != equivalent[e].what))
        e++;
    return e;
}

/* Nothing is learnt from more subjects and orders: of its file and kind no more are left than may
 * survive. */
static int may_all_survive(const struct hopper_mutation *m)
{
    uint32_t e = equivalent_of(m), left = 0;
    for (uint32_t i = 0; i < mutant_count && e < EQUIVALENT; i++)
        left += !mutants[i].caught && equivalent_of(&mutants[i].m) == e;
    return e < EQUIVALENT && left <= equivalent[e].most;
}

CASE(test_mutants)
{
    struct hopper_subject_run r = {.sites = note_here};
    uint32_t caught = 0, waits = 0, incomplete = 0;
    for (subject_noted = 0; subject_noted < SUBJECTS; subject_noted++) {
        r.subject = subject_noted;
        int rc = hopper_subject_run(&r);
        if (rc)
            print_error("unbroken, subject %u: %s\n", r.subject, r.text);
        assert_int_equal(rc, 0);
    }
    r.sites = NULL;
    r.count = 1;
    /* one order of each subject, then others for what nobody has caught; the quick ones first */
    static const uint32_t subjects[SUBJECTS] = {0,  1,  2,  3,  6,  7,  9,  12, 14, 15,
                                                16, 17, 18, 19, 10, 11, 21, 22, 23, 26,
                                                8,  4,  5,  13, 20, 24, 25, 27, 28, 29};
    for (r.seed = 0; r.seed < SEEDS; r.seed++)
        for (uint32_t k = 0; k < SUBJECTS * mutant_count; k++) {
            struct mutant *mutant = &mutants[k % mutant_count];
            const struct hopper_mutation *m = r.mutations = &mutant->m;
            r.subject = subjects[k / mutant_count];
            if (skipped_already(r.subject, mutant) || may_all_survive(m))
                continue;
            int rc = hopper_subject_run(&r);
            if (!rc || hopper_subject_incomplete(&r)) {
                incomplete += rc != 0;
                continue;
            }
            mutant->caught = 1;
            caught++;
            waits += m->at.what == HOPPER_P_LAUNCH_WAIT;
            print_message("%s:%d %s, subject %d, seed %d: %s\n", file_name(m), m->at.line,
                          hopper_variant(m->at.what, m->variant), (int)r.subject, (int)r.seed,
                          r.text);
        }
    uint32_t survived[EQUIVALENT] = {0}, unexpected = 0;
    for (uint32_t i = 0; i < mutant_count; i++) {
        const struct hopper_mutation *m = &mutants[i].m;
        uint32_t e = equivalent_of(m);
        if (mutants[i].caught)
            continue;
        int expected = e < EQUIVALENT && ++survived[e] <= equivalent[e].most;
        unexpected += !expected;
        print_message("%s:%d %s: SURVIVED%s\n", file_name(m), m->at.line,
                      hopper_variant(m->at.what, m->variant), expected ? ", as it may" : "");
    }
    print_message("%u of %u mutants caught, %u searches incomplete\n", caught, mutant_count,
                  incomplete);
    assert_true(caught >= 100);
    assert_true(waits >= 2); /* of TMA's warp, and where the launch's number is asked for */
    assert_int_equal(unexpected, 0);
}
