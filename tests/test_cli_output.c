/* What a command writes, a trace, an export or a picture of one, is there whole or not at all:
 * whatever ends the writing of it early (a signal, a limit, a full disk, a drawing program that
 * fails), the file that had the name before is as it was, nothing else is left, no process either,
 * and the exit status says so. Who stops reading its output still gets its files. */
#include "tests/helpers/command.h"
#include <dirent.h>
#include <sys/stat.h>

#include "tests/helpers/folder.h"

static struct command_run r;

static const char *at(const char *format)
{
    static char line[8][2048];
    static int turn;
    snprintf(line[turn = (turn + 1) % 8], sizeof *line, format, folder, folder, folder, folder);
    return line[turn];
}

static void run(const char *line)
{
    command_start(&r, line, NULL);
    command_finish(&r, 120);
}

/* In a shell, where $M is mkernel and a python3 of the test's own is the first. */
static void in_shell(const char *script)
{
    char mkernel[1024], line[4096];
    command_path(mkernel, sizeof mkernel);
    snprintf(line, sizeof line, "M=%s; PATH=%s/bin:$PATH; cd %s || exit 99; %s", mkernel, folder,
             folder, script);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", line, NULL});
}

static void put(const char *name, const char *text)
{
    test_write_file(at(name), text);
}

/* Whether a file holds exactly this. */
static int holds(const char *name, const char *text)
{
    char got[64] = "";
    FILE *f = fopen(at(name), "r");
    assert_non_null(f);
    size_t n = fread(got, 1, sizeof got - 1, f);
    fclose(f);
    return n == strlen(text) && !memcmp(got, text, n);
}

/* Files with `part` in their names, of at least so many bytes. */
static int files_with(const char *part, off_t bytes)
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

static void assert_kept(const char *what)
{
    if (!holds("%s/old", "what was there"))
        fail_msg("%s: the file that was there is not as it was", what);
    if (files_with(".partial", 0))
        fail_msg("%s: a half is left", what);
}

/* Stops it while it writes. 0 where it was done before. */
static int stop_while_writing(const char *line)
{
    int state = 0;
    put("%s/old", "what was there");
    command_start(&r, line, NULL);
    for (int i = 0; i < 6000; i++) { /* at most 60 s */
        usleep(10000);
        if (waitpid(r.pid, &state, WNOHANG) == r.pid)
            return 0;
        if (!files_with(".partial", 1))
            continue;
        kill(r.pid, SIGSTOP);
        assert_int_equal(waitpid(r.pid, &state, WUNTRACED), r.pid);
        return WIFSTOPPED(state) && files_with(".partial", 1);
    }
    return 0;
}

static void end_while_writing(const char *line, int number)
{
    for (int i = 0; !stop_while_writing(line); i++)
        if (i == 4)
            fail_msg("mkernel %s: nothing is written beside the old file", line);
    kill(r.pid, number);
    kill(r.pid, SIGCONT);
    command_finish(&r, 60);
    assert_int_equal(r.signal, number);
    assert_kept(line);
}

CASE(test_signal)
{
    end_while_writing(at("trace export %s/big.db --out %s/old"), SIGINT);
    end_while_writing(at("trace export %s/big.db --out %s/old"), SIGTERM);
    end_while_writing(at("sim ag_gemm --launches 20 --trace %s/old"), SIGINT);
    end_while_writing(at("sim ag_gemm --launches 20 --trace %s/old"), SIGHUP);
    end_while_writing(at("bench trace --file %s/old --events 1000000 --nodes 2 --gpus 2"), SIGTERM);
}

/* Waits, 60 s at most, for the end of a process whose parent is gone: it may lie there dead. */
static void assert_ends(pid_t pid)
{
    for (int i = 0; i < 6000 && !kill(pid, 0); i++) {
        char text[256] = "", path[64];
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *f = fopen(path, "r");
        const int dead = !f || !fgets(text, sizeof text, f) || strstr(text, ") Z");
        if (f)
            fclose(f);
        if (dead)
            return;
        usleep(10000);
        assert_int_not_equal(i, 5999);
    }
}

