/* Every kind of bad argument, and what a command would ignore or could not write, is refused before it
 * starts with status 2 and one sentence on stderr that names it; nothing but a regular file is ever
 * replaced, and output that did not arrive is no success. */
#include "core/ops/op.h"
#include "tests/helpers/command.h"
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "tests/helpers/folder.h"
#include "tests/helpers/sanitized.h"

static struct command_run r;

static void judge(const char *what, int status, const char *says)
{
    if (r.status != status || !strstr(status ? r.err_text : r.out_text, says))
        fail_msg("%s: status %d (want %d), stdout \"%s\", stderr \"%s\" lacks \"%s\"", what,
                 r.status, status, r.out_text, r.err_text, says);
}

static void refuses(const char *line, const char *says)
{
    command_expect(&r, line, NULL, 2, says);
}

/* `mkernel`, its arguments and what the shell does with its descriptors. */
static void in_shell(const char *line)
{
    static char mkernel[4096], script[8192];
    command_path(mkernel, sizeof mkernel);
    snprintf(script, sizeof script, "%s %s", mkernel, line);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", script, NULL});
    command_finish(&r, 60);
}

CASE(test_commands)
{
    refuses("", "a command is missing");
    refuses("rnu ag_gemm", "did you mean run?");
    refuses("''", "no command");
    refuses("frobnicate", "`mkernel --help`");
    refuses("--bogus", "--help");
    command_expect(&r, "--help", NULL, 0, "examples");
    command_expect(&r, "--version", NULL, 0, "mkernel 0");
    command_expect(&r, "run --help", NULL, 0, "--roles");
    command_expect(&r, "run ag_gemm --help", NULL, 0, "examples");
    command_expect(&r, "bench --help", NULL, 0, "--csv");
    command_expect(&r, "info --help", NULL, 0, "usage: mkernel info");
    refuses("info now", "one argument too many");
    refuses("info --json x", "no option --json");
    refuses("bench", "missing");
    refuses("bench ag_gem", "did you mean ag_gemm?");
}

CASE(test_ops)
{
    refuses("run", "op is missing");
    refuses("run ag_gemmm", "did you mean ag_gemm?");
    refuses("run quaternion", "ops are ag_gemm");
    refuses("run ag_gemm gemm_ar", "gemm_ar is one argument too many");
    refuses("run moe_ffn --exec host --shape 1,8,8", "moe_ffn does not take --shape");
    refuses("run ''", "no op");
}

CASE(test_values)
{
    refuses("run ag_gemm --iter 5", "did you mean --iters?");
    refuses("run ag_gemm --exec host --epilogue bias+foo", "--epilogue bias+foo: 'foo' is none of");
    command_expect(&r, "bench ag_gemm --exec host --gpus 2 --epilogue none --dry-run", NULL, 0, "");
    refuses("bench ag_gemm --exec host --gpus 2 --epilogue silu --dry-run", "for run");
    refuses("run ag_gemm --iters", "--iters needs a value");
    refuses("run ag_gemm --iters 0", "--iters 0: out of range");
    refuses("run ag_gemm --iters ten", "--iters ten");
    refuses("run ag_gemm --iters 99999999999999999999", "out of range");
    refuses("run ag_gemm --seed -1", "--seed -1");
    refuses("run ag_gemm --check --check", "twice");
    refuses("run ag_gemm --check=yes", "takes no value");
    refuses("run ag_gemm --timeout 0", "--timeout 0: out of range");
    refuses("run ag_gemm --timeout 1e9", "--timeout 1e9");
    refuses("run ag_gemm --exec gpu", "host|cuda");
    refuses("run ag_gemm --fabric verb", "did you mean verbs?");
    refuses("run ag_gemm --exec host --nodes 2 --nic nosuch0", "no NIC nosuch0");
    refuses("run ag_gemm --roles compute", "roles are written");
    refuses("run ag_gemm --roles intracomm=1", "did you mean intra_comm?");
    refuses("run ag_gemm --csv x", "no option --csv");
    refuses("run ag_gemm --exec host --trace /nonexistent/folder/t.db",
            "--trace /nonexistent/folder/t.db cannot be written");
    refuses("run ag_gemm --exec host --json /proc/x.json", "--json /proc/x.json cannot be written");
}

