#include "experiments/common/hosts.h"
#include "experiments/common/options.h"
#include "experiments/common/process.h"
#include "experiments/common/shell_word.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_S 15 /* from the end of one rank that failed to the end of all */
#define SSH_FAILED 255
#define PORTS_TRIED 5
/* of USER@HOST, addresses (with a zone: fe80::1%eth0) and ssh's own names for hosts */
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
#define DIGITS "0123456789"
#define HOST_BYTES LETTERS DIGITS "-.:@%[]"

int hosts_read(struct host_list *out, const char *path, char *error, size_t size)
{
    char line[512], name[256], rest[256];
    MK_CLOSED FILE *f = fopen(path, "re");
    int number = 0, rc = 0;
    memset(out, 0, sizeof *out);
    if (!f)
        return mk_fail(-EINVAL, error, size, "--hosts %s cannot be read: %s", path,
                       strerror(errno));
    while (!rc && fgets(line, sizeof line, f)) {
        uint64_t slots = 1;
        number++;
        line[strcspn(line, "#\n")] = '\0';
        *rest = '\0';
        int words = sscanf(line, "%255s %255[^\n]", name, rest);
        if (words < 1)
            continue;
        rest[strcspn(rest, " \t")] = '\0';
        if ((*rest && (strncmp(rest, "slots=", 6) || options_whole(rest + 6, 1, 64, &slots))) ||
            *name == '-' || name[strspn(name, HOST_BYTES)]) {
            rc = mk_fail(-EINVAL, error, size,
                         "--hosts %s, line %d: not HOST or HOST slots=N (1 to 64)", path, number);
        } else if (out->count && slots != out->slots) {
            rc = mk_fail(-EINVAL, error, size,
                         "--hosts %s, line %d: every host has the same number of slots", path,
                         number);
        } else if (out->count == HOSTS_MOST) {
            rc = mk_fail(-EINVAL, error, size, "--hosts %s: more than %d hosts", path, HOSTS_MOST);
        } else {
            memcpy(out->names[out->count++], name, sizeof name);
            out->slots = (uint32_t)slots;
        }
    }
    if (!rc && !out->count)
        rc = mk_fail(-EINVAL, error, size, "--hosts %s names no host", path);
    return rc;
}

/* Where the ranks find a host that ssh knows by `name`: ~/.ssh/config may give it another address,
 * and USER@ is ssh's alone. */
static void hosts_address(const char *name, char *address, size_t size)
{
    char line[512];
    const char *at = strrchr(name, '@');
    snprintf(address, size, "%s", at ? at + 1 : name);
    snprintf(line, sizeof line, "timeout 10 ssh -G '%s' </dev/null 2>/dev/null", name);
    FILE *f = popen(line, "re"); /* hosts_read has seen to it that there is no quote in the name */
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (!strncmp(line, "hostname ", 9) && line[9])
            snprintf(address, size, "%.255s", line + 9);
    }
    if (f)
        pclose(f);
}

/* An address that means another host on each host. */
static int hosts_is_here(const char *address)
{
    return !strcmp(address, "localhost") || !strcmp(address, "::1") || !strncmp(address, "127.", 4);
}

/* What the host's shell does. The rank ends when its standard input does: with the connection, or
 * when the parent closes it. */
