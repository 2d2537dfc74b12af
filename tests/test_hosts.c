/* `mkernel sweep --hosts FILE` starts its ranks by ssh, ends them all where one is lost or somebody
 * presses Ctrl-C, and tells nobody the job's token. ssh is a script here, which runs what it is
 * given on this machine, as sshd would on another. */
/* WAITS */
#include <sys/stat.h>

#include "core/comm/bootstrap.h"
#include "experiments/common/hosts.h"
#include "experiments/results/results_file.h"
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/results_ask.h"

static char hosts[64], path[4096];

static void write_file(const char *name, const char *text, int mode)
{
    char full[128];
    snprintf(full, sizeof full, "%s/%s", folder, name);
    test_write_file(full, text);
    assert_int_equal(chmod(full, (mode_t)mode), 0);
}

static int make(void **state)
{
    int rc = folder_make(state);
    snprintf(hosts, sizeof hosts, "%s/hosts", folder);
    snprintf(database, sizeof database, "%s/r.db", folder);
    snprintf(path, sizeof path, "PATH=%s:%s", folder, getenv("PATH"));
    /* the last two arguments are the host and what its shell is to do */
    write_file(
        "ssh",
        "#!/bin/sh\n"
        "[ \"$1\" != -G ] || { echo \"user root\"; echo \"hostname ${2#*@}\" | sed "
        "s/nowhere/127.0.0.9/; exit; }\n"
        "while [ $# -gt 2 ]; do shift; done\n"
        "echo \"$1\" >>\"${0%/*}/asked\"; echo \"$2\" >>\"${0%/*}/scripts\"\n"
        "case $2 in *'export RANK=0 '*) cd \"${0%/*}\"; ! mv taken was 2>/dev/null ||\n"
        "set -- \"$1\" \"$(echo \"$2\" | sed \"s/\\(MASTER_PORT=\\)[0-9]*/\\1$(cat was)/\")\";;"
        "esac\n"
        "[ \"$1\" != nowhere ] || { echo 'ssh: no route to nowhere' >&2; exit 255; }\n"
        "exec sh -c \"$2\"\n",
        0755);
    return rc;
}

static void start(struct command_run *r, const char *text, const char *options)
{
    char line[512];
    write_file("hosts", text, 0644);
    unlink(database);
    snprintf(
        line, sizeof line,
        "sweep --vary op=ag_gemm;exec=host;shape=64,64,64;nic=soft;iters=3;timeout=3 --hosts %s "
        "--out %s %s",
        hosts, database, options);
    /* a name that a shell would read as more than a name */
    static char evil[128], split[128];
    snprintf(evil, sizeof evil, "MKERNEL_X;touch %s/ran;=1", folder);
    snprintf(split, sizeof split, "MKERNEL_X\n>%s/ran;Y=1", folder);
    command_start(r, line, path, "SOFTNIC=latency=20us", evil, split, NULL);
}

CASE(every_slot_of_every_host_is_a_rank)
{
    struct command_run r;
    char command[600];
    start(&r, "# two hosts, which are one\n127.0.0.1 slots=2\n\nlocalhost slots=2  # so\n",
          "--repeats 2");
    command_finish(&r, 60);
    if (r.status)
        print_message("%s\n", r.err_text);
    assert_int_equal(r.status, 0);
    assert_int_equal(ask("SELECT count(*) FROM jobs WHERE nodes = 2 AND gpus = 2 AND verdict = "
                         "'right'"),
                     2);
    assert_non_null(strstr(r.out_text, "95 % interval")); /* rank 0's table comes here */
    /* node by node, with what mkernel looks at, and without the token */
    snprintf(
        command, sizeof command,
        "cd %s && [ \"$(sort asked | uniq -c | tr -s ' \\n' ' ')\" = ' 2 127.0.0.1 2 localhost "
        "' ] && grep -q \"SOFTNIC=latency=20us \" scripts && ! grep -q 'MKERNEL_TOKEN=' "
        "scripts && grep -q 'RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2' scripts && "
        "! [ -e ran ]",
        folder);
    assert_int_equal(system(command), 0);
}

