/* Places in the source, and sentences about mistakes. */
#include "sim/hopper/machine.h"
#include "core/base/sentence.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 4096 };
#define IS_LINE ((uint64_t)1 << 59) /* else it is a program counter */

/* The line that called last. */
uint64_t hopper_where(void)
{
    struct hopper *h = hopper_thread()->block->machine;
    const struct hopper_place *p = hopper_self;
    if (!p->file)
        return p->pc;
    if (!h->lines && !(h->lines = calloc(LINES, sizeof *h->lines)))
        abort();
    uint32_t at = (uint32_t)sim_mix((uintptr_t)p->file + (uint64_t)p->line * 0x9e3779b9u) % LINES;
    while (h->lines[at].file && (h->lines[at].file != p->file || h->lines[at].line != p->line))
        at = (at + 1) % LINES;
    if (!h->lines[at].file) {
        if (h->line_count == LINES / 2)
            return IS_LINE | LINES;
        h->line_count++;
        h->lines[at].file = p->file;
        h->lines[at].line = p->line;
    }
    return IS_LINE | at;
}

/* addr2line names the line of a program counter, where it is installed and the program is not
 * stripped. */
static int line_of_pc(uint64_t pc, char *text, size_t size)
{
    Dl_info info;
    char command[1200], line[512] = "";
    if (!dladdr((void *)(uintptr_t)pc, &info) || !info.dli_fname || strchr(info.dli_fname, '\''))
        return 0;
    const char *file = strstr(info.dli_fname, ".so") || info.dli_fname[0] == '/' ? info.dli_fname
                                                                                 : "/proc/self/exe";
    char exe[600];
    ssize_t n = -1;
    if (file != info.dli_fname && (n = readlink("/proc/self/exe", exe, sizeof exe - 1)) > 0) {
        exe[n] = 0;
        file = exe;
    }
    snprintf(command, sizeof command, "addr2line -e '%s' 0x%lx 2>/dev/null", file,
             pc - 1 - (uintptr_t)info.dli_fbase);
    FILE *p = popen(command, "r");
    if (!p)
        return 0;
    int found = fgets(line, sizeof line, p) != NULL && line[0] != '?';
    pclose(p);
    line[strcspn(line, " \n")] = 0;
    if (found)
        snprintf(text, size, "%s", line);
    return found;
}

/* From the folder of the sources on. */
static void shorten(char *text)
{
    static const char *const roots[] = {"/kernels/", "/tests/", "/core/", "/sim/"};
    for (int i = 0; i < 4; i++) {
        char *at = strstr(text, roots[i]);
        if (at) {
            memmove(text, at + 1, strlen(at));
            return;
        }
    }
}

void where_text(uint64_t where, char *text, size_t size)
{
    struct hopper *h = hopper_machine;
    if (where == WHERE_NETWORK)
        snprintf(text, size, "the network");
    else if (where == WHERE_STREAM)
        snprintf(text, size, "between two launches");
    else if (where & IS_LINE && where % IS_LINE < LINES)
        snprintf(text, size, "%s:%d", h->lines[where % IS_LINE].file,
                 h->lines[where % IS_LINE].line);
    else if (where & IS_LINE || !line_of_pc(where, text, size))
        snprintf(text, size, "pc 0x%lx", where);
    shorten(text);
}

void thread_text(const struct hopper_thread *t, char *text, size_t size)
{
    snprintf(text, size, "rank %u, block %u, thread %u", rank_of(t->block), t->block->number,
             t->number);
}

const char *hopper_error(const struct hopper *h)
{
    return h->failed ? h->sentence : NULL;
}

void hopper_fail(struct hopper *h, const char *format, ...)
{
    if (h->failed)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(h->sentence, sizeof h->sentence, format, args);
    va_end(args);
    h->failed = 1;
}

