/* Stock verbs programs run between two processes on softnic, unmodified, and finish with their own
 * checks passing. */
#include "softnic_load.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static char library[640];

static int setup(void **state)
{
    ssize_t length = readlink("/proc/self/exe", library, 512);
    assert_true(length > 0);
    library[length] = 0;
    strcpy(strrchr(library, '/'), "/../libsoftnic.so");
    assert_int_equal(access(library, R_OK), 0);
    return 0;
}

static bool installed(const char *program)
{
    char command[128];
    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

static void need(const char *program)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a library built for a sanitizer cannot be preloaded into programs that "
                  "are not\n");
    skip();
#endif
    if (!installed(program)) {
        print_message("skipped: %s is not installed (packages ibverbs-utils and perftest)\n",
                      program);
        skip();
    }
}

/* Starts `command` through the shell with the library preloaded; its output goes to `output` (a
 * file). */
static pid_t start(const char *options, const char *command, const char *output)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    char line[1200];
    snprintf(line, sizeof(line),
             "LD_PRELOAD=%s SOFTNIC='%s' exec timeout -k 2 60 %s >%s 2>&1 </dev/null", library,
             options, command, output);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

static void read_all(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : 0;
    text[n > 0 ? n : 0] = 0;
    close(fd);
}

static int finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void ends_well(const char *options, const char *command, const char *const *wanted)
{
    char path[64], text[8192];
    snprintf(path, sizeof(path), "/tmp/softnic-stock.%d", (int)getpid());
    int status = finish(start(options, command, path));
    read_all(path, text, sizeof(text));
    unlink(path);
    if (status)
        fail_msg("%s: status %x\n%s", command, (unsigned)status, text);
    for (; *wanted; wanted++)
        if (!strstr(text, *wanted))
            fail_msg("%s does not say \"%s\":\n%s", command, *wanted, text);
}

static bool listens(int port)
{
    char command[96];
    snprintf(command, sizeof(command),
             "grep -q ':%04X 00000000' /proc/net/tcp /proc/net/tcp6 2>/dev/null", (unsigned)port);
    return system(command) == 0;
}

/* A port that is free now, and that the kernel gives to no connection: those come from 32768 on. */
static int free_port(void)
{
    static int next;
    if (!next)
        next = (int)getpid();
    for (;;) {
        int port = 20000 + next++ % 12000, fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        assert_true(fd >= 0);
        int taken = bind(fd, (struct sockaddr *)&address, sizeof(address));
        close(fd);
        if (!taken)
            return port;
        assert_int_equal(errno, EADDRINUSE);
    }
}

/* A server and a client of the same program, on one port. Both must exit with 0, and the client
 * must print `wanted`. */
static void pair_ends_well(const char *options, const char *program, const char *arguments,
                           const char *wanted)
{
    char command[256], path[2][64], text[2][16384];
    pid_t pid[2];
    need(program);
    int port = free_port();
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "/tmp/softnic-stock.%d.%d", (int)getpid(), i);
        snprintf(command, sizeof(command), "%s %s -p %d%s", program, arguments, port,
                 i ? " localhost" : "");
        pid[i] = start(options, command, path[i]);
        siginfo_t ended = {0};
        for (int wait = 0; !i && wait < 1500 && !ended.si_pid && !listens(port); wait++) {
            usleep(20000);
            waitid(P_PID, (id_t)pid[i], &ended, WEXITED | WNOHANG | WNOWAIT);
        }
    }
    int client = finish(pid[1]);
    if (client)
        kill(pid[0], SIGTERM);
    int server = finish(pid[0]);
    for (int i = 0; i < 2; i++) {
        read_all(path[i], text[i], sizeof(text[i]));
        unlink(path[i]);
    }
    if (client || server || (wanted && !strstr(text[1], wanted)))
        fail_msg("%s %s: client %x, server %x\nclient:\n%s\nserver:\n%s", program, arguments,
                 (unsigned)client, (unsigned)server, text[1], text[0]);
}

CASE(list_devices)
{
    need("ibv_devices");
    ends_well("devices=3", "ibv_devices", (const char *const[]){"soft0", "soft1", "soft2", NULL});
}

