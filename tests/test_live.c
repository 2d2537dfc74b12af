/* A running job publishes its progress words: the live viewer says what each CTA does, follows a
 * wait to the rank that all others wait for, and names a rank that was stopped in a real run. A job
 * without a place to publish runs all the same, and nothing is left behind. */
/* WAITS */
#include "tests/helpers/live_stage.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/comm/comm.h"
#include "tests/helpers/command.h"

static char folder[] = "/tmp/mk_live_XXXXXX", environment[96];

/* ---- a made-up snapshot ---- */

/* Each screen, size and plane once; at every size a screen in ASCII holds nothing else. */
CASE(golden_screens)
{
    static const struct {
        const char *name, *keys;
        int width, height, ascii;
    } golden[] = {
        {"start", "", 200, 60, 1}, {"start", "", 30, 6, 1},
        {"worst", "w", 40, 10, 0}, {"open", "Z Down Space Down*2", 120, 40, 0},
        {"help", "?", 80, 24, 0},
    };
    enum { GOLDEN = sizeof golden / sizeof *golden };
    char path[160];
    int wrong = 0;
    for (int i = 0; i < GOLDEN; i++)
        for (int k = 0; k <= GOLDEN; k++) { /* its own size and plane; every size in ASCII */
            const int size = k < GOLDEN ? k : i, ascii = k < GOLDEN || golden[i].ascii;
            struct live_stage s;
            live_stage_open(&s, golden[size].width, golden[size].height, ascii);
            live_stage_play(&s, golden[i].keys);
            snprintf(path, sizeof path, "tests/golden/live-%s-%dx%d-%s.txt", golden[i].name,
                     golden[i].width, golden[i].height, ascii ? "ascii" : "utf8");
            char *text = screen_text(&s.cells, !ascii);
            wrong += k == GOLDEN && !screen_golden(path, text);
            for (const char *c = text; ascii && *c; c++)
                assert_true((unsigned char)*c < 0x80);
            free(text);
            live_stage_close(&s);
        }
    assert_int_equal(wrong, 0);
}

/* Rank 0 of node 0 misses a chunk of rank 3 (node 1), which rank 1 would hand on; rank 1 waits for
 * the same; rank 3 is stopped. */
CASE(a_chain_goes_over_the_relay_to_the_rank_that_is_stopped)
{
    struct live_stage s;
    struct live_chain c;
    live_stage_open(&s, 120, 40, 0);
    live_chain(&s.job, 0, 0, &c);
    assert_int_equal(c.count, 3);
    assert_int_equal(c.step[0].rank, 0);
    assert_int_equal(c.step[1].rank, 1);
    assert_int_equal(c.step[2].rank, 3);
    assert_int_equal(c.root, 3);
    assert_non_null(strstr(c.step[0].text, "chunk 0 of rank 3's A"));
    assert_non_null(strstr(c.step[2].text, "rank 3 is stopped"));
    assert_non_null(
        strstr(s.m.verdict.text,
               "rank 3 is stopped (process 4714; SIGCONT lets it go on): 19 of 36 CTAs"));
    live_stage_close(&s);
}

/* `w` where no CTA waits says so, and no longer once one does. */
CASE(an_answer_goes_when_it_no_longer_holds)
{
    struct live_stage s;
    live_stage_open(&s, 80, 24, 0);
    struct live_word waiting = s.job.ranks[0].words[0];
    for (uint32_t i = 0; i < 4; i++) {
        s.job.ranks[i].state = LIVE_RUNS;
        for (uint32_t k = 0; k < 9; k++)
            s.job.ranks[i].words[k] =
                (struct live_word){7ull << 32 | mk_event_what(MK_EV_TILE, 0, 11), LIVE_STAGE_NOW};
    }
    assert_int_equal(live_model_take(&s.m, &s.job), 0);
    live_stage_play(&s, "w");
    assert_string_equal(s.m.message, s.m.verdict.text);
    assert_int_equal(live_model_take(&s.m, &s.job), 0);
    assert_string_equal(s.m.message, s.m.verdict.text);
    s.job.ranks[0].words[0] = waiting;
    assert_int_equal(live_model_take(&s.m, &s.job), 0);
    assert_string_equal(s.m.message, "");
    live_stage_close(&s);
}

