/* With any immediates from a peer, the efa fabric's counting raises only flags that there are,
 * never takes one back, counts no more messages than came, and says -EPROTO or goes on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/efa/efa_count.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                            \
    if (!(condition))                                                                              \
    abort()

enum { FLAGS = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct efa_counter c;
    static uint64_t values[FLAGS], landing[EFA_WINDOW];
    uint64_t came = 0, told = 0;
    memset(&c, 0, sizeof c);
    memset(values, 0, sizeof values);
    for (uint32_t i = 0; i < EFA_WINDOW; i++)
        landing[i] = i * 7;
    c = (struct efa_counter){.flags = FLAGS, .values = values, .landing = landing};
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t word;
        memcpy(&word, data, sizeof word);
        struct efa_imm imm = efa_imm_decode(word);
        if (imm.kind == EFA_CREDIT)
            continue;
        if (imm.kind != EFA_TAIL && word & 1u << 13) /* else nearly all flags are none */
            imm.flag %= FLAGS;
        uint64_t before[FLAGS], counted = c.counted;
        memcpy(before, values, sizeof before);
        struct efa_raise raise = {.flag = UINT32_MAX};
        int rc = efa_count_take(&c, &imm, &raise);
        MUST(rc == 0 || rc == 1 || rc == -EPROTO);
        if (rc == -EPROTO)
            return 0; /* the fabric breaks with that peer */
        came++;
        MUST(c.counted >= counted && c.counted - counted <= EFA_WINDOW);
        MUST(rc == 1 || !memcmp(before, values, sizeof before));
        if (rc == 1)
            MUST(raise.flag < FLAGS && raise.value == values[raise.flag] &&
                 raise.value >= before[raise.flag]);
        told = c.untold;
        MUST(told <= came && c.counted <= came);
    }
    return 0;
}
