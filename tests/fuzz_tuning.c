/* Any bytes as a file of tuned plans: it is read, or refused with a line of it; a plan that was
 * read says in its own words what it is; and the plan of a shape is built from it or from the
 * formula, or refused with a line. */
#include "core/ops/op.h"
#include "core/plan/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The words of a plan, read again. */
static void read_again(const struct tuning_entry *e)
{
    char words[256], error[256];
    struct mk_tuning back = {0};
    tuning_words(&e->tuning, words, sizeof words);
    if (!strcmp(words, "formula"))
        words[0] = '\0';
    for (char *save, *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
        if (tuning_read_word(word, e->op, &back, error, sizeof error))
            abort();
    if (memcmp(&back, &e->tuning, sizeof back))
        abort();
}

static void build(const struct tuning_table *t, const struct tuning_entry *e)
{
    struct mk_problem q = {.op = e->op,
                           .exec = MK_EXEC_CUDA,
                           .sms = 132,
                           .topo = {e->nodes, e->gpus, 0},
                           .b_transposed = e->b_transposed,
                           .deterministic = e->deterministic};
    op_set_numbers(&q, e->numbers);
    if (e->causal)
        q.attention.causal = 1;
    struct mk_plan tuned, formula;
    char error[1024] = "", why[512];
    int result = tuning_build(&tuned, t, &q, e->device, 0, 0, error, sizeof error);
    if (result && !error[0])
        abort();
    if (result && !plan_build(&formula, &q, 0, 0, why, sizeof why) &&
        !strstr(error, "its plan does not fit"))
        abort(); /* the formula has one, and the line is not to blame */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tuning_table t = {.path = "plans"};
    char *text = malloc(size + 1), error[512] = "";
    uint32_t line;
    memcpy(text, data, size);
    text[size] = '\0';
    int result = tuning_parse(&t, text, "plans", 0, error, sizeof error);
    if (result && (sscanf(error, "plans:%u: ", &line) != 1 || !line))
        abort();
    for (uint32_t i = 0; i < t.count; i++) {
        read_again(&t.entries[i]);
        build(&t, &t.entries[i]);
    }
    tuning_close(&t);
    free(text);
    return 0;
}
