/* A rank ends when its parent is killed, by the pipe alone: also where the kernel does not tell
 * it. */
#include "experiments/common/spawn.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/helpers/test.h"

/* A rank as spawn_ranks starts one, but for PR_SET_PDEATHSIG: works until something ends it. `life`
 * is its, and closes with it. */
static void be_rank(int report_fd, int words_fd, int life)
{
    struct spawn_identity me;
    char text[160];
    snprintf(text, sizeof text, "0,1,1,-1,%d,%d,token", report_fd, words_fd);
    setenv("MKERNEL_SPAWNED", text, 1);
    if (!spawn_identity(&me) || me.report_fd != report_fd || getenv("MKERNEL_SPAWNED"))
        _exit(1);
    if (write(life, "r", 1) != 1)
        _exit(1);
    for (volatile unsigned i = 0;; i++)
        ;
}

/* 1: the other end of `fd` was closed within `ms`. */
static int closes(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;
    return poll(&p, 1, ms) == 1 && read(fd, &c, 1) == 0;
}

CASE(test_parent_killed)
{
    int life[2];
    char c;
    assert_int_equal(pipe(life), 0);
    pid_t parent = fork();
    if (!parent) {
        int reports[2], words = memfd_create("words", 0);
        close(life[0]);
        if (pipe(reports) || ftruncate(words, 1 << 20))
            _exit(1);
        if (!fork()) {
            close(reports[0]);
            be_rank(reports[1], words, life[1]);
        }
        close(reports[1]);
        close(life[1]);
        pause();
        _exit(1);
    }
    close(life[1]);
    assert_int_equal(read(life[0], &c, 1), 1);
    assert_false(closes(life[0], 100)); /* it works as long as the parent lives */
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    assert_true(closes(life[0], 2000));
    close(life[0]);
}
