/* The operators' names, and nothing else about them: who writes a sentence may ask. */
#include "core/ops/op.h"
#include "core/base/sentence.h"

static const char *const names[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) #name,
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
};

const char *plan_op_name(uint32_t op)
{
    return op < MK_OPS ? names[op] : "unknown op";
}

char *op_list(char *text, size_t size, int (*wanted)(enum mk_op), const char *between,
              const char *last)
{
    const char *which[MK_OPS];
    uint32_t count = 0;
    text[0] = '\0';
    for (int op = 0; op < MK_OPS; op++)
        if (!wanted || wanted(op))
            which[count++] = names[op];
    for (uint32_t i = 0; i < count; i++)
        mk_append(text, size, "%s%s", !i ? "" : i + 1 < count ? between : last, which[i]);
    return text;
}
