/* Tuned plans: the plans that were measured to be the fastest, kept in text files with one a line,
 * and where the plan reads its defaults from. A line says for which op, shape (M,N,K or what its
 * numbers are), layout of B (of attention its mask: full or causal), sums, cluster (nodes x ranks
 * of a node) and device (its name with _ for blanks; "host" for the host executor) it was found,
 * then fields of its problem (PLAN_IN_TUNED, core/plan/plan_fields.h: dtype=fp8, back=fp8,
 * engine=mma) that are not what a plan without them has, then the options that
 * differ from what the plan's closed formula chooses, then the measured times (by=simulation: those
 * of `mkernel tune --exec sim`); # begins a comment:
 *
 *   gemm_rs 8192,8192,3584 kn fast 1x8 NVIDIA_H200 tile=256,128 pace=310 ms=0.512 formula_ms=0.556
 *   date=2026-11-21
 *
 * The user's file comes first, then the plans that are compiled in (core/plan/tuning.plans). Which one
 * is taken, where no option of the plan is given: the first whose all matches; else, of those that
 * differ in the shape's numbers alone, the nearest, if these together are no more than TUNING_NEAR
 * from it (the sum of |log2| of the ratios) and its plan fits the shape; else none, and the formula
 * chooses all. Plans of fp16 that have no line take one of bf16. How a MoE's tokens are routed is
 * no part of it. */
#pragma once

#include "core/ops/registry.h"
#include "core/plan/plan.h"
#include "core/plan/plan_fields.h"

#define TUNING_NEAR 0.5

/* What stands for attention in place of B's layout: "full", "causal", "causal-contiguous". */
enum { TUNING_MASKS = 3 };
extern const char *const tuning_masks[TUNING_MASKS];

struct tuning_entry {
    enum mk_op op;
    uint64_t numbers[MK_OWN_NUMBERS];        /* of the op's shape, in its order; 0 behind them */
    int b_transposed, causal, deterministic; /* the first two: 0 where it has no such thing;
                                                causal: which of tuning_masks */
    struct mk_problem said; /* fields that the line says by name: "dtype=fp8" (PLAN_IN_TUNED) */
    uint32_t nodes, gpus;
    char device[64];         /* as in the file */
    struct mk_tuning tuning; /* 0: as the formula chooses */
    /* of a launch: of this plan, and of the formula's; 0: the line does not say */
    double ms, formula_ms;
    char date[11]; /* YYYY-MM-DD, or empty */
    int simulated; /* the line says by=simulation: nothing was measured */
    int shipped;   /* compiled in */
    uint32_t line; /* from 1 */
};

struct tuning_table {
    struct tuning_entry *entries;
    uint32_t count;
    char path[512]; /* the user's file, there or not; empty: none */
};

/* Reads the tuned plans. `asked`: a file, which must be there; "none": no plan at all, not even
 * those compiled in; "": the value of MKERNEL_TUNING, read in the same way, else
 * $XDG_CONFIG_HOME/mkernel/tuning or ~/.config/mkernel/tuning if there is one. `may_lack`: a file
 * that is asked for need not be there. 0, or -errno with one sentence in `error` (of a line that is
 * not valid: its file and number). tuning_close in either case. */
int tuning_open(struct tuning_table *t, const char *asked, int may_lack, char *error, size_t size);
void tuning_close(struct tuning_table *t);

/* Adds the plans of `text`; `name` is its name in sentences. 0, -EINVAL with a sentence, or
 * -ENOMEM. */
int tuning_parse(struct tuning_table *t, const char *text, const char *name, int shipped,
                 char *error, size_t size);

/* Puts `entry` into the file at `path` in place of those for the same op, shape and so on; other
 * lines stay as they are. The file and its folder are made where they are not there; a reader sees
 * the old file or the new one, and several may store at once: a lock beside the file (PATH.lock)
 * makes them wait for each other, at most 10 s. 0, or -errno with a sentence. */
int tuning_store(const char *path, const struct tuning_entry *entry, char *error, size_t size);

