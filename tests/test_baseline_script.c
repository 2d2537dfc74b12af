/* Of what a script of a baseline wrote before it failed, the sentence is the line that names the
 * error: not torchrun's banner behind it, not a line of the stack. */
#include <unistd.h>

#include "tests/helpers/test.h"
#include "experiments/common/process.h"

static char line[128];

static const char *said(const char *text)
{
    int file = process_said_open();
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    process_said(file, line, sizeof line);
    close(file);
    return line;
}

CASE(test_error)
{
    assert_string_equal(
        said("W1122 Setting OMP_NUM_THREADS\n"
             "[rank1]: Traceback (most recent call last):\n"
             "[rank1]:     raise RuntimeError(\"Load balancing\")\n"
             "[rank1]: RuntimeError: Load balancing requires `is_causal=True`.\n"
             "E1122 failed (exitcode: 1) local_rank: 1 of binary: /usr/bin/python3\n"
             "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
             "============================================================\n"),
        "[rank1]: RuntimeError: Load balancing requires `is_causal=True`.");
}

CASE(test_no_error)
{
    assert_string_equal(said("one\ntwo\n\n  \n"), "two");
    assert_string_equal(said(""), "it said nothing");
    process_said(-1, line, sizeof line);
    assert_string_equal(line, "it said nothing");
}

/* As much as it wrote: the end counts. */
CASE(test_long)
{
    static char text[200000];
    memset(text, 'x', sizeof text - 40);
    strcpy(text + sizeof text - 41, "\nValueError: the last of it\n");
    assert_string_equal(said(text), "ValueError: the last of it");
}
