/* A rank's side: the file, and the thread that looks at the progress words. */
#include "tracer/live_process.h"
#include "core/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/comm/comm.h"
#include "core/base/new_file.h"
#include "core/base/scoped.h"

#define MOST_JOBS 256 /* folders that are looked through */

struct live {
    char folder[256], path[280];
    struct mk_comm *comm;
    struct live_header *header; /* the mapped file */
    size_t bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int stop;
};

static const char *live_publish_base_folder(char *out, size_t size, const char *root)
{
    snprintf(out, size, "%s/mkernel-%u", root, (unsigned)geteuid());
    return out;
}

int live_bases(char out[2][200])
{
    const char *chosen = getenv("MKERNEL_LIVE");
    if (chosen && !strcmp(chosen, "off"))
        return 0;
    if (chosen && *chosen) {
        snprintf(out[0], 200, "%s", chosen);
        return 1;
    }
    live_publish_base_folder(out[0], 200, "/dev/shm");
    live_publish_base_folder(out[1], 200, "/tmp");
    return 2;
}

uint64_t live_now(void)
{
    return mk_now_ns();
}

/* The name is free text: what follows the last ')' has fixed fields. */
int live_process(int pid, char *state, uint64_t *start)
{
    char path[40], text[1024];
    unsigned long long began = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *rest = strrchr(text, ')');
    if (!rest ||
        sscanf(rest,
               ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               state, &began) != 2)
        return -ESRCH;
    *start = began;
    return *state == 'Z' || *state == 'X' ? -ESRCH : 0;
}