/* Makes the folders that `path` lies in, as far as they are not there and can be made. */
void tuning_make_folders(const char *path);

/* The plan of `entry` in the words of a line, "tile=256,128 pace=310"; "formula" where it has none.
 * Returns text. */
char *tuning_words(const struct mk_tuning *tuning, char *text, size_t size);

/* Sets the option that one such word names, if `op` has it. 0, or -EINVAL with a sentence, which
 * says the new spelling of a word that tuning_word_now knows. */
int tuning_read_word(const char *word, enum mk_op op, struct mk_tuning *tuning, char *error,
                     size_t size);

/* Where a plan has the numbers of an option, one of PLAN_IN_WORDS (core/plan/plan_fields.h). */
uint32_t *tuning_value(struct mk_tuning *tuning, const struct plan_field *option);

/* The option behind `f` in the order of words, NULL: the first of a plan; NULL: none is. */
const struct plan_field *tuning_next(const struct plan_field *f);

/* The options' names, "tile, roles, chunk-rows". Returns text. */
#define TUNING_NAMES_TEXT 128
char *tuning_names(char text[TUNING_NAMES_TEXT]);

/* The option whose name is the first `length` characters of `word`; NULL: there is none. */
const struct plan_field *tuning_option(const char *word, size_t length);

/* "compute=116,intra_comm=16": a role's CTAs, each a thread block on a GPU;
 * "compute=132,intra_comm=2w": two warps of each compute block are CTAs of intra_comm (on the host
 * two CTAs for each that computes). Roles that are not named have no CTA. 0, or -EINVAL with a
 * sentence and *out as it was. */
int tuning_read_roles(const char *text, struct mk_role_split *out, char *error, size_t size);

/* Adds them to `text` as they are read; roles without CTAs are left out. Returns text. */
#define TUNING_ROLES_TEXT 96
char *tuning_say_roles(const struct mk_role_split *split, char *text, size_t size);

/* Roles of tables and traces that say counts alone, as they did until 2026-11-28: as many CTAs of
 * intra_comm as of compute, or two or three times as many, shared its blocks. */
struct mk_role_split tuning_old_roles(const uint32_t ctas[MK_ROLES]);

/* A word as it is written since 2026-11-23, for files that are older: "roles=132+132+0+0",
 * "tile=256x128", "chunk_rows=256", and "width=2" for fanout; and since 2026-11-28, "pace=1".
 * Returns text, or `word` where nothing changed. */
#define TUNING_WORD_TEXT 128
const char *tuning_word_now(const char *word, char text[TUNING_WORD_TEXT]);

/* The numbers of its shape with commas between them. Returns text. */
#define TUNING_SHAPE_TEXT (MK_OWN_NUMBERS * 21)
char *tuning_shape(const struct tuning_entry *entry, char text[TUNING_SHAPE_TEXT]);

/* Fills in the key of an entry for this problem on this device; no plan, nothing measured. */
void tuning_key(struct tuning_entry *entry, const struct mk_problem *problem, const char *device);

/* Whether two entries are for the same: op, shape, layout or mask, sums, cluster, device and
 * engine.
 */
int tuning_same(const struct tuning_entry *a, const struct tuning_entry *b);

/* The entry for a problem; NULL: none is near. *exact: all matches. */
const struct tuning_entry *tuning_find(const struct tuning_table *t,
                                       const struct mk_problem *problem, const char *device,
                                       int *exact);

/* plan_build; where the problem has no option of its own with a tuned plan, p->tuned says which, or
 * with what the model of the machine chooses (core/model/choose.h).
 * Where one that matches exactly does not fit, -EINVAL with its file and line; but with an epilogue
 * or fewer SMs, which lines say nothing of, the formula chooses then. */
int tuning_build(struct mk_plan *p, const struct tuning_table *t, const struct mk_problem *problem,
                 const char *device, uint32_t flag_base, uint64_t heap_base, char *error,
                 size_t size);

/* A number for all that may be taken on a cluster: ranks with the same plan alike. */
uint64_t tuning_hash(const struct tuning_table *t, uint32_t nodes, uint32_t gpus);
