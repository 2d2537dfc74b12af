/* Fences of device code, every subset of them: for each subject and each file, all the fences that
 * its kernels come to there are left out together in every combination. Something is wrong exactly
 * where one that is needed is missing, whatever else is missing too; those that nothing needs are
 * in `redundant`, and no others are. And: a search whose budget or room runs out says so. */
/* LIMIT=900 */
#include "sim/hopper/shadow.h"
#include "tests/helpers/hopper_subjects.h"

enum { SEEDS = 3, MOST = 64, PLACE = 6 };

struct fence {
    struct hopper_site at;
    int needed; /* by some subject */
};
static struct fence fences[MOST];
static uint32_t fence_count;

/* Fences that no subject needs, by file and kind: so many at most (docs/EMULATION.md says why). */
static const struct {
    const char *file;
    enum hopper_primitive what;
    uint32_t most;
} redundant[] = {
    {"cta.cuh", HOPPER_P_FENCE_ASYNC, 1},
    {"gemm_reduce_source.cuh", HOPPER_P_FENCE_ASYNC, 1},
    {"gemm_reduce_roles.cuh", HOPPER_P_FENCE_ASYNC, 1},
    {"attention_consumer.cuh", HOPPER_P_WGMMA_FENCE, 1},
    {"moe_take.cuh", HOPPER_P_FENCE_ASYNC, 1},
};
enum { REDUNDANT = sizeof redundant / sizeof *redundant };

static int is_fence(enum hopper_primitive what)
{
    return what == HOPPER_P_FENCE || what == HOPPER_P_FENCE_ASYNC || what == HOPPER_P_INIT_FENCE ||
           what == HOPPER_P_WGMMA_FENCE;
}

static int same(const struct hopper_site *a, const struct hopper_site *b)
{
    return a->line == b->line && a->what == b->what && !strcmp(a->file, b->file);
}

static const char *file_of(const struct hopper_site *s)
{
    return strrchr(s->file, '/') + 1;
}

/* Those that the subject comes to, by file, each in `fences`. */
static uint32_t here[MOST], here_count;

static void note(void *context, const struct hopper_site *sites, uint32_t count)
{
    here_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = 0;
        if (!is_fence(sites[i].what))
            continue;
        while (j < fence_count && !same(&fences[j].at, &sites[i]))
            j++;
        assert_true(j < MOST);
        if (j == fence_count)
            fences[fence_count++] = (struct fence){sites[i], 0};
        here[here_count++] = j;
    }
}

static uint32_t runs, incomplete;

/* Whether something is wrong without these, in some order. The first seed to try may be the one
 * that told before. */
static int is_wrong(uint32_t subject, const uint32_t *which, uint32_t subset, uint64_t *seed,
                    char *text, size_t size)
{
    struct hopper_mutation m[PLACE];
    struct hopper_subject_run r = {.subject = subject, .mutations = m};
    for (uint32_t i = 0; subset >> i; i++)
        if (subset >> i & 1)
            m[r.count++] = (struct hopper_mutation){fences[which[i]].at, 1};
    for (uint64_t i = 0; i < SEEDS; i++) {
        r.seed = (*seed + i) % SEEDS;
        int rc = hopper_subject_run(&r);
        runs++;
        incomplete += rc && hopper_subject_incomplete(&r);
        if (rc && !hopper_subject_incomplete(&r)) {
            *seed = r.seed;
            snprintf(text, size, "%s", r.text);
            return 1;
        }
    }
    return 0;
}

static void subset_text(const uint32_t *which, uint32_t subset, char *text, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; subset >> i; i++)
        if (subset >> i & 1)
            used += (size_t)snprintf(text + used, size - used, "%s%s:%d", used ? ", " : "",
                                     file_of(&fences[which[i]].at), fences[which[i]].at.line);
}

/* All subsets of the fences of one file. */
static void every_subset(uint32_t subject, const uint32_t *which, uint32_t count)
{
    char text[1024] = "", names[256];
    uint64_t seeds[PLACE] = {0};
    uint32_t needed = 0;
    assert_true(count <= PLACE);
    for (uint32_t i = 0; i < count; i++)
        if (is_wrong(subject, which, 1u << i, &seeds[i], text, sizeof text)) {
            needed |= 1u << i;
            fences[which[i]].needed = 1;
            subset_text(which, 1u << i, names, sizeof names);
            print_message("subject %u without %s: %s\n", subject, names, text);
        }
    for (uint32_t subset = 1; subset < 1u << count; subset++) {
        uint64_t seed = 0;
        if (!(subset & (subset - 1)))
            continue;
        for (uint32_t i = 0; i < count; i++)
            if (subset & needed & 1u << i)
                seed = seeds[i];
        int wrong = is_wrong(subject, which, subset, &seed, text, sizeof text);
        if (wrong == ((subset & needed) != 0))
            continue;
        subset_text(which, subset, names, sizeof names);
        fail_msg("subject %u without %s: %s", subject, names,
                 wrong ? text : "nothing is wrong, and one of them alone is needed");
    }
}