CASE(test_shapes)
{
    refuses("run ag_gemm --exec host --shape 8,8", "--shape 8,8");
    refuses("run ag_gemm --exec host --shape 8x8x8", "it takes M,N,K");
    refuses("run ag_gemm --exec host --shape 9,8,8", "the next that does is 10");
    refuses("run ag_gemm --exec host --gpus 1 --shape 8,8,9", "the next K that works is 16");
    refuses("run ag_gemm --exec host --gpus 1 --shape 8,9,8", "the next N that works is 16");
    refuses("run ag_gemm --exec host --gpus 17", "--gpus 17: out of range");
    refuses("run ag_gemm --exec host --nodes 100 --gpus 16", "at most 256");
    refuses("run ag_gemm --exec host --gpus 1 --roles compute=1,intra_comm=1", "no intra_comm");
    refuses("run ag_gemm --exec host --nodes 2 --roles compute=1,intra_comm=1", "inter_send");
    refuses("run ag_gemm --exec host --tile 12,8", "tiles are multiples of 8");
    refuses("run ag_gemm --exec host --tile 64,64 --chunk-rows 96", "chunks of tiles");
    refuses("run ag_gemm --exec host --pieces 65", "--pieces 65: out of range");
}

/* Nothing has started: bad arguments cost milliseconds, leave no process and no shared memory. */
CASE(test_nothing_started)
{
    refuses("run ag_gemm --exec host --nodes 4 --gpus 4 --shape 17,8,8",
            "does not divide by 16 ranks");
    assert_true(r.seconds < BUSY);
}

CASE(test_info)
{
    command_expect(&r, "info", NULL, 0, "SQLite 3.");
    assert_non_null(strstr(r.out_text, "cores"));
    assert_non_null(strstr(r.out_text, "GPU"));
    assert_non_null(strstr(r.out_text, "NIC"));
    assert_non_null(strstr(r.out_text, "rails     local rank 0 on "));
    assert_non_null(strstr(r.out_text, "soft-RoCE module rdma_rxe"));
    assert_int_equal(r.err_used, 0);
}

CASE(test_ignored)
{
    refuses("run ag_gemm --exec host --pace 5", "--pace is for --exec cuda");
    refuses("bench ag_gemm --exec host --vs torch", "--vs torch is for --exec cuda");
    refuses("bench ag_gemm --exec host --traced", "--traced is for --exec cuda");
    refuses("bench moe_dispatch --exec host --shapes 8,8,8", "--shapes 8,8,8: not T,H,E,K:T,H,E,K");
    refuses("bench moe_dispatch --exec host --shapes 8,64,8,2:16,64,8,2 --json x.json",
            "--json has one shape where no others are compared; --csv has a row each");
    refuses("bench ring_attention --exec host --vs blas",
            "--vs blas is for GEMM operators, and ring_attention is none");
    refuses("tune ag_gemm --exec host --shapes 8,8,8:", "--shapes 8,8,8:: not M,N,K:M,N,K");
    refuses("tune ag_gemm --exec host --shapes 8,8,8:16,8,8,8",
            "--shapes 8,8,8:16,8,8,8: not M,N,K:M,N,K");
    refuses("tune ag_gemm --exec host --shapes 8,-8,8", "--shapes 8,-8,8: not M,N,K:M,N,K");
    refuses("run gemm_ar --exec host --slices 2", "gemm_ar does not take --slices");
    refuses("run gemm_ar --exec host --fanout 1", "gemm_ar does not take --fanout");
    refuses("run ag_gemm --exec host --roles compute=0", "leaves no CTA");
    refuses("run ag_gemm --exec host --roles compute=0,intra_comm=0", "leaves no CTA");
    refuses("run ag_gemm --seed 18446744073709551616", "it takes 0 to 18446744073709551615;");
    refuses("--version 2", "2 is one argument too many");
    refuses("help nosuch", "no command nosuch");
}