CASE(a_relay_that_is_stopped_is_named_itself)
{
    struct live_stage s;
    struct live_chain c;
    live_stage_open(&s, 120, 40, 0);
    s.job.ranks[3].state = LIVE_RUNS;
    s.job.ranks[1].state = LIVE_SILENT;
    live_chain(&s.job, 0, 0, &c);
    assert_int_equal(c.root, 1);
    assert_non_null(strstr(c.step[c.count - 1].text, "rank 1 has not run for"));
    live_stage_close(&s);
}

CASE(ranks_that_wait_for_each_other_are_called_a_circle)
{
    struct live_stage s;
    struct live_chain c;
    live_stage_open(&s, 120, 40, 0);
    for (uint32_t i = 0; i < 4; i++)
        s.job.ranks[i].state = LIVE_RUNS;
    for (uint32_t i = 0; i < s.job.ranks[0].header.ctas; i++) {
        live_stage_wait(&s, 0, i, 1, 7, 2000);
        live_stage_wait(&s, 1, i, 0, 7, 2000);
    }
    live_chain(&s.job, 0, 0, &c);
    assert_int_equal(c.count, 3);
    assert_non_null(strstr(c.step[2].text, "circle"));
    live_stage_close(&s);
}

CASE(a_rank_that_has_not_begun_the_launch_is_named_with_what_it_does)
{
    struct live_stage s;
    struct live_chain c;
    live_stage_open(&s, 120, 40, 0);
    s.job.ranks[3].state = LIVE_RUNS;
    s.job.ranks[3].header.phase = LIVE_CHECKS;
    for (uint32_t i = 0; i < s.job.ranks[3].header.ctas; i++)
        s.job.ranks[3].words[i].word = 6ull << 32;
    live_chain(&s.job, 0, 0, &c);
    assert_int_equal(c.root, 3);
    assert_non_null(
        strstr(c.step[c.count - 1].text, "rank 3 has not begun launch 7: it checks the result"));
    live_stage_close(&s);
}

/* Whatever words a rank publishes, chains end and screens are drawn. */
CASE(any_words_make_a_screen)
{
    uint64_t x = 88172645463325252ull;
    for (int round = 0; round < 300; round++) {
        struct live_stage s;
        live_stage_open(&s, 40 + round % 90, 10 + round % 40, round & 1);
        for (uint32_t i = 0; i < 4; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            s.job.ranks[i].state = (enum live_state)(x % LIVE_STATES);
            s.job.ranks[i].header.phase = (uint32_t)(x >> 40);
            for (uint32_t k = 0; k < s.job.ranks[i].header.ctas; k++) {
                x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                s.job.ranks[i].words[k].word = x & (round % 3 ? 0x00000007000003f7ull : ~0ull);
                s.job.ranks[i].words[k].since = x >> 30;
            }
        }
        live_model_take(&s.m, &s.job);
        live_stage_play(&s, "w Enter*3 Backspace Z j j Space G k Space Enter g PageDown p ? ?");
        live_stage_close(&s);
    }
}

/* ---- a real run ---- */

static int is_empty(const char *path)
{
    return rmdir(path) == 0;
}

static pid_t rank_pid(const char *job, int rank)
{
    struct live_header h = {.pid = 0};
    char path[256];
    snprintf(path, sizeof path, "%s/rank-%d", job, rank);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, &h, sizeof h);
    if (fd >= 0)
        close(fd);
    return n == (ssize_t)sizeof h ? h.pid : 0;
}