static char *hosts_script(const struct host_list *h, uint32_t rank, const char *address,
                          uint16_t port, char *const *argv)
{
    char *text = NULL, here[4096], program[4096];
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    if (!f || !getcwd(here, sizeof here) || length <= 0) {
        if (f)
            fclose(f);
        free(text);
        return NULL;
    }
    fprintf(f, "exec 3<&0; IFS= read -r MKERNEL_TOKEN <&3; export MKERNEL_TOKEN; cd ");
    shell_word(f, here);
    fprintf(f,
            " || exit 3; export RANK=%u WORLD_SIZE=%u LOCAL_RANK=%u LOCAL_WORLD_SIZE=%u "
            "MASTER_PORT=%u MASTER_ADDR=",
            rank, h->count * h->slots, rank % h->slots, h->slots, port);
    shell_word(f, address);
    fputc(' ', f);
    for (char **e = environ; *e; e++) {
        const char *const passed[] = {"MKERNEL_", "MK_",
                                      "SOFTNIC",  "OPENBLAS_NUM_THREADS=",
                                      "NCCL_",    "CUDA_VISIBLE_DEVICES="};
        for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
            if (!strncmp(*e, passed[i], strlen(passed[i])) && strncmp(*e, "MKERNEL_TOKEN=", 14) &&
                strncmp(*e, "MKERNEL_HOST=", 13)) {
                /* the name stands there unquoted: one that no shell takes is not passed on */
                size_t name = strspn(*e, LETTERS DIGITS);
                if ((*e)[name] == '=') {
                    fprintf(f, "%.*s=", (int)name, *e);
                    shell_word(f, *e + name + 1);
                    fputc(' ', f);
                }
                break;
            }
    }
    fprintf(f, "; ");
    shell_word(f, program);
    for (char *const *a = argv + 1; *a; a++) {
        fputc(' ', f);
        shell_word(f, *a);
    }
    fprintf(f,
            " </dev/null 3<&- & p=$!; (cat <&3; kill $p; sleep 12; kill -9 $p) >/dev/null 2>&1 & "
            "w=$!; exec 3<&-; wait $p; s=$?; kill $w 2>/dev/null; exit $s");
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}

static pid_t hosts_start(const char *host, char *script, const char *token, int *input)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    /* a host that dies without a word is noticed within a minute */
    char *const words[] = {"ssh",        "-T",
                           "-o",         "BatchMode=yes",
                           "-o",         "ConnectTimeout=10",
                           "-o",         "ServerAliveInterval=15",
                           (char *)host, script,
                           NULL};
    const struct process_how how = {.program = "ssh",
                                    .words = words,
                                    .in = ends[0],
                                    .out = STDOUT_FILENO,
                                    .err = STDERR_FILENO,
                                    .death = SIGTERM};
    pid_t child = process_start(&how);
    close(ends[0]);
    *input = ends[1];
    if (child > 0 && dprintf(ends[1], "%s\n", token) < 0)
        return child; /* it ended at once, which waitpid tells */
    return child;
}

struct crowd {
    const struct host_list *hosts;
    pid_t *pids; /* 0: has ended */
    int *inputs;
    uint32_t world, alive;
    int status;
};

/* Their standard inputs end, and with them the ranks. */
static void hosts_end(struct crowd *c)
{
    for (uint32_t i = 0; i < c->world; i++)
        if (c->inputs[i] >= 0) {
            close(c->inputs[i]);
            c->inputs[i] = -1;
        }
}

static void hosts_kill(struct crowd *c)
{
    for (uint32_t i = 0; i < c->world; i++)
        if (c->pids[i] > 0)
            kill(c->pids[i], SIGKILL);
}

/* Takes note of a rank that has ended. Returns whether that is a failure. */
static int hosts_note(struct crowd *c, pid_t pid, int status, char *error, size_t size)
{
    uint32_t rank = 0;
    while (rank < c->world && c->pids[rank] != pid)
        rank++;
    if (rank == c->world)
        return 0;
    c->pids[rank] = 0;
    c->alive--;
    const char *host = c->hosts->names[rank / c->hosts->slots];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
    if (code == 127 || code == SSH_FAILED || WIFSIGNALED(status)) {
        if (!*error)
            snprintf(error, size,
                     code == 127 ? "ssh is not installed, or mkernel is not at the same place on "
                                   "host %s (rank %u)"
                                 : "host %s (rank %u) could not be reached, or was lost",
                     host, rank);
        code = 3;
    }
    if (code > 3 && (rank || code != HOSTS_PORT_TAKEN)) /* of a signal */
        code = 3;
    if (code > c->status)
        c->status = code;
    return code != 0;
}