/* Before anything starts, and before anybody looks for a GPU. */
CASE(test_no_kernel)
{
    for (int op = 0; op < MK_OPS; op++) {
        char line[80];
        if (op_on_gpu((enum mk_op)op))
            continue;
        snprintf(line, sizeof line, "%s %s --exec cuda", op % 2 ? "run" : "bench",
                 plan_op_name((enum mk_op)op));
        in_shell(line);
        assert_int_equal(r.status, 2);
        assert_int_equal(command_lines(r.err_text), 1);
        if (!strstr(r.err_text, "has no GPU kernel yet; --exec host runs it") &&
            !strstr(r.err_text, "--exec cuda is not in this build"))
            fail_msg("%s", r.err_text);
    }
}

CASE(test_memory)
{
    refuses("run ag_gemm --exec host --shape 262144,8388608,65536", "a smaller problem fits");
    refuses("run gemm_ar --exec host --shape 8388608,8388608,8", "needs");
    refuses("run ring_attention --exec host --attention 1,268435456,64,64,128", "needs");
    refuses("sim ag_gemm --explore --shape 262144,4194304,65536", "a smaller problem fits");
    refuses("sim ag_gemm --explore --nodes 256 --gpus 16", "at most 256 are simulated");
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    int most = 0;
    /* more than that allows as many CTAs as can be asked for */
    if (f && fscanf(f, "%d", &most) == 1 && most <= 65530) {
        refuses("run ag_gemm --exec host --shape 64,64,64 --roles compute=65535,intra_comm=1",
                "65536 CTAs of a rank: that can be");
        refuses("sim ag_gemm --explore --shape 64,64,64 --roles "
                "compute=20000,intra_comm=1,inter_send=1",
                "20002 CTAs of a rank");
    }
    if (f)
        fclose(f);
}

CASE(test_sim)
{
    refuses("sim", "which op is missing");
    refuses("sim gemm_ar --slices 2", "gemm_ar does not take --slices");
    refuses("sim ag_gemm --nodes 1 --slices 17", "out of range");
    refuses("sim ag_gemm --explore --pace 100", "--pace is not for --explore");
    refuses("run ag_gemm --exec host --gpus 2 --pieces 65", "out of range, it takes 1 to 64");
    refuses("sim ag_gemm --explore --vary --fanout 1",
            "--vary chooses, so --fanout cannot be given");
    refuses("sim moe_ffn --explore --random --moe 8,8,8,4,1",
            "--random chooses, so --moe cannot be given");
    refuses("run moe_ffn --shape 8,8,8", "moe_ffn does not take --shape");
    refuses("run moe_ffn --exec host --skew much", "a number from 0.01 to 10");
    refuses("run moe_ffn --exec host --skew zipf:none", "a number from 0.01 to 10, or one");
    refuses("run moe_ffn --exec host --skew one --routing few", "and so does --skew");
    refuses("run moe_ffn --exec host --skew 1 --routing one", "and so does --skew");
    refuses("run ag_gemm --skew 1", "ag_gemm does not take --skew");
    refuses("tune all_gather",
            "ag_gemm, gemm_ar, gemm_rs, moe_dispatch_gemm, moe_ffn and ring_attention do");
    refuses("sim ag_gem --explore", "did you mean ag_gemm?");
    refuses("sim ag_gemm gemm_rs --explore", "gemm_rs is one argument too many");
    refuses("sim ag_gemm --explore --moe 8,64,8,4,1", "ag_gemm does not take --moe");
    refuses("sim ring_attention --explore --shape 8,8,8", "ring_attention does not take --shape");
    refuses("sim ag_gemm --explore --random --nodes 3",
            "--random chooses, so --nodes cannot be given");
    refuses("sim ag_gemm --explore --vary --tile 16,64",
            "--vary chooses, so --tile cannot be given");
    refuses("sim ag_gemm --explore --random --fault drop", "--random chooses");
    refuses("sim ag_gemm --explore --fault-rank 1", "go with --fault");
    refuses("sim ag_gemm --explore --fault drop --fault-rank 4", "no rank of this cluster");
    refuses("sim ag_gemm --explore --fault explode", "drop|mute|fail_put|slow");
    refuses("sim ag_gemm --explore --ring 3", "power of two");
    refuses("sim ag_gemm --explore --json x", "--json is not for --explore");
    refuses("sim ag_gemm --json same --trace same", "name the same file");
    refuses("sim ag_gemm --machine /nonexistent/x", "/nonexistent/x");
    refuses("sim ag_gemm --machine 8xB300", "8xB300");
    refuses("sim ag_gemm --cluster 2by8", "4 nodes of 8 ranks are written 4x8");
    refuses("sim ag_gemm --cluster 2x99", "at most 16 ranks a node");
    refuses("sim ag_gemm --cluster 2x8 --nodes 2", "--cluster says what --nodes");
    refuses("sim ag_gemm --nodes 4096 --gpus 16", "at most 4096 are simulated");
    refuses("sim ag_gemm --explore --plan host", "--plan is not for --explore");
    refuses("sim ag_gemm --depth 3", "--depth is for --explore");
    refuses("sim ag_gemm --vary", "--vary is for --explore");
    refuses("sim ag_gemm --network fast", "is written 100GB/s");
    refuses("sim ag_gemm --network 0GB/s", "is written 100GB/s");
    refuses("sim ag_gemm --slow rank=0.5@4", "the cluster's ranks are 0 to 3");
    refuses("sim ag_gemm --slow rank=0.5@4294967297", "the cluster's ranks are 0 to 3");
    refuses("sim ag_gemm --slow rank=0.5@18446744073709551617", "the cluster's ranks are 0 to 3");
    refuses("sim ag_gemm --slow rank=0.5@-4294967295", "it is written rank=0.7@3");
    refuses("sim ag_gemm --slow rank=nan@1", "it is written rank=0.7@3");
    refuses("sim ag_gemm --slow rank=1", "it is written rank=0.7@3");
    refuses("sim ag_gemm --slow rank=1:0.7", "it is written rank=0.7@3");
    refuses("sim ag_gemm --slow rank=0@1", "it is written rank=0.7@3");
    refuses("sim ag_gemm --slow node=0.5@1", "what can be slow are rank, link and nic");
    refuses("sim ag_gemm --jitter much", "a number from 0 to 1");
    refuses("sim ag_gemm --skew 1", "ag_gemm has no experts");
    refuses("sim moe_ffn --skew 1 --ids x", "and so does --skew");
    refuses("sim moe_ffn --ids /nonexistent/x", "No such file");
    refuses("sim ag_gemm --cluster 1x2 --tile 64,64", "no GPU kernel is built for tiles of 64x64");
    refuses("sim ring_attention --cluster 512x8 --attention 1,1073741824,64,64,128", "");
    refuses("sim ag_gemm --explore --shape 9,8,8", "the next that does is 12");
}

