/* Whoever ends a command early finds nothing left of it: no half of a file and no process; who
 * stops reading its output still gets its files. */
#include "tests/helpers/command.h"
#include <dirent.h>
#include <sys/stat.h>

#include "tests/helpers/folder.h"

static struct command_run r;

static const char *at(const char *format)
{
    static char line[512];
    snprintf(line, sizeof line, format, folder, folder);
    return line;
}

/* Files of the folder with `part` in their names, of at least so many bytes. */
static int files_of(const char *part, off_t bytes)
{
    int count = 0;
    struct stat s;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        count +=
            strstr(e->d_name, part) && !fstatat(dirfd(d), e->d_name, &s, 0) && s.st_size >= bytes;
    closedir(d);
    return count;
}

static int files_with(const char *part)
{
    return files_of(part, 0);
}

/* A command that writes a trace is stopped in the middle of it, then ended by `number`. */
static void end_while_storing(const char *line, int number)
{
    int storing = 0, state = 0;
    command_start(&r, line, NULL);
    for (int i = 0; i < 6000 && !storing; i++) { /* at most 60 s */
        usleep(10000);
        if (!files_of(".partial", 1)) /* an empty one only tries whether there can be one */
            continue;
        kill(r.pid, SIGSTOP);
        assert_int_equal(waitpid(r.pid, &state, WUNTRACED), r.pid);
        storing = files_with(".partial");
        assert_true(WIFSTOPPED(state) && storing);
    }
    assert_true(storing);
    kill(r.pid, number);
    kill(r.pid, SIGCONT);
    command_finish(&r, 60);
    if (r.signal != number)
        fail_msg("mkernel %s: status %d, signal %d, \"%s\"", line, r.status, r.signal, r.err_text);
    if (files_with(".partial") || files_with("x.db"))
        fail_msg("mkernel %s: a file is left after signal %d", line, number);
}

CASE(test_half_a_trace)
{
    end_while_storing(at("sim ag_gemm --launches 20 --trace %s/x.db"), SIGINT);
    end_while_storing(at("bench trace --file %s/x.db --events 1000000 --nodes 2 --gpus 2"),
                      SIGTERM);
    end_while_storing(at("sim ag_gemm --launches 20 --trace %s/x.db"), SIGHUP);
}

/* Both ends run when it is interrupted, and what was there before is still whole. */
CASE(test_half_a_bench)
{
    pid_t children[4];
    char path[96];
    int found = 0;
    snprintf(path, sizeof path, "%s/fabric.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{}", f);
    fclose(f);
    command_start(
        &r, at("bench fabric --nic soft --iters 10000000 --size 16 --json %s/fabric.json"), NULL);
    for (int i = 0; i < 2000 && !found; i++) {
        usleep(10000);
        found = command_children(r.pid, children, 4);
    }
    assert_int_equal(found, 1);
    kill(r.pid, SIGINT);
    command_finish(&r, 60);
    assert_int_equal(r.signal, SIGINT);
    for (int i = 0; i < 2000 && kill(children[0], 0) == 0; i++) {
        char state_path[64], text[256] = "";
        snprintf(state_path, sizeof state_path, "/proc/%d/stat", (int)children[0]);
        f = fopen(state_path, "r");
        /* nobody is left to bury it */
        if (!f || !fgets(text, sizeof text, f) || strstr(text, ") Z"))
            i = 2000;
        if (f)
            fclose(f);
        if (i < 2000)
            usleep(10000);
        assert_int_not_equal(i, 1999);
    }
    f = fopen(path, "r");
    assert_non_null(f);
    char text[8] = "";
    assert_int_equal(fread(text, 1, sizeof text - 1, f), 2);
    fclose(f);
    assert_string_equal(text, "{}");
}

CASE(test_nobody_reads)
{
    char mkernel[1024], script[2048];
    command_path(mkernel, sizeof mkernel);
    snprintf(script, sizeof script,
             "exec 3>&1; { %s run ag_gemm --exec host --shape 64,64,64 --iters 1 --json "
             "%s/run.json --trace %s/run.db >&4; echo status $? >&3; } 4>&1 >&3 | true",
             mkernel, folder, folder);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", script, NULL});
    command_finish(&r, 60);
    assert_non_null(strstr(r.out_text, "status 3"));
    assert_non_null(strstr(r.err_text, "the table could not be written: Broken pipe"));
    assert_int_equal(command_lines(r.err_text), 1);
    assert_int_equal(files_with("run.json"), 1);
    assert_int_equal(files_with("run.db"), 1);
}

FIXTURE(folder_make, folder_remove)