CASE(device_information)
{
    need("ibv_devinfo");
    ends_well(
        "devices=1", "ibv_devinfo -v",
        (const char *const[]){"soft0", "PORT_ACTIVE", "max_qp_wr", "InfiniBand", "GID[  0]", NULL});
    ends_well("devices=1,link=roce", "ibv_devinfo -v",
              (const char *const[]){"Ethernet", "RoCE v2", NULL});
}

CASE(pingpong)
{
    /* -c validates the data */
    pair_ends_well("devices=2", "ibv_rc_pingpong", "-n 500 -c", "500 iters");
    /* with completion events */
    pair_ends_well("devices=2", "ibv_rc_pingpong", "-n 200 -e -c", "200 iters");
    pair_ends_well("devices=2", "ibv_rc_pingpong", "-n 200 -N -c", "200 iters"); /* with ibv_wr_* */
    pair_ends_well("devices=2", "ibv_rc_pingpong", "-n 200 -t -c",
                   "200 iters"); /* with an extended CQ and timestamps */
    pair_ends_well("devices=2,link=roce", "ibv_rc_pingpong", "-n 200 -g 1 -c", "200 iters");
    pair_ends_well("devices=2,copy=stream", "ibv_rc_pingpong", "-n 200 -s 65536 -c", "200 iters");
}

CASE(write_bandwidth)
{
    pair_ends_well("devices=2", "ib_write_bw", "-d soft0 -s 262144 -n 500", "262144     500");
    pair_ends_well("devices=2", "ib_write_bw", "-d soft1 -a -n 50", "8388608    50");
    pair_ends_well("devices=2", "ib_write_bw", "-d soft0 -b -q 4 -n 100", "65536      400");
    pair_ends_well("devices=2,link=roce", "ib_write_bw", "-d soft0 -x 1 -n 200", "65536      200");
    pair_ends_well("devices=2,copy=stream", "ib_write_bw", "-d soft0 -n 200", "65536      200");
}

CASE(write_latency)
{
    pair_ends_well("devices=2", "ib_write_lat", "-d soft0 -n 200", "200");
    pair_ends_well("devices=2", "ib_write_lat", "-d soft0 -n 200 -s 65536", "65536");
    pair_ends_well("devices=2", "ib_write_lat", "-d soft0 -n 200 -I 64", "200");
}

CASE(read_bandwidth)
{
    pair_ends_well("devices=2", "ib_read_bw", "-d soft0 -n 300", "65536      300");
    pair_ends_well("devices=2,copy=stream", "ib_read_bw", "-d soft0 -n 100 -s 2097152",
                   "2097152    100");
}

CASE(send_bandwidth)
{
    pair_ends_well("devices=2", "ib_send_bw", "-d soft0 -n 300", "65536      300");
    pair_ends_well("devices=2", "ib_send_bw", "-d soft0 -n 300 -e",
                   "65536      300"); /* sleeping on events */
}

CASE(others_of_perftest)
{
    pair_ends_well("devices=2", "ib_send_lat", "-d soft0 -n 200", "200");
    pair_ends_well("devices=2", "ib_read_lat", "-d soft0 -n 200", "200");
    pair_ends_well("devices=2", "ib_atomic_bw", "-d soft0 -n 200", "200");
    pair_ends_well("devices=2", "ib_atomic_lat", "-d soft0 -n 200 -A CMP_AND_SWAP", "200");
}

/* Debian's perftest speaks SRD where it was built with libefa; it finds our efadv calls before that
 * library's. */
CASE(srd_of_perftest)
{
    need("ib_send_bw");
    if (system("ldd $(command -v ib_send_bw) | grep -q libefa") ||
        access("/usr/include/infiniband/efadv.h", R_OK)) {
        printf("perftest is without SRD here\n");
        skip();
    }
    pair_ends_well("efa=2", "ib_send_bw", "-c SRD -d softefa1 -x 0 -s 4096 -n 300",
                   "4096       300");
    pair_ends_well("efa=2", "ib_send_lat", "-c SRD -d softefa0 -x 0 -n 200", "200");
    pair_ends_well("efa=2", "ib_read_bw", "-c SRD -d softefa0 -x 0 -n 300", "65536      300");
    pair_ends_well("efa=2,copy=stream", "ib_read_bw", "-c SRD -d softefa0 -x 0 -n 100 -s 2097152",
                   "2097152    100");
}

FIXTURE(setup, NULL)