/* Its python3 draws for ever; it ends with it. */
CASE(test_signal_while_drawing)
{
    pid_t drawing[4];
    put("%s/old", "what was there");
    put("%s/bin/python3", "#!/bin/sh\necho drawing\nexec sleep 1000\n");
    in_shell("ln -sf old old.png; exec $M trace plot small.db --out old.png");
    for (int i = 0; i < 6000; i++) {
        if (files_with(".partial", 0) && command_children(r.pid, drawing, 4) == 1)
            break;
        usleep(10000);
        assert_int_not_equal(i, 5999);
    }
    kill(r.pid, SIGINT);
    command_finish(&r, 60);
    assert_int_equal(r.signal, SIGINT);
    assert_kept("trace plot");
    assert_ends(drawing[0]);
}

/* Both ends of a bench run when it is interrupted. */
CASE(test_signal_while_measuring)
{
    pid_t children[4];
    int found = 0;
    put("%s/old", "what was there");
    command_start(&r, at("bench fabric --nic soft --iters 10000000 --size 16 --json %s/old"), NULL);
    for (int i = 0; i < 2000 && !found; i++) {
        usleep(10000);
        found = command_children(r.pid, children, 4);
    }
    assert_int_equal(found, 1);
    kill(r.pid, SIGINT);
    command_finish(&r, 60);
    assert_int_equal(r.signal, SIGINT);
    assert_ends(children[0]);
    assert_kept("bench fabric");
}

CASE(test_nobody_reads)
{
    in_shell("exec 3>&1; { $M run ag_gemm --exec host --shape 64,64,64 --iters 1 --json run.json "
             "--trace run.db >&4; echo status $? >&3; } 4>&1 >&3 | true");
    command_finish(&r, 60);
    assert_non_null(strstr(r.out_text, "status 3"));
    assert_non_null(strstr(r.err_text, "the table could not be written: Broken pipe"));
    assert_int_equal(command_lines(r.err_text), 1);
    assert_int_equal(files_with("run.json", 0), 1);
    assert_int_equal(files_with("run.db", 0), 1);
}

static void expect_failed(const char *script, const char *says)
{
    put("%s/old", "what was there");
    in_shell(script);
    command_finish(&r, 120);
    if (r.status != 3 || !strstr(r.err_text, says) || command_lines(r.err_text) != 1)
        fail_msg("%s: status %d, \"%s\" is not one sentence with \"%s\"", script, r.status,
                 r.err_text, says);
    assert_kept(script);
}

/* Half of it finds room. (dash counts blocks of 512 bytes, bash of 1024.) */
CASE(test_limit)
{
    put("%s/bin/python3", "#!/bin/sh\nhead -c 20000000 /dev/zero\n");
    expect_failed("ulimit -f 64; exec $M trace export small.db --out old", "File too large");
    expect_failed("ln -sf old old.png; ulimit -f 16000; exec $M trace plot small.db --out old.png",
                  "File too large");
}

/* A disk of 64 KiB, where this user may make one. */
CASE(test_full_disk)
{
    put("%s/bin/python3", "#!/bin/sh\nhead -c 20000000 /dev/zero\n");
    in_shell("mkdir disk && unshare -m sh -c 'mount -t tmpfs -o size=65536 none disk'");
    command_finish(&r, 60);
    if (r.status) {
        print_message("skipped: a file system cannot be mounted here\n");
        skip();
    }
    expect_failed("exec unshare -m sh -c 'mount -t tmpfs -o size=65536 none disk; echo kept "
                  ">disk/x.json; $0 trace "
                  "export small.db"
                  " --out disk/x.json; s=$?; [ \"$(ls disk) $(cat disk/x.json)\" = \"x.json kept\" "
                  "] && exit $s' $M",
                  "No space left on device");
    expect_failed("exec unshare -m sh -c 'mount -t tmpfs -o size=65536 none disk; echo kept "
                  ">disk/x.png; $0 trace plot "
                  "small.db"
                  " --out disk/x.png; s=$?; [ \"$(ls disk) $(cat disk/x.png)\" = \"x.png kept\" ] "
                  "&& exit $s' $M",
                  "No space left on device");
}

