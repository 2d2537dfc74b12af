#include "core/plan/epilogue.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <string.h>

static const char *const names[] = {"bias",    "silu",  "gelu_tanh", "residual",
                                    "rmsnorm", "gated", "quantize"};
enum { NAMES = sizeof names / sizeof *names };

int epilogue_read(const char *name, const char *text, uint32_t *epilogue, char *error, size_t size)
{
    uint32_t bits = 0, once = 1;
    for (const char *word = text;; word++) {
        size_t length = strcspn(word, "+");
        int i = 0;
        while (i < NAMES && (strlen(names[i]) != length || strncmp(names[i], word, length)))
            i++;
        if (i == NAMES)
            return mk_fail(-EINVAL, error, size,
                           "%s%s: '%.*s' is none of bias, silu, gelu_tanh, residual, rmsnorm, "
                           "gated and quantize, "
                           "which are joined as in bias+silu",
                           name, text, (int)length, word);
        once &= !(bits >> i & 1);
        bits |= 1u << i;
        word += length;
        if (!*word)
            break;
    }
    if (!once || (bits & MK_EPILOGUE_ACTIVATION) == MK_EPILOGUE_ACTIVATION)
        return mk_fail(-EINVAL, error, size,
                       "%s%s: each word once at most, and one of silu and gelu_tanh", name, text);
    if ((bits & MK_EPILOGUE_ROWS) == MK_EPILOGUE_RMSNORM)
        return mk_fail(-EINVAL, error, size,
                       "%s%s: rmsnorm follows a residual, as in residual+rmsnorm", name, text);
    if (bits & MK_EPILOGUE_QUANTIZE && !(bits & MK_EPILOGUE_RMSNORM))
        return mk_fail(-EINVAL, error, size,
                       "%s%s: quantize follows an rmsnorm, as in residual+rmsnorm+quantize", name,
                       text);
    *epilogue = bits;
    return 0;
}

const char *epilogue_text(uint32_t epilogue, char text[EPILOGUE_TEXT])
{
    *text = '\0';
    for (int i = 0; i < NAMES; i++)
        if (epilogue >> i & 1)
            mk_append(text, EPILOGUE_TEXT, "%s%s", *text ? "+" : "", names[i]);
    return text;
}