CASE(test_every_subset)
{
    for (uint32_t subject = 0; subject < SUBJECTS; subject++) {
        struct hopper_subject_run r = {.subject = subject, .sites = note};
        int rc = hopper_subject_run(&r);
        if (rc)
            print_error("unbroken: %s\n", r.text);
        assert_int_equal(rc, 0);
        uint64_t done = 0;
        for (uint32_t i = 0; i < here_count; i++) {
            uint32_t which[MOST], count = 0;
            for (uint32_t j = i; j < here_count && !(done >> i & 1); j++)
                if (!strcmp(fences[here[j]].at.file, fences[here[i]].at.file)) {
                    which[count++] = here[j];
                    if (j != i)
                        done |= (uint64_t)1 << j;
                }
            if (count)
                every_subset(subject, which, count);
        }
    }
    uint32_t unneeded[REDUNDANT] = {0}, unexpected = 0, needed = 0;
    for (uint32_t i = 0; i < fence_count; i++) {
        const struct hopper_site *at = &fences[i].at;
        uint32_t e = 0;
        needed += (uint32_t)fences[i].needed;
        if (fences[i].needed)
            continue;
        while (e < REDUNDANT &&
               (strcmp(file_of(at), redundant[e].file) || at->what != redundant[e].what))
            e++;
        int expected = e < REDUNDANT && ++unneeded[e] <= redundant[e].most;
        unexpected += !expected;
        print_message("%s:%d, %s: nothing needs it%s\n", file_of(at), at->line,
                      hopper_variant(at->what, 1), expected ? ", as is known" : "");
    }
    print_message("%u of %u fences are needed; %u runs, %u incomplete\n", needed, fence_count, runs,
                  incomplete);
    assert_int_equal(incomplete, 0);
    assert_int_equal(unexpected, 0);
    assert_true(needed >= 10);
}

/* ---- budgets ---- */

CASE(test_out_of_steps)
{
    struct hopper_gemm g = {130, 72, 136, 0, {128, 64, 1}, 2};
    struct hopper *h;
    const struct hopper_config config = {
        .ranks = 1, .sms = 2, .seed = 1, .races = 1, .memory = 1 << 26, .max_steps = 50};
    assert_int_equal(hopper_create(&h, &config), 0);
    uint16_t *a = hopper_memory(h, 2 * 130 * 136), *b = hopper_memory(h, 2 * 72 * 136),
             *c = hopper_memory(h, 2 * 130 * 72);
    assert_int_equal(emulated_gemm_run(a, b, c, g.m, g.n, g.k, g.kn, g.tiling, 0, NULL), 0);
    assert_int_equal(hopper_run(h), -ETIMEDOUT);
    assert_string_equal(hopper_error(h), "incomplete: not over after 50 steps");
    assert_int_equal(hopper_forgotten(h), 0);
    hopper_destroy(h);
}

static void no_fault(void *context, enum shadow_fault fault, const struct shadow_event *access,
                     const struct shadow_event *with, const void *address)
{
    fail();
}

static int faults;
static void one_fault(void *context, enum shadow_fault fault, const struct shadow_event *access,
                      const struct shadow_event *with, const void *address)
{
    assert_int_equal(fault, SHADOW_RACE_READ);
    faults++;
}

static void access_word(struct shadow *s, uint32_t entry, uint32_t clock, uint64_t kind,
                        const void *word)
{
    const struct shadow_actor actor = {.entry = entry, .clock = clock};
    const struct shadow_event event = {.entry = entry, .clock = clock, .kind = kind};
    shadow_access(s, &actor, &event, word, 4);
}

enum { SMS = 6, READERS = SMS * KNOWN_THREADS };

static uint32_t reader_entry(uint32_t i)
{
    return i / KNOWN_THREADS * KNOWN_ENTRIES + i % KNOWN_THREADS;
}