/* A python3 that fails has drawn nothing, whatever it has written. */
CASE(test_half_a_picture)
{
    put("%s/bin/python3", "#!/bin/sh\nprintf '<svg></svg>\\n'\necho no font >&2\nexit 1\n");
    expect_failed("ln -sf old old.svg; exec $M trace plot small.db --out old.svg",
                  "python3 could not draw 'old.svg': no font");
    put("%s/bin/python3", "#!/bin/sh\necho matplotlib is not installed >&2\nexit 3\n");
    expect_failed("ln -sf old old.svg; exec $M trace plot small.db --out old.svg",
                  "matplotlib is not installed");
    expect_failed("rm bin/python3; ln -sf old old.svg; PATH=$PWD/bin; exec $M trace plot small.db "
                  "--out old.svg",
                  "python3 is not installed (packages python3 and python3-matplotlib)");
    put("%s/bin/python3", "#!/bin/sh\nprintf '<svg></svg>\\n'\n");
    assert_int_equal(chmod(at("%s/bin/python3"), 0700), 0);
    in_shell("ln -sf old old.svg; exec $M trace plot small.db --out old.svg");
    command_finish(&r, 60);
    assert_int_equal(r.status, 0);
    assert_true(holds("%s/old", "<svg></svg>\n"));
}

/* A link stays one, where it leads to no file too, and the mode of what it leads to is kept; a pipe
 * is written to. */
CASE(test_what_was_there)
{
    struct stat s;
    put("%s/old", "what was there");
    assert_int_equal(chmod(at("%s/old"), 0640), 0);
    assert_int_equal(symlink("old", at("%s/link.json")), 0);
    run(at("trace export %s/small.db --out %s/link.json"));
    assert_int_equal(r.status, 0);
    assert_true(lstat(at("%s/link.json"), &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(lstat(at("%s/old"), &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 1000 &&
                (s.st_mode & 0777) == 0640);
    in_shell(
        "mkfifo pipe; cat pipe >copy.json & $M trace export small.db --out pipe; s=$?; wait; cmp "
        "copy.json old && exit $s");
    command_finish(&r, 60);
    if (r.status || r.err_used)
        fail_msg("through a pipe: status %d, \"%s\" \"%s\"", r.status, r.out_text, r.err_text);
    in_shell("$M trace export small.db --out /dev/stdout >copy.json && cmp copy.json old");
    command_finish(&r, 60);
    assert_int_equal(r.status, 0);
    in_shell("ln -s made.db new.db; $M sim ag_gemm --shape 512,512,512 --quiet --trace new.db && "
             "[ -L new.db ] && [ -s made.db ]");
    command_finish(&r, 60);
    if (r.status)
        fail_msg("through a link to no file: status %d, \"%s\"", r.status, r.err_text);
}

/* Compressed where the name or an option says so; whatever ends gzip early, nothing looks like a
 * whole file. */
CASE(test_gzip)
{
    in_shell("$M trace export small.db --out plain.json && $M trace export small.db --out "
             "x.json.gz && gzip -dc x.json.gz | cmp - plain.json"
             " && $M trace export small.db --gzip | gzip -dc | cmp - plain.json && [ $(wc -c "
             "<x.json.gz) -lt $(($(wc -c <plain.json) / 5)) ]");
    command_finish(&r, 120);
    if (r.status || r.err_used)
        fail_msg("status %d, \"%s\" \"%s\"", r.status, r.out_text, r.err_text);
    end_while_writing(at("trace export %s/big.db --gzip --out %s/old"), SIGINT);
    put("%s/bin/gzip", "#!/bin/sh\ncat\n");
    assert_int_equal(chmod(at("%s/bin/gzip"), 0700), 0);
    expect_failed("ulimit -f 64; exec $M trace export small.db --gzip --out old", "cannot write");
    put("%s/bin/gzip",
        "#!/bin/sh\nhead -c 9000\necho 'gzip: stdout: No space left on device' >&2\nexit 1\n");
    expect_failed("exec $M trace export small.db --gzip --out old",
                  "gzip failed: No space left on device");
    assert_int_equal(unlink(at("%s/bin/gzip")), 0);
    expect_failed("PATH=$PWD/bin; exec $M trace export small.db --gzip --out old",
                  "gzip is not installed");
    expect_failed("exec $M trace export small.db --gzip >/dev/full",
                  "gzip failed: No space left on device");
}

static int set_up(void **state)
{
    if (folder_make(state) || mkdir(at("%s/bin"), 0700))
        return -1;
    put("%s/bin/python3", "#!/bin/sh\n");
    if (chmod(at("%s/bin/python3"), 0700))
        return -1;
    run(at("sim ag_gemm --shape 512,512,512 --launches 4 --trace %s/small.db"));
    if (!r.status)
        run(at("sim ag_gemm --launches 20 --trace %s/big.db"));
    return r.status;
}

FIXTURE(set_up, folder_remove)