static int hosts_wait(struct crowd *c, const sigset_t *watched, char *error, size_t size)
{
    struct timespec every = {.tv_nsec = 200000000};
    int stopped = 0, deadline = 0, ticks = 0;
    while (c->alive) {
        int status, failed = 0;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            failed |= hosts_note(c, pid, status, error, size);
        if (!c->alive)
            break;
        if (c->status == HOSTS_PORT_TAKEN && !deadline)
            deadline = ticks + 1;     /* the others wait in vain */
        else if (failed && !deadline) /* the others know, and say so themselves; but not for ever */
            deadline = ticks + GRACE_S * 5;
        if (deadline && ticks == deadline)
            hosts_end(c);
        if (deadline && ticks == deadline + GRACE_S * 5)
            hosts_kill(c);
        int got = sigtimedwait(watched, NULL, &every);
        if (got > 0 && got != SIGCHLD && !stopped) {
            stopped = got;
            hosts_end(c);
            deadline = ticks; /* and killed where that does not help */
        }
        ticks += got < 0; /* 200 ms have passed */
        if (*error && deadline > ticks + 10)
            deadline = ticks + 10; /* one is lost without a word: no need to wait for its */
    }
    return stopped;
}

/* The ranks meet at any of 10,000 ports, on rank 0's host. Returns the signal that came. */
static int hosts_try(struct crowd *c, char *const *argv, const char *address,
                     const sigset_t *watched, char *error, size_t size)
{
    unsigned char bits[16];
    char token[33];
    c->alive = 0;
    c->status = 0;
    for (uint32_t i = 0; i < c->world; i++)
        c->inputs[i] = -1;
    if (getrandom(bits, sizeof bits, 0) != sizeof bits) {
        c->status = mk_fail(3, error, size, "the system gives no random bytes");
        return 0;
    }
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(token + 2 * i, 3, "%02x", bits[i]);
    uint16_t port = (uint16_t)(20000 + (bits[0] << 8 | bits[1]) % 10000);
    for (uint32_t i = 0; i < c->world; i++) {
        MK_FREED char *script = hosts_script(c->hosts, i, address, port, argv);
        c->pids[i] =
            script ? hosts_start(c->hosts->names[i / c->hosts->slots], script, token, &c->inputs[i])
                   : -1;
        if (c->pids[i] < 0) {
            c->pids[i] = 0;
            c->status =
                mk_fail(3, error, size, "rank %u could not be started: %s", i, strerror(errno));
            hosts_end(c);
            break;
        }
        c->alive++;
    }
    int stopped = hosts_wait(c, watched, error, size);
    hosts_end(c);
    return stopped;
}

int hosts_run(const struct host_list *hosts, char *const *argv, int *stopped, char *error,
              size_t size)
{
    const uint32_t world = hosts->count * hosts->slots;
    MK_FREED pid_t *pids = calloc(world, sizeof *pids);
    MK_FREED int *inputs = calloc(world, sizeof *inputs);
    struct crowd c = {.hosts = hosts, .world = world, .pids = pids, .inputs = inputs};
    char address[256];
    sigset_t watched;
    *stopped = 0;
    error[0] = '\0';
    if (!pids || !inputs)
        return mk_fail(3, error, size, "no memory for %u ranks", world);
    hosts_address(hosts->names[0], address, sizeof address);
    for (uint32_t i = 1; i < hosts->count && hosts_is_here(address); i++) {
        char other[256];
        hosts_address(hosts->names[i], other, sizeof other);
        if (!hosts_is_here(other))
            return mk_fail(2, error, size,
                           "--hosts: the first host is %s, which host %s takes for itself: name "
                           "it as the others reach it",
                           address, hosts->names[i]);
    }
    ending_signals(&watched);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    signal(SIGPIPE, SIG_IGN);
    int tries = 0;
    do
        *stopped = hosts_try(&c, argv, address, &watched, error, size);
    while (!*stopped && !*error && c.status == HOSTS_PORT_TAKEN && ++tries < PORTS_TRIED);
    return *stopped || c.status > 3 ? 3 : c.status;
}