CASE(test_network)
{
    /* one node: not used, and wrong all the same */
    refuses("run ag_gemm --exec host --verbs bogus=1", "no 'bogus'");
    refuses("run ag_gemm --exec host --nic soft9", "soft9");
    refuses("run ag_gemm --exec host --nic soft --rails 3", "3 NICs for each rank were asked for");
    refuses("run ag_gemm --exec host --fabric efa --nic soft0", "not an EFA device");
    refuses("run ag_gemm --exec host --nodes 2 --nic soft --rails 3",
            "3 NICs for each rank were asked for");
    refuses("run ag_gemm --exec host --nodes 2 --nic soft0 --rails 2", "only 1 may be used");
    refuses("run ag_gemm --exec host --nodes 2 --nic soft0,soft",
            "soft is all of softnic's devices");
    refuses("bench fabric --nic nosuch0", "no NIC nosuch0");
    refuses("bench fabric --nic soft --peer-nic nosuch0", "no NIC nosuch0");
    refuses("bench fabric --nic soft0 --fabric efa", "not an EFA device");
    refuses("bench fabric --server --size 16", "--size is the client's to say");
    refuses("bench fabric --server --json x", "--json is the client's to say");
    refuses("bench fabric --nic soft --fabric efa --verbs depth=8", "--verbs is of --fabric verbs");
    refuses("bench fabric --nic soft --efa window=8", "--efa is of --fabric efa");
}