/* A writer that knows of all readers but `missed`. Returns what shadow_access does. */
static int write_behind(struct shadow *s, struct known_table *table, uint32_t clock,
                        uint32_t missed, const void *word)
{
    struct known *known = NULL;
    for (uint32_t i = 0; i < READERS; i++)
        if (i != missed)
            known = known_raise(table, known, KNOWN_GENERIC, i / KNOWN_THREADS, i % KNOWN_THREADS,
                                clock);
    const struct shadow_actor writer = {.known = known, .entry = KNOWN_THREADS, .clock = 1};
    const struct shadow_event write = {.entry = KNOWN_THREADS, .clock = 1, .kind = ACCESS_WRITE};
    int bad = shadow_access(s, &writer, &write, word, 4);
    known_drop(table, known);
    return bad;
}

/* Readers of one word that nothing orders, all threads of several SMs: who comes behind them has to
 * know of each, and the watch forgets none while it sweeps out what other words had. */
CASE(test_every_reader)
{
    enum { WORDS = 64 };
    struct known_table *table = known_table_create(SMS);
    struct shadow s;
    assert_int_equal(shadow_open(&s, 1 << 20, SMS), 0);
    uint32_t *words = shadow_allocate(&s, 4 * (WORDS + 1), SHADOW_INITIAL), most = 0;
    s.fault = no_fault;
    for (uint32_t word = 0; word < WORDS; word++) {
        for (uint32_t i = 0; i < READERS; i++)
            for (uint32_t of = 0; of < 2; of++) /* this word, and one that begins anew */
                access_word(&s, reader_entry(i), 2 * word + of + 1, 0, &words[of ? word : WORDS]);
        most = s.node_count > most ? s.node_count : most;
        shadow_set(&s, &words[WORDS], 4, SHADOW_INITIAL);
    }
    assert_int_equal(s.cut, 0);
    assert_in_range(most, WORDS * READERS, 3 * WORDS * READERS / 2); /* it was swept */
    s.fault = one_fault;
    for (uint32_t word = 0; word < WORDS; word++) {
        faults = 0;
        uint32_t missed = word * (READERS / WORDS);
        assert_int_equal(write_behind(&s, table, 2 * word + 2, missed, &words[word]), 1);
        assert_int_equal(faults, 1);
    }
    shadow_close(&s);
    known_table_destroy(table);
}

/* Readers who come again and again take the place of what they did before, and the last read of each
 * counts. */
CASE(test_readers_again)
{
    enum { SHORT = 8, FEW = 20, ROUNDS = 2000 };
    struct known_table *table = known_table_create(1);
    struct shadow s;
    assert_int_equal(shadow_open(&s, 1 << 20, 1), 0);
    s.node_most = 1000; /* it forgets where half as many are the word's */
    uint32_t *word = shadow_allocate(&s, 4, SHADOW_INITIAL), reads = 0;
    for (uint32_t i = 0; i < FEW; i++, reads++) { /* two in turn, and a new one at powers of two */
        for (; i > SHORT && reads & (reads - 1); reads++)
            access_word(&s, reads % 2, reads + 1, 0, word);
        access_word(&s, i, reads + 1, 0, word);
    }
    assert_int_equal(s.cut, 0);
    for (uint32_t late = 0; late < FEW; late++) {
        s.fault = no_fault;
        shadow_set(&s, word, 4, SHADOW_INITIAL);
        for (uint32_t round = 1; round <= ROUNDS; round++)
            for (uint32_t i = 0; i < FEW; i++)
                access_word(&s, (i * 7 + round) % FEW, round, 0, word);
        struct known *known = NULL;
        for (uint32_t i = 0; i < FEW; i++)
            known = known_raise(table, known, KNOWN_GENERIC, 0, i, ROUNDS - (i == late));
        const struct shadow_actor writer = {.known = known, .entry = FEW, .clock = 1};
        const struct shadow_event write = {.entry = FEW, .clock = 1, .kind = ACCESS_WRITE};
        s.fault = one_fault;
        faults = 0;
        assert_int_equal(shadow_access(&s, &writer, &write, word, 4), 1);
        assert_int_equal(faults, 1);
        assert_int_equal(s.cut, 0);
        known_drop(table, known);
    }
    shadow_close(&s);
    known_table_destroy(table);
}

/* There is room for so many histories: where it runs out, the watch says that it has forgotten. */
CASE(test_out_of_room)
{
    struct shadow s;
    assert_int_equal(shadow_open(&s, 1 << 20, 1), 0);
    s.fault = no_fault;
    s.node_most = 300;
    void *word = shadow_allocate(&s, 64, SHADOW_INITIAL);
    for (uint32_t reader = 0; reader < 400; reader++)
        access_word(&s, reader, 1, 0, word);
    assert_int_equal(s.cut, 1);
    shadow_close(&s);
}
