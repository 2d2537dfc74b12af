/* test_efa_orders finds bugs of the counting: each of these broken variants of the efa fabric,
 * built here from its sources with one line changed, fails in it, and the sources as they are do
 * not. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/helpers/test.h"
#include "tests/helpers/shell.h"

#define CASES "400"

static const char *const sources[] = {"tests/test_efa_orders.c",
                                      "backends/efa/efa.c",
                                      "backends/efa/efa_count.c",
                                      "backends/efa/efa_device.c",
                                      "backends/efa/efa_put.c",
                                      "backends/efa/efa_receive.c",
                                      "backends/efa/efa_raise.c",
                                      "backends/efa/efa_api.c",
                                      "backends/efa/efa_options.c",
                                      "backends/verbs/verbs_api.c",
                                      "backends/verbs/mr.c",
                                      "backends/verbs/verbs_device.c",
                                      "backends/verbs/verbs_options.c",
                                      "backends/option_keys.c",
                                      "backends/memory.c",
                                      "core/base/sentence.c"};

enum { SOURCES = sizeof sources / sizeof *sources };

static const struct mutant {
    const char *what, *file, *from, *to;
} mutants[] = {
    {"the head alone publishes", "backends/efa/efa_count.c",
     "if (!put->head || put->got != put->parts)", "if (!put->head)"},
    {"a put is whole one message early", "backends/efa/efa_count.c",
     "if (!put->head || put->got != put->parts)", "if (!put->head || put->got + 1 < put->parts)"},
    {"the put's number is ignored", "backends/efa/efa_count.c", "&c->puts[imm->number];",
     "&c->puts[0];"},
    {"the growth is always one", "backends/efa/efa_count.c",
     "put->growth ? put->growth : c->landing[imm->number];", "1;"},
    {"a long growth is read from another's place", "backends/efa/efa_count.c",
     "c->landing[imm->number]", "c->landing[imm->number ^ 1]"},
    {"puts are told that have gaps before them", "backends/efa/efa_count.c",
     "while (c->puts[c->counted % EFA_WINDOW].whole) {", "for (int i = 0; i < 1; i++) {"},
    {"nothing is ever told", "backends/efa/efa_count.c", "c->untold += first->parts;", ""},
    {"a second put to a flag does not wait for the first", "backends/efa/efa_put.c",
     "if (peer->sent[put->flag] & 1 || !efa_put_fits(e, peer, &cut)) {",
     "if (!efa_put_fits(e, peer, &cut)) {"},
    {"the window is ignored", "backends/efa/efa_put.c",
     "peer->outstanding + cut->parts > peer->window ||", ""},
    {"the queue's room is ignored", "backends/efa/efa_put.c",
     "if (cut->on_lane[i] > efa_put_room(&e->devices[i]))", "if (0)"},
    {"a put is complete at its first acknowledgement", "backends/efa/efa_put.c",
     "if (f->left && !--f->left)", "if (f->left && !(f->left = 0))"},
    {"growths count from nothing", "backends/efa/efa_put.c",
     "peer->sent[put->flag] = put->value << 1 | 1;", "peer->sent[put->flag] = 1;"},
    {"ENOMEM is taken for success", "backends/efa/efa_put.c", "if (!rc) {\n            d->posted",
     "if (!rc || rc == ENOMEM) {\n            d->posted"},
    {"tails say one message less", "backends/efa/efa_put.c", "efa_imm_tail(number, cut->parts);",
     "efa_imm_tail(number, cut->parts - 1);"},
    {"every head says that it is the whole", "backends/efa/efa_put.c",
     "efa_imm_head(cut->parts == 1,", "efa_imm_head(1,"},
    {"growths land in one place", "backends/efa/efa_put.c",
     "efa_put_queue_word(e, index, cut->first, number, growth,",
     "efa_put_queue_word(e, index, cut->first, 0, growth,"},
    {"a growth of ten is taken for short", "backends/efa/efa_put.c", "growth > EFA_MAX_GROWTH;",
     "growth > 10;"},
    {"credits come too late", "backends/efa/efa_put.c", "untold < e->window / 4",
     "untold <= e->window"},
    {"receives are not replenished", "backends/efa/efa_receive.c",
     "d->receives += !e->unsolicited;", ""},
    {"a credit gives back one message a put", "backends/efa/efa_receive.c",
     "peer->flights[peer->counted++ % EFA_WINDOW].parts;", "(peer->counted++, 1);"},
    {"receives are taken for which no word is free", "backends/efa/efa_receive.c",
     "room < POLL_BATCH ?", "0 ?"},
    {"a word is used again before it has been copied", "backends/efa/efa_raise.c",
     "(uint32_t)(q->made - q->ended)", "(uint32_t)(q->made - q->started)"},
    {"a flag's copies start anew where one has been refused", "backends/efa/efa_raise.c",
     "if (ticket < 0)", "if (ticket < 0 && ++q->started)"},
    {"a sender is known by its QP's number alone", "backends/efa/efa_device.c",
     "MK_ORDER(x->ahn, y->ahn) ?: ", ""},
};

enum { MUTANTS = sizeof mutants / sizeof *mutants };

static char directory[64];

static void must(const char *command)
{
    char out[4096];
    if (shell(command, out, sizeof out))
        fail_msg("%s\n%s", command, out);
}

static const char *reason_to_skip(void)
{
    char out[64];
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return "it builds the sources without sanitizers, in another run";
#endif
    if (access(sources[0], R_OK))
        return "it reads the sources; run it in the repository's root";
    return shell("command -v ${CC:-cc} >/dev/null 2>&1", out, sizeof out) ? "no C compiler" : NULL;
}

static void compile(const char *source, uint32_t number)
{
    char command[512];
    snprintf(command, sizeof command,
             "exec 2>&1; ${CC:-cc} -std=gnu11 -D_GNU_SOURCE -O1 -w -I. -DMK_HAVE_VERBS "
             "-DMK_HAVE_EFA -c %s -o %s/%u.o",
             source, directory, number);
    must(command);
}

/* Links and runs; what it says is in out. */
static int run(char *out, size_t size)
{
    char command[512];
    snprintf(command, sizeof command,
             "exec 2>&1; ${CC:-cc} -pthread -o %s/test %s/*.o -lcmocka -ldl && EFA_CASES=" CASES
             " timeout 60 %s/test",
             directory, directory, directory);
    return shell(command, out, size);
}