CASE(test_softnic_options)
{
    static const char *const lines[] = {"run ag_gemm --exec host --nodes 2 --nic soft",
                                        "bench fabric --nic soft0"};
    static const char *const wrong[][2] = {
        {"SOFTNIC=bogus=1", "unknown key \"bogus\""},
        {"SOFTNIC=bw=5", "bw=5: the value must be"},
        {"SOFTNIC=latency=1us,latency=2us", "latency is given twice"},
        {"SOFTNIC=only=soft9", "only names a device that is not there"},
        {"SOFTNIC=devices=1,drop-peer=soft1", "drop-peer names a device"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (size_t l = 0; l < 2; l++) {
            command_start(&r, lines[l], wrong[i][0], NULL);
            command_finish(&r, 20);
            judge(wrong[i][0], 2, wrong[i][1]);
            /* softnic says it itself only under programs that do not ask */
            if (command_lines(r.err_text) != 1)
                fail_msg("%s: not one line: \"%s\"", wrong[i][0], r.err_text);
        }
}

/* A line with the folder's name in it. */
static const char *at(const char *format)
{
    static char line[512];
    snprintf(line, sizeof line, format, folder, folder);
    return line;
}

CASE(test_files)
{
    struct stat there;
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    refuses(at("run ag_gemm --exec host --trace %s"), "it is a folder");
    refuses(at("run ag_gemm --exec host --json %s"), "it is a folder");
    refuses(at("run ag_gemm --exec host --trace %s/fifo"), "a file would take its place");
    refuses(at("sim ag_gemm --trace %s/fifo"), "a file would take its place");
    refuses(at("bench trace --events 1 --file %s/fifo"), "a file would take its place");
    assert_true(stat(fifo, &there) == 0 && S_ISFIFO(there.st_mode));
    refuses(at("run ag_gemm --exec host --trace %s/same --json %s/same"), "name the same file");
    refuses(at("bench ag_gemm --exec host --csv %s/same --json %s/same"), "name the same file");
    refuses("run ag_gemm --exec host --json -", "/dev/stdout");
    refuses("bench fabric --nic soft --csv /nonexistent/x", "cannot be written");
    refuses("bench ring --json /nonexistent/x", "cannot be written");
    refuses("bench trace --file /nonexistent/x", "cannot be written");
    refuses("trace generate x", "there is no report generate");
}

CASE(test_trace)
{
    in_shell(at("sim ag_gemm --shape 512,512,512 --nodes 1 --trace %s/t.db"));
    judge("sim", 0, "");
    refuses(at("trace export %s/t.db --out /nonexistent/x"), "cannot be written");
    refuses(at("trace export %s/t.db --out %s"), "it is a folder");
    refuses(at("trace export %s/t.db --rank 2"), "ranks 0 to 1");
    refuses(at("trace export %s/t.db --form x"), "`mkernel trace export --help`");
    refuses(at("trace plot %s/t.db --out /nonexistent/x.png"), "cannot be written");
    refuses(at("trace sql %s/t.db ''"), "the query is empty");
    refuses(at("tui %s/t.db --dump-screen --script %s"), "Is a directory");
    refuses(at("trace summary %s/fifo"), "is not a file"); /* at once: nobody writes to it */
    refuses(at("tui %s/fifo"), "is not a file");
    /* What cannot be written in full is taken away, but for a device: root's own, since root could
     * take the machine's. */
    struct stat there;
    char device[96] = "/dev/full", line[512];
    if (geteuid() == 0) {
        snprintf(device, sizeof device, "%s/full", folder);
        if (mknod(device, S_IFCHR | 0666, makedev(1, 7)) || access(device, W_OK))
            return;
    }
    snprintf(line, sizeof line, "trace export %s/t.db --out %s", folder, device);
    in_shell(line);
    judge("trace export", 3, "cannot write");
    assert_true(stat(device, &there) == 0 && S_ISCHR(there.st_mode));
}

/* A full disk behind standard output. */
CASE(test_output_lost)
{
    static const char *const lines[] = {"--help",
                                        "run --help",
                                        "info",
                                        "sim ag_gemm --explore --runs 1",
                                        "tui %s/t.db --dump-screen",
                                        "trace sql %s/t.db",
                                        "trace summary %s/t.db",
                                        "run ag_gemm --exec host --iters 1"};
    char line[600];
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        snprintf(line, sizeof line, "%s >/dev/full", at(lines[i]));
        in_shell(line);
        judge(line, 3, "");
        if (command_lines(r.err_text) != 1)
            fail_msg("%s: not one sentence: \"%s\"", line, r.err_text);
    }
}

/* Without standard descriptors no socket of the job becomes one. */
CASE(test_descriptors_closed)
{
    in_shell("run ag_gemm --exec host --nodes 2 --nic soft --iters 1 --check 2>&- <&-");
    judge("stderr closed", 0, "verdict   right");
    in_shell("run ag_gemm --exec host --nodes 2 --nic soft --iters 1 >&- <&-");
    judge("stdout closed", 3, "could not be written");
}

/* Where OpenBLAS's threads find no room the command ends all the same, with what is missing. */
CASE(test_limited_memory)
{
    /* the address space has to hold the program, of which kernels are the most */
    static const char *const limits[] = {"-d 10000", "-d 50000",
                                         "-v $((100000 + $(stat -Lc %s $M) / 1024))"};
    char mkernel[4096], line[8192];
    command_path(mkernel, sizeof mkernel);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(line, sizeof line,
                 "unset OPENBLAS_NUM_THREADS; M=%s; ulimit %s; exec $M run ag_gemm --exec host "
                 "--gpus 1 --shape 64,64,64",
                 mkernel, limits[i]);
        command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", line, NULL});
        command_finish(&r, 60);
        judge(limits[i], 3, "");
        if (command_lines(r.err_text) != 1)
            fail_msg("ulimit %s: not one sentence: \"%s\"", limits[i], r.err_text);
    }
}