CASE(a_host_that_cannot_be_reached_is_named)
{
    struct command_run r;
    start(&r, "127.0.0.1\nnowhere\n", "--limit 2");
    command_finish(&r, 100);
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.err_text, "host nowhere (rank 1) could not be reached"));
}

/* The first port that rank 0 is given is this process's. */
CASE(a_port_that_is_taken_is_left_for_another)
{
    struct command_run r;
    char text[16];
    uint16_t port = 0;
    int listens = bootstrap_listen("127.0.0.1", &port);
    assert_true(listens >= 0);
    snprintf(text, sizeof text, "%u", port - 1); /* mkernel's is the one after it */
    write_file("taken", text, 0644);
    start(&r, "127.0.0.1\nlocalhost\n", "--repeats 1");
    command_finish(&r, 100);
    close(listens);
    if (r.status)
        print_message("%s\n", r.err_text);
    snprintf(text, sizeof text, "port %u", port);
    assert_non_null(strstr(r.err_text, text)); /* says that it is in use */
    assert_int_equal(r.status, 0);
    assert_int_equal(ask("SELECT count(*) FROM jobs WHERE verdict = 'right'"), 1);
}

/* Rank 0's address is told to the other hosts. */
CASE(a_first_host_that_only_it_knows_is_refused)
{
    struct command_run r;
    start(&r, "localhost\nfar\n", "");
    command_finish(&r, 60);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err_text, "the first host is localhost, which host far takes for "
                                       "itself: name it as the others reach it"));
}

/* Nobody is left, on no host. */
static int left(void)
{
    char command[600]; /* [r]: so that its own shell is not one of them */
    snprintf(command, sizeof command, "pgrep -f '%s/[r].db' >/dev/null", folder);
    return system(command) == 0;
}

CASE(ctrl_c_ends_all_ranks_everywhere)
{
    struct command_run r;
    start(&r, "127.0.0.1 slots=2\n", "--repeats 500");
    for (int i = 0; i < 3000 && ask("SELECT count(*) FROM job") < 1; i++)
        usleep(10000);
    assert_true(left());
    kill(r.pid, SIGINT);
    command_finish(&r, 60);
    assert_int_equal(r.signal, SIGINT);
    for (int i = 0; i < 1500 && left(); i++)
        usleep(10000);
    assert_false(left());
    assert_true(ask("SELECT count(*) FROM job") >= 1);
}

CASE(bad_files_are_one_sentence)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "names no host"},
        {"# nobody\n", "names no host"},
        {"a slots=0\n", "line 1: not HOST or HOST slots=N"},
        {"a slots=4294967297\n", "line 1: not HOST or HOST slots=N"},
        {"a slots=18446744073709551617\n", "line 1: not HOST or HOST slots=N"},
        {"a slots=-4294967295\n", "line 1: not HOST or HOST slots=N"},
        {"a slot=2\n", "line 1: not HOST"},
        {"a slots=2\nb\n", "line 2: every host has the same number"},
        {"-oProxyCommand=evil\n", "line 1: not HOST"},
        {"a;reboot\n", "line 1: not HOST"},
        {"a>out\n", "line 1: not HOST"},
        {"a<in\n", "line 1: not HOST"},
        {"a(b)\n", "line 1: not HOST"},
        {"a\033[2J\n", "line 1: not HOST"},
        {"*\n", "line 1: not HOST"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct command_run r;
        start(&r, cases[i].text, "");
        command_finish(&r, 30);
        if (r.status != 2 || !strstr(r.err_text, cases[i].says))
            print_message("%s: status %d: %s\n", cases[i].text, r.status, r.err_text);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err_text, cases[i].says));
        assert_int_equal(command_lines(r.err_text), 1);
    }
}

FIXTURE(make, folder_remove)