static uint32_t number_of(const char *file)
{
    uint32_t i = 0;
    while (i < SOURCES && strcmp(sources[i], file))
        i++;
    assert_true(i < SOURCES);
    return i;
}

/* Writes the file with its one place changed. */
static void write_mutant(const struct mutant *m, const char *path)
{
    static char text[1 << 16];
    test_read_file(m->file, text, sizeof text);
    char *at = strstr(text, m->from);
    if (!at || strstr(at + 1, m->from))
        fail_msg("%s has not one place that reads: %s", m->file, m->from);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, m->to, at + strlen(m->from));
    assert_int_equal(fclose(f), 0);
}

/* The test's own complaint; a compiler's or linker's error is none. */
static const char *complaint(char *out)
{
    char *at = strstr(out, "EFA_SEED=");
    if (!at)
        at = strstr(out, "ERROR: ");
    if (!at)
        at = strstr(out, "exception");
    if (!at)
        fail_msg("it was not the test that failed:\n%s", out);
    at[strcspn(at, "\n")] = '\0';
    return at;
}

CASE(test_mutants)
{
    static char out[65536];
    char path[128], command[128];
    const char *why = reason_to_skip();
    if (why) {
        print_message("skipped: %s\n", why);
        skip();
    }
    snprintf(directory, sizeof directory, "/tmp/efa-XXXXXX");
    assert_non_null(mkdtemp(directory));
    for (uint32_t i = 0; i < SOURCES; i++)
        compile(sources[i], i);
    if (run(out, sizeof out))
        fail_msg("the sources as they are fail:\n%s", out);
    uint32_t survivors = 0;
    for (uint32_t i = 0; i < MUTANTS; i++) {
        uint32_t number = number_of(mutants[i].file);
        snprintf(path, sizeof path, "%s/mutant.c", directory);
        write_mutant(&mutants[i], path);
        compile(path, number);
        if (!run(out, sizeof out)) {
            print_message("survives: %s\n", mutants[i].what);
            survivors++;
        } else {
            print_message("%-52s %s\n", mutants[i].what, complaint(out));
        }
        compile(mutants[i].file, number);
    }
    snprintf(command, sizeof command, "rm -r %s", directory);
    must(command);
    assert_int_equal(survivors, 0);
}