/* Code of others is not run: softnic is taken from where the program lies, and there only where
 * nobody else can have put it. */
CASE(test_place_of_softnic)
{
    static const struct {
        const char *change, *says;
        int status;
    } cases[] = {
        {"mkdir bin && cp $M ${M%/*}/libmkernel.so.0 bin && cp ${M%/*}/libsoftnic.so .",
         "cannot load softnic", 2},
        {"mv libsoftnic.so bin && chmod 666 bin/libsoftnic.so", "may write there", 2},
        {"chmod 644 bin/libsoftnic.so && chmod 777 bin", "may write there", 2},
        {"chmod 1777 bin", "verdict   right", 0},
        {"chmod 755 bin", "verdict   right", 0},
        {"mkdir lib && mv bin/libsoftnic.so lib", "verdict   right", 0},
        {"chown 12345 lib", "somebody else owns it", 2},
    };
    char mkernel[4096], line[8192];
    command_path(mkernel, sizeof mkernel);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strncmp(cases[i].change, "chown", 5) && geteuid())
            continue;
        snprintf(line, sizeof line,
                 "M=%s; cd %s && %s && exec bin/mkernel run ag_gemm --exec host --nodes 2 --gpus 1 "
                 "--shape 64,64,64 --nic soft --iters 1 --check",
                 mkernel, folder, cases[i].change);
        command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", line, NULL});
        command_finish(&r, 60);
        judge(cases[i].change, cases[i].status, cases[i].says);
    }
}

/* Of one operator, the help has what its description has: its sentence, and the options that it
 * takes. */
CASE(test_help_of_an_operator)
{
    static const char *const commands[] = {"run", "bench", "sim", "tune"};
    struct command_run of_one, of_all;
    for (size_t i = 0; i < 4; i++) {
        char line[64];
        snprintf(line, sizeof line, "%s ag_gemm --help", commands[i]);
        command_start(&of_one, line, NULL);
        assert_int_equal(command_finish(&of_one, 60), 0);
        snprintf(line, sizeof line, "%s --help", commands[i]);
        command_start(&of_all, line, NULL);
        assert_int_equal(command_finish(&of_all, 60), 0);
        assert_non_null(strstr(of_one.out_text, "ag_gemm: gathers A from all ranks"));
        assert_null(strstr(of_one.out_text, "\n  --causal "));
        assert_null(strstr(of_one.out_text, "\n  --moe "));
        assert_non_null(strstr(of_one.out_text, "\n  --shape "));
        assert_non_null(strstr(of_all.out_text, "\n  --causal "));
        assert_non_null(strstr(of_all.out_text, "\n  --moe "));
    }
}

FIXTURE(folder_make, folder_remove)