int live_folder(char *path, size_t size, int job_pid, const char *launcher, const char *token)
{
    char bases[2][200];
    int count = live_bases(bases), n;
    if (!count)
        return -ENOTSUP;
    const char *base = count > 1 && access("/dev/shm", W_OK | X_OK) ? bases[1] : bases[0];
    if (job_pid) {
        n = snprintf(path, size, "%s/run-%d", base, job_pid);
    } else { /* the token is a secret: its hash has 32 bits */
        uint32_t hash = 2166136261u;
        for (const char *c = token; *c; c++)
            hash = (hash ^ (uint8_t)*c) * 16777619u;
        n = snprintf(path, size, "%s/%.20s-%08x", base, launcher ? launcher : "job", hash);
    }
    return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

int live_is_own(const struct stat *s)
{
    return s->st_uid == geteuid() && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

/* A folder of this user that no other user may enter: /dev/shm and /tmp are open to all. */
static int live_publish_own_folder(const char *path)
{
    struct stat s;
    if (mkdir(path, 0700) && errno != EEXIST)
        return -errno;
    if (lstat(path, &s))
        return -errno;
    return S_ISDIR(s.st_mode) && live_is_own(&s) ? 0 : -EPERM;
}

void live_remove(const char *folder)
{
    MK_CLOSED_DIR DIR *d = opendir(folder);
    struct dirent *e;
    while (d && (e = readdir(d)))
        if (!strncmp(e->d_name, "rank-", 5))
            unlinkat(dirfd(d), e->d_name, 0);
    rmdir(folder);
}

/* Whether any rank of the folder still has its process. An empty folder may be one that is just
 * being made. */
static int live_publish_is_stale(const char *folder)
{
    MK_CLOSED_DIR DIR *d = opendir(folder);
    struct dirent *e;
    int dead = 0, alive = 0;
    unsigned rank;
    char unfinished;
    while (d && !alive && (e = readdir(d))) {
        struct live_header h;
        if (sscanf(e->d_name, "rank-%u%c", &rank, &unfinished) != 1)
            continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        int whole = fd >= 0 && read(fd, &h, sizeof h) == (ssize_t)sizeof h &&
                    !memcmp(h.magic, LIVE_MAGIC, 8);
        char state;
        uint64_t start;
        if (whole && (live_process(h.pid, &state, &start) || start != h.pid_start))
            dead++;
        else
            alive = 1;
        if (fd >= 0)
            close(fd);
    }
    return dead && !alive;
}

static void live_publish_remove_stale(const char *folder)
{
    char base[256], path[600];
    snprintf(base, sizeof base, "%s", folder);
    *strrchr(base, '/') = 0;
    MK_CLOSED_DIR DIR *d = opendir(base);
    struct dirent *e;
    for (int i = 0; d && i < MOST_JOBS && (e = readdir(d)); i++) {
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        if (e->d_name[0] != '.' && live_publish_is_stale(path))
            live_remove(path);
    }
}

static void live_publish_look(struct live *l)
{
    struct live_header *h = l->header;
    struct live_word *words = (struct live_word *)(void *)(h + 1);
    uint64_t now = live_now();
    pthread_mutex_lock(&l->comm->plans_lock); /* the words may move */
    for (uint32_t i = 0; i < h->ctas; i++) {
        uint64_t word = __atomic_load_n(&l->comm->progress[i], __ATOMIC_RELAXED);
        if (word == words[i].word)
            continue;
        __atomic_store_n(&words[i].since, now, __ATOMIC_RELAXED);
        __atomic_store_n(&words[i].word, word, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&l->comm->plans_lock);
    __atomic_store_n(&h->beat, now, __ATOMIC_RELEASE);
}

static void *look_on(void *argument)
{
    struct live *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        uint64_t next = live_now() + LIVE_PERIOD_NS;
        live_publish_look(l);
        mk_cond_wait_until(&l->wake, &l->lock, next);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* posix_fallocate: a full tmpfs is an error here and not a SIGBUS later. The header is whole before
 * the file has its name. Two jobs may share a folder (their token is the launcher's job name): none
 * may truncate what another has mapped. */
static int live_publish_map_file(struct live *l, const struct live_header *h)
{
    struct mk_new_file file;
    int result = mk_new_file_open(&file, l->path, 0600);
    if (result)
        return result;
    result = -posix_fallocate(file.fd, 0, (off_t)l->bytes);
    void *at =
        result ? MAP_FAILED : mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (!result && at == MAP_FAILED)
        result = -errno;
    if (!result) {
        l->header = at;
        *l->header = *h;
        live_publish_look(l);
        result = mk_new_file_keep(&file);
    }
    mk_new_file_drop(&file);
    return result;
}

static int start(struct live *l)
{
    sigset_t all, old;
    pthread_mutex_init(&l->lock, NULL);
    mk_cond_init(&l->wake);
    sigfillset(&all); /* the rank's signals are for its main thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int result = -pthread_create(&l->thread, NULL, look_on, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return result;
}

int live_begin(struct live **out, const char *folder, struct mk_comm *comm,
               const struct mk_plan *plan, int job_pid, uint64_t launches, const char *command)
{
    struct live_header h = {.magic = LIVE_MAGIC,
                            .version = LIVE_VERSION,
                            .bytes = sizeof h,
                            .plan_bytes = sizeof *plan,
                            .exec = comm->config.exec,
                            .pid = (int32_t)getpid(),
                            .job_pid = job_pid,
                            .problem = plan->problem,
                            .heap_base = plan->heap_base,
                            .flag_base = plan->flag_base,
                            .launches = launches};
    uint32_t grid = mk_total_ctas(&plan->problem.tuning.split);
    char base[256], state;
    *out = NULL;
    if (!comm->progress)
        return -ENOTSUP;
    h.ctas = grid < comm->progress_count ? grid : comm->progress_count;
    h.ctas = h.ctas < LIVE_MAX_CTAS ? h.ctas : LIVE_MAX_CTAS;
    snprintf(h.command, sizeof h.command, "%s", command);
    int result = live_process(h.pid, &state, &h.pid_start);
    if (result)
        return result;
    struct live *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->comm = comm;
    l->bytes = sizeof h + h.ctas * sizeof(struct live_word);
    snprintf(l->folder, sizeof l->folder, "%s", folder);
    snprintf(l->path, sizeof l->path, "%s/rank-%u", l->folder, plan->problem.topo.rank);
    snprintf(base, sizeof base, "%s", folder);
    *strrchr(base, '/') = 0;
    result = live_publish_own_folder(base);
    if (!result && plan->problem.topo.rank == 0)
        live_publish_remove_stale(folder);
    result = result ? result : live_publish_own_folder(folder);
    result = result ? result : live_publish_map_file(l, &h);
    if (!result && (result = start(l)))
        unlink(l->path);
    if (result) {
        if (l->header)
            munmap(l->header, l->bytes);
        /* else an empty one stays for ever: no later job knows that its owner has gone */
        rmdir(l->folder);
        free(l);
        return result;
    }
    *out = l;
    return 0;
}

void live_phase(struct live *l, enum live_phase phase, uint64_t done)
{
    if (!l)
        return;
    __atomic_store_n(&l->header->launch, done, __ATOMIC_RELAXED);
    __atomic_store_n(&l->header->phase, (uint32_t)phase, __ATOMIC_RELAXED);
}

void live_end(struct live *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    munmap(l->header, l->bytes);
    unlink(l->path);
    rmdir(l->folder); /* the last one succeeds */
    free(l);
}