void hopper_mistake(const char *format, ...)
{
    struct hopper_thread *t = hopper_thread();
    char what[500], who[64], line[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    thread_text(t, who, sizeof who);
    where_text(hopper_where(), line, sizeof line);
    hopper_fail(t->block->machine, "%s, %s: %s", who, line, what);
    hopper_stop();
}

void hopper_trap(void)
{
    hopper_mistake("traps (__trap, or a wait inside the block that outlasted its limit)");
}

/* Whose an entry is. */
static void entry_text(const struct hopper *h, uint32_t entry, char *text, size_t size)
{
    uint32_t per_rank = h->config.sms + 1, sm = entry / KNOWN_ENTRIES,
             number = entry % KNOWN_ENTRIES;
    if (sm % per_rank == h->config.sms) {
        snprintf(text, size, "rank %u's %s", sm / per_rank + h->config.first_rank,
                 number ? "stream" : "NIC");
        return;
    }
    const struct hopper_block *b = &h->ranks[sm / per_rank].blocks[sm % per_rank];
    const char *unit = number < KNOWN_WGMMA        ? "thread"
                       : number < KNOWN_STORE_READ ? "wgmma of warp"
                       : number < KNOWN_LOAD       ? "a bulk store of issuer"
                                                   : "a TMA load by mbarrier";
    number -= number < KNOWN_WGMMA         ? 0
              : number < KNOWN_STORE_READ  ? KNOWN_WGMMA
              : number < KNOWN_STORE_WRITE ? KNOWN_STORE_READ
              : number < KNOWN_LOAD        ? KNOWN_STORE_WRITE
                                           : KNOWN_LOAD;
    snprintf(text, size, "%s %u (rank %u, block %u)", unit, number, rank_of(b), b->number);
}

static void address_text(const struct hopper *h, const uint8_t *address, char *text, size_t size)
{
    for (uint32_t r = 0; r < h->config.ranks; r++)
        for (uint32_t i = 0; i < h->config.sms; i++) {
            const struct hopper_block *b = &h->ranks[r].blocks[i];
            if (b->shared && (size_t)(address - b->shared) < SHARED_ROOM) {
                snprintf(text, size, "shared memory 0x%x of rank %u, block %u",
                         (uint32_t)(address - b->shared) + SHARED_WINDOW, rank_of(b), b->number);
                return;
            }
        }
    snprintf(text, size, "global memory at +0x%zx", (size_t)(address - h->shadow.memory));
}

void hopper_shadow_fault(void *context, enum shadow_fault fault, const struct shadow_event *access,
                         const struct shadow_event *with, const void *address)
{
    struct hopper *h = context;
    char line[200], other[200] = "", who[96], whose[96] = "", place[96];
    if (h->failed)
        return;
    if (h->config.forgives && h->config.forgives(h->config.context)) {
        hopper_unwatch(h);
        return;
    }
    entry_text(h, access->entry, who, sizeof who);
    where_text(access->where, line, sizeof line);
    address_text(h, address, place, sizeof place);
    const char *does = access->kind & ACCESS_WRITE ? "writes" : "reads";
    if (with) {
        entry_text(h, with->entry, whose, sizeof whose);
        where_text(with->where, other, sizeof other);
    }
    switch (fault) {
    case SHADOW_IS_OUTSIDE:
        hopper_fail(h, "%s, %s: %s %s, which is outside all that is allocated", who, line, does,
                    place);
        return;
    case SHADOW_IS_UNWRITTEN:
        hopper_fail(h, "%s, %s: reads %s, which nobody has written", who, line, place);
        return;
    case SHADOW_IS_MBARRIER:
        hopper_fail(h, "%s, %s: %s %s, which is an mbarrier", who, line, does, place);
        return;
    case SHADOW_NO_PROXY:
        hopper_fail(h,
                    "%s, %s: %s %s, which %s, %s, has %s through the other proxy: no proxy fence "
                    "lies between",
                    who, line, does, place, whose, other,
                    with->kind & ACCESS_WRITE ? "written" : "read");
        return;
    default:
        hopper_fail(h, "%s, %s: %s %s, which %s, %s, has %s: nothing orders the two", who, line,
                    does, place, whose, other, fault == SHADOW_RACE_WRITE ? "written" : "read");
    }
}

/* The first of each kind of wait. */
void hopper_deadlock(struct hopper *h)
{
    static const char *const for_what[] = {"",
                                           "the other lanes of its warp",
                                           "a barrier",
                                           "the cluster",
                                           "an mbarrier",
                                           "a word",
                                           "its bulk stores",
                                           "its products",
                                           "registers",
                                           "the launch before it"};
    char who[64], line[200], text[700] = "";
    for (int state = THREAD_WARP; state <= THREAD_LAUNCH; state++) {
        int told = 0;
        for (uint32_t r = 0; r < h->config.ranks; r++)
            for (uint32_t i = 0; i < h->config.sms && !told; i++) {
                struct hopper_block *b = &h->ranks[r].blocks[i];
                for (uint32_t n = 0; b->grid && n < b->threads && !told; n++) {
                    struct hopper_thread *t = &b->thread[n];
                    if (t->state != (enum thread_state)state)
                        continue;
                    told = 1;
                    thread_text(t, who, sizeof who);
                    hopper_self = &t->place;
                    where_text(hopper_where(), line, sizeof line);
                    hopper_self = NULL;
                    mk_append(text, sizeof text, "%s%s waits for %s (%s)", *text ? "; " : "", who,
                              for_what[state], line);
                }
            }
    }
    hopper_fail(h, "nothing can go on: %s", text[0] ? text : "no thread waits");
}
