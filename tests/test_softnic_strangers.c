/* A process that connects to a softnic device without being one: another user's is not heard at
 * all, and a frame that breaks a bound ends the connection before anything is done about it. */
#include "softnic_load.h"

#include "backends/softnic/frame.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { QP_BITS = 12 }; /* of a QP number; the others are its context's */

/* A connection to the context of this end, as a peer's would be. */
static int reach(const struct end *e, uid_t owner)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval patience = {10, 0};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "softnic/%u/soft0/%u", (unsigned)owner,
                     e->qp->qp_num >> QP_BITS);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
        return -1;
    return fd;
}

static int give(int fd, const struct softnic_frame *frame)
{
    return send(fd, frame, sizeof *frame, MSG_NOSIGNAL) == (ssize_t)sizeof *frame;
}

static const struct softnic_frame hello = {
    .magic = SOFTNIC_FRAME_MAGIC, .kind = SOFTNIC_HELLO, .qpn_from = 4095};

/* The answer: a frame's kind, 0 where the connection is closed, -1 for none within ten seconds. */
static int answer(int fd)
{
    struct softnic_frame frame;
    ssize_t n = recv(fd, &frame, sizeof frame, MSG_WAITALL);
    if (n == (ssize_t)sizeof frame)
        return frame.kind;
    return n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE)) ? 0 : -1;
}

/* A process of user `uid` sends the device a HELLO. Returns the kind of the answer, 0 where it was
 * cut off. */
static int hello_as(const struct end *e, uid_t uid)
{
    uid_t owner = getuid();
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        if (setresuid(uid, uid, uid))
            _exit(100);
        int fd = reach(e, owner);
        if (fd < 0)
            _exit(101);
        give(fd, &hello); /* that the other end has closed by now is an answer, too */
        _exit((uint8_t)answer(fd));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

CASE(another_user_is_not_heard)
{
    nic_load();
    nic_configure("copy=auto");
    struct ibv_context *context = nic_open(0);
    struct end e = end_new(context, 4096);
    assert_int_equal(hello_as(&e, getuid()), SOFTNIC_WELCOME);
    if (geteuid())
        print_message("root alone can be another user: not tried\n");
    else
        assert_int_equal(hello_as(&e, 65534), 0);
    end_close(&e);
    nic.ibv_close_device(context);
}

CASE(frames_that_break_a_bound_end_the_connection)
{
    const struct softnic_frame write = {.magic = SOFTNIC_FRAME_MAGIC,
                                        .kind = SOFTNIC_WRITE,
                                        .qpn_to = 1,
                                        .qpn_from = 4095,
                                        .length = 8,
                                        .offset = 0};
    struct softnic_frame bad[12];
    int count = 0;
#define BAD(field, value) (bad[count] = write, bad[count++].field = (value))
    BAD(payload, 12); /* more than the message */
    BAD(payload, SOFTNIC_MAX_PAYLOAD + 1);
    bad[count - 1].length = SOFTNIC_MAX_PAYLOAD + 1; /* nothing else is wrong with it */
    BAD(length, SOFTNIC_MAX_MESSAGE + 1u);
    bad[count - 1].payload = 8;
    BAD(offset, 9);
    BAD(segments, SOFTNIC_MAX_SEGMENTS + 1);
    bad[count - 1].flags = SOFTNIC_FLAG_PULL;
    BAD(segments, 1); /* without leave to read */
    BAD(address, UINT64_MAX - 3);
    bad[count - 1].payload = 8;
    BAD(magic, 0x31464e53);
    BAD(kind, 0);
    BAD(kind, SOFTNIC_KINDS);
    BAD(kind, SOFTNIC_ACK); /* a response where requests go */
    bad[count - 1].length = 0;
    BAD(qpn_to, 1u << 24);
#undef BAD
    nic_load();
    nic_configure("copy=auto");
    struct ibv_context *context = nic_open(0);
    struct end e = end_new(context, 4096);
    for (int i = 0; i < count; i++) {
        int fd = reach(&e, getuid());
        assert_true(fd >= 0 && give(fd, &hello));
        assert_int_equal(answer(fd), SOFTNIC_WELCOME);
        assert_true(give(fd, &bad[i]));
        if (bad[i].payload && bad[i].payload <= 64)
            assert_int_equal(send(fd, &bad[i], bad[i].payload, MSG_NOSIGNAL) > 0 || errno == EPIPE,
                             1);
        int kind = answer(fd);
        if (kind)
            fail_msg("bad frame %d was answered with %d", i, kind);
        close(fd);
    }
    int fd = reach(&e, getuid()); /* and one that breaks none */
    struct softnic_frame right = write;
    right.payload = 8;
    assert_true(fd >= 0 && give(fd, &hello));
    assert_int_equal(answer(fd), SOFTNIC_WELCOME);
    assert_true(give(fd, &right));
    assert_int_equal(send(fd, &right, 8, MSG_NOSIGNAL), 8);
    assert_int_equal(answer(fd), SOFTNIC_NAK); /* there is no such QP */
    close(fd);
    end_close(&e);
    nic.ibv_close_device(context);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A child that has just been forked holds its parent's sockets until it runs for the first time,
 * as one does for good that was made past the C library. A connection that ends meanwhile is
 * over all the same: nothing is heard of it again. */
CASE(a_forked_copy_of_a_connection_is_no_connection)
{
    nic_load();
    nic_configure("copy=auto");
    struct ibv_context *context = nic_open(0);
    struct end e = end_new(context, 4096);
    int fd = reach(&e, getuid());
    assert_true(fd >= 0 && give(fd, &hello));
    assert_int_equal(answer(fd), SOFTNIC_WELCOME);
    fflush(NULL);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    shutdown(fd, SHUT_RDWR);
    close(fd);
    usleep(100000); /* until the device has heard of it */
    uint64_t before = cpu_ns();
    usleep(400000);
    uint64_t used = cpu_ns() - before;
    fd = reach(&e, getuid());
    int heard = fd >= 0 && give(fd, &hello) ? answer(fd) : -1;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (used > 40000000)
        fail_msg("with nothing to do the device took %.0f of 400 ms", (double)used / 1e6);
    assert_int_equal(heard, SOFTNIC_WELCOME);
    close(fd);
    end_close(&e);
    nic.ibv_close_device(context);
}