static void moment(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

CASE(a_stopped_rank_of_a_real_run_is_named)
{
    static struct command_run job, look;
    char path[128], line[256], name[64];
    pid_t stopped = 0;
    int named = 0, blamed = 0;
    command_start(&job,
                  "run ag_gemm --nodes 2 --gpus 2 --exec host --nic soft --shape 1024,512,512 "
                  "--iters 1000000 --timeout 60",
                  environment, NULL);
    snprintf(path, sizeof path, "%s/run-%d", folder, (int)job.pid);
    for (int i = 0; i < 2400 && !(stopped = rank_pid(path, 2)); i++)
        moment(25);
    assert_true(stopped > 0);
    snprintf(line, sizeof line, "tui --attach %d --dump-screen --size 160x24", (int)job.pid);
    snprintf(name, sizeof name, "rank 2 is stopped (process %d", (int)stopped);
    /* Where it happens to stop between two launches, no CTA waits: once more. */
    for (int i = 0; i < 12 && !(named && blamed); i++) {
        moment(150 + 37 * i);
        kill(stopped, SIGSTOP);
        moment(900);
        command_start(&look, line, environment, NULL);
        command_finish(&look, 60);
        assert_int_equal(look.status, 0);
        named = strstr(look.out_text, name) != NULL;
        blamed = strstr(look.out_text, "in the end for it") != NULL;
        if (!named)
            fail_msg("the screen names no rank:\n%s", look.out_text);
        kill(stopped, SIGCONT);
    }
    assert_true(blamed);
    kill(job.pid, SIGTERM);
    command_finish(&job, 60);
    assert_true(is_empty(folder));
}

CASE(a_job_that_cannot_publish_runs_all_the_same)
{
    static const char *const places[] = {"MKERNEL_LIVE=/proc/none", "MKERNEL_LIVE=off",
                                         "MKERNEL_LIVE=/dev/null"};
    static struct command_run job;
    for (int i = 0; i < 3; i++) {
        char place[64];
        snprintf(place, sizeof place, "%s", places[i]);
        command_start(&job, "run ag_gemm --gpus 2 --exec host --shape 64,64,64 --iters 2 --check",
                      place, NULL);
        command_finish(&job, 60);
        assert_int_equal(job.status, 0);
    }
}

/* That a file cannot be opened says nothing of what is in it. */
CASE(what_cannot_be_read_is_not_called_foreign)
{
    struct live_job job;
    struct rlimit before, few;
    char path[96], file[128], error[256];
    snprintf(path, sizeof path, "%s/run-1", folder);
    snprintf(file, sizeof file, "%s/rank-0", path);
    assert_int_equal(mkdir(folder, 0700) && errno != EEXIST, 0);
    assert_int_equal(mkdir(path, 0700), 0);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)fd + 1; /* the folder, and no file of it */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int result = live_open(&job, path, error, sizeof error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(result, -EMFILE);
    assert_non_null(strstr(error, "cannot be read: Too many open files"));
    assert_int_equal(live_open(&job, file, error, sizeof error), -ENOTDIR);
    assert_non_null(strstr(error, "no job runs at"));
    unlink(file);
    rmdir(path);
    assert_true(is_empty(folder));
}

/* A full disk costs the picture and nothing else. */
CASE(where_there_is_no_room_nothing_is_left)
{
    static struct mk_plan plan = {.problem.topo = {1, 1, 0},
                                  .problem.tuning.split.ctas = {1, 0, 0, 0}};
    static struct mk_comm comm;
    uint64_t word = 0;
    struct live *l = NULL;
    struct rlimit before, none;
    char path[96];
    comm.progress = &word;
    comm.progress_count = 1;
    snprintf(path, sizeof path, "%s/run-1", folder);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 1;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int result = live_begin(&l, path, &comm, &plan, 0, 1, "a command");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(result, -EFBIG);
    assert_null(l);
    assert_true(is_empty(folder));
}

/* What a killed job left is no job, and the next one takes it away. */
CASE(what_a_killed_job_left_is_ignored_and_taken_away)
{
    static struct command_run job, look;
    char path[128];
    mkdir(folder, 0700);
    command_start(&job, "run ag_gemm --gpus 2 --exec host --shape 64,64,64 --iters 1000000",
                  environment, NULL);
    snprintf(path, sizeof path, "%s/run-%d", folder, (int)job.pid);
    for (int i = 0; i < 2400 && !(rank_pid(path, 0) && rank_pid(path, 1)); i++)
        moment(25);
    kill(job.pid, SIGKILL); /* its ranks die with it, and its files stay */
    command_finish(&job, 60);
    for (int i = 0; i < 2400 && (!kill(rank_pid(path, 0), 0) || !kill(rank_pid(path, 1), 0)); i++)
        moment(25);
    moment(1100);
    assert_int_equal(access(path, F_OK), 0);
    command_start(&look, "tui --attach --dump-screen", environment, NULL);
    command_finish(&look, 60);
    assert_int_equal(look.status, 2);
    assert_non_null(strstr(look.err_text, "no `mkernel run`"));
    command_start(&job, "run ag_gemm --gpus 1 --exec host --shape 64,64,64 --iters 2", environment,
                  NULL);
    command_finish(&job, 60);
    assert_int_equal(job.status, 0);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_true(is_empty(folder));
}

/* Folders that are not this user's alone: another's, one that others may write to, and a link that
 * leads to one of our own. */
enum foreign { ANOTHERS, GROUPS, EVERYBODYS, A_LINK, FOREIGN };

static void make_foreign(enum foreign kind, const char *path)
{
    static const mode_t modes[FOREIGN] = {0700, 0720, 0702, 0700};
    char own[160];
    snprintf(own, sizeof own, "%s%s", path, kind == A_LINK ? ".own" : "");
    assert_int_equal(mkdir(own, 0700), 0);
    assert_int_equal(chmod(own, modes[kind]), 0);
    if (kind == ANOTHERS && !geteuid())
        assert_int_equal(chown(own, 65534, 65534), 0);
    if (kind == A_LINK)
        assert_int_equal(symlink(own, path), 0);
}

static void remove_foreign(enum foreign kind, const char *path)
{
    char own[160];
    snprintf(own, sizeof own, "%s%s", path, kind == A_LINK ? ".own" : "");
    if (kind == A_LINK)
        unlink(path);
    assert_int_equal(rmdir(own), 0);
}

static void publish(const char *where, uint64_t *word, struct live **l, int *result)
{
    static const struct mk_problem q = {
        .op = MK_OP_AG_GEMM, .exec = MK_EXEC_HOST, .topo = {1, 1, 0}, .m = 64, .n = 64, .k = 64};
    static struct mk_plan plan;
    static struct mk_comm comm;
    char error[256];
    assert_int_equal(plan_build(&plan, &q, 0, 0, error, sizeof error), 0);
    comm.progress = word;
    comm.progress_count = 1;
    *result = live_begin(l, where, &comm, &plan, 0, 1, "a command");
}

/* A user that may write to a rank's folder may say what its job does; a rank publishes into none of
 * these. */
CASE(nothing_is_published_where_others_may_write)
{
    char base[96], path[128];
    uint64_t word = 0;
    struct live *l;
    int result;
    snprintf(base, sizeof base, "%s/base", folder);
    mkdir(folder, 0700);
    for (int kind = geteuid() ? GROUPS : ANOTHERS; kind < FOREIGN; kind++) {
        snprintf(path, sizeof path, "%s/run-1", base);
        make_foreign((enum foreign)kind, base); /* the place of all jobs */
        publish(path, &word, &l, &result);
        if (result != -EPERM)
            fail_msg("base of kind %d: %d", kind, result);
        assert_null(l);
        remove_foreign((enum foreign)kind, base);
        assert_int_equal(mkdir(base, 0700), 0);
        make_foreign((enum foreign)kind, path); /* the job's own */
        publish(path, &word, &l, &result);
        if (result != -EPERM)
            fail_msg("folder of kind %d: %d", kind, result);
        assert_null(l);
        /* live_begin takes an empty folder of its name away, and a link is none */
        if (kind == A_LINK) {
            remove_foreign(A_LINK, path);
        } else {
            rmdir(path);
        }
        assert_int_equal(rmdir(base), 0);
    }
    if (geteuid()) { /* /usr is root's */
        publish("/usr/run-1", &word, &l, &result);
        assert_int_equal(result, -EPERM);
    }
    assert_true(is_empty(folder));
}

/* Nor is anything believed that lies there, whether a viewer is given the folder, its name, or
 * looks by itself. */
CASE(what_others_may_have_written_is_no_job)
{
    char path[128], file[160], variable[160], text[64], error[300];
    struct live_job job;
    static struct command_run look;
    uint64_t word = 0;
    struct live *l;
    int result;
    mkdir(folder, 0700);
    snprintf(path, sizeof path, "%s/run-1", folder);
    snprintf(file, sizeof file, "%s/rank-0", path);
    snprintf(variable, sizeof variable, "%s/link", folder);
    publish(path, &word, &l, &result);
    assert_int_equal(result, 0);
    assert_int_equal(live_open(&job, path, error, sizeof error), 0);
    assert_int_equal(job.ranks[0].header.pid, getpid());
    for (int beyond = 0; beyond < 2; beyond++) { /* a process by its number, and no other number */
        snprintf(text, sizeof text, "%ld", ((long)beyond << 32) + getpid());
        setenv("MKERNEL_LIVE", folder, 1);
        assert_int_equal(live_find(file, sizeof file, text, error, sizeof error) == 0, !beyond);
        unsetenv("MKERNEL_LIVE");
    }
    snprintf(file, sizeof file, "%s/rank-0", path);
    for (int place = 0; place < 3; place++) { /* where all jobs are, this one's folder, its file */
        const char *spoilt = place == 0 ? folder : place == 1 ? path : file;
        for (int kind = geteuid() ? GROUPS : ANOTHERS; kind < A_LINK; kind++) {
            struct stat before;
            assert_int_equal(lstat(spoilt, &before), 0);
            assert_int_equal(kind == ANOTHERS ? chown(spoilt, 65534, 65534)
                                              : chmod(spoilt, kind == GROUPS ? 0720 : 0702),
                             0);
            if (place) { /* a folder that is named is meant, wherever it lies */
                struct live_job other;
                assert_int_equal(live_open(&other, path, error, sizeof error), -EPERM);
                assert_non_null(strstr(error, "another user owns it or may write to it"));
                assert_non_null(strstr(error, path));
            }
            for (int named = 0; named < 2; named++) {
                snprintf(text, sizeof text, "%d", (int)getpid());
                setenv("MKERNEL_LIVE", folder, 1);
                char found[256];
                assert_int_not_equal(
                    live_find(found, sizeof found, named ? text : NULL, error, sizeof error), 0);
                unsetenv("MKERNEL_LIVE");
            }
            if (!place)
                assert_non_null(strstr(error, "another user owns it or may write to it"));
            assert_int_equal(chmod(spoilt, before.st_mode & 07777), 0);
            assert_int_equal(kind == ANOTHERS ? chown(spoilt, before.st_uid, before.st_gid) : 0, 0);
        }
    }
    assert_int_equal(symlink(path, variable), 0);
    struct live_job other;
    assert_int_not_equal(live_open(&other, variable, error, sizeof error), 0);
    snprintf(text, sizeof text, "tui --attach link --dump-screen");
    command_start(&look, text, environment, NULL);
    command_finish(&look, 60);
    assert_int_equal(look.status, 2);
    unlink(variable);
    live_read(&job); /* its folder was right and is so again */
    assert_int_equal(job.ranks[0].state, LIVE_RUNS);
    assert_int_equal(chmod(path, 0702), 0);
    uint64_t beat = job.ranks[0].header.beat;
    moment(150);
    live_read(&job);
    assert_true(job.ranks[0].header.beat == beat); /* what it showed last */
    assert_int_equal(chmod(path, 0700), 0);
    live_close(&job);
    live_end(l);
    assert_true(is_empty(folder));
}

/* Files of a job are foreign bytes. */
CASE(a_damaged_file_gets_a_sentence)
{
    static struct command_run look;
    char job[96], path[128], line[160], bytes[4096];
    snprintf(job, sizeof job, "%s/run-1", folder);
    snprintf(path, sizeof path, "%s/rank-0", job);
    mkdir(folder, 0700);
    mkdir(job, 0700);
    for (size_t size = 0; size <= sizeof bytes; size += 512) {
        memset(bytes, 0xa5, sizeof bytes);
        memcpy(bytes, "mklive\r\n", 8);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(bytes, 1, size, f);
        fclose(f);
        snprintf(line, sizeof line, "tui --attach %s --dump-screen", job);
        command_start(&look, line, environment, NULL);
        command_finish(&look, 60);
        assert_int_equal(look.status, 2);
        assert_int_equal(command_lines(look.err_text), 1);
    }
    unlink(path);
    rmdir(job);
    assert_true(is_empty(folder));
}

static int begin(void **state)
{
    if (!mkdtemp(folder))
        return -1;
    snprintf(environment, sizeof environment, "MKERNEL_LIVE=%s", folder);
    return 0;
}

static int end(void **state)
{
    rmdir(folder);
    return 0;
}

FIXTURE(begin, end)
