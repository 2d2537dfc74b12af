/* `mkernel bench fabric` and `bench ring` measure, write what they print, and refuse bad arguments
 * with status 2 and dead ends with status 3, one sentence each. */
#include "tests/helpers/command.h"

static struct command_run r;

static void expect(const char *line, int status, const char *says)
{
    command_expect(&r, line, NULL, status, says);
}

CASE(test_arguments)
{
    expect("bench fabric --help", 0, "--peer-nic");
    expect("bench fabric --size 17", 2, "multiples of 16");
    expect("bench fabric --size 16 --min 32", 2, "one or the other");
    expect("bench fabric --min 64 --max 32", 2, "is more than");
    expect("bench fabric --size 16 --factor 4", 2, "one or the other");
    expect("bench fabric --factor 1", 2, "--factor 1");
    expect("bench fabric -b 24", 2, "multiples of 16");
    expect("bench fabric --verbs qps=99", 2, "qps takes 1 to 16");
    expect("bench fabric --verbs lanes=1", 2, "have no 'lanes'");
    expect("run ag_gemm --exec host --nodes 2 --gpus 1 --nic soft --verbs qps=99", 2,
           "qps takes 1 to 16");
    expect("bench fabric --server --client x", 2, "give one");
    expect("bench fabric --server --peer-nic soft1", 2, "its own --nic");
    expect("bench fabric --port 5", 2, "goes with");
    expect("bench fabric now", 2, "one argument too many");
    expect("bench fabric --depth 0", 2, "--depth 0");
    expect("bench ring --help", 0, "--capacity");
    expect("bench ring --capacity 1000", 2, "power of two");
    expect("bench ring now", 2, "one argument too many");
}

CASE(test_dead_ends)
{
    expect("bench fabric --nic nosuch", 2, "there is no NIC nosuch");
    expect("bench fabric --nic soft --peer-nic nosuch", 2, "there is no NIC nosuch");
    expect("bench fabric --client 127.0.0.1 --port 1 --timeout 0.2", 3, "no server");
    expect("bench fabric --nic soft --json /nonexistent/x", 2, "cannot be written");
    expect("bench ring --json /nonexistent/x", 2, "cannot be written");
}

/* Two tries of 1.07 s each; the defaults would give a silent peer up after 0.5 s. */
CASE(test_run_waits_as_asked)
{
    setenv("SOFTNIC", "drop-peer=soft0", 1);
    expect("run ag_gemm --exec host --nodes 2 --gpus 1 --nic soft --shape 128,16,32 --verbs "
           "timeout=18,retry=1",
           3, "transport retry counter exceeded");
    unsetenv("SOFTNIC");
    assert_true(r.seconds > 2.1);
}

/* The value of column `column` in the first line behind the head that begins with `bytes`. */
static double column_of(const char *text, const char *head, const char *bytes, int column)
{
    const char *at = strstr(text, head);
    double value = -1;
    for (at = at ? strchr(at, '\n') : NULL; at && value < 0; at = strchr(at + 1, '\n'))
        if (!strncmp(at + 2, bytes, strlen(bytes)) && at[2 + strlen(bytes)] == ' ') {
            at += 2;
            for (int i = 0; i < column; i++) {
                at += strcspn(at, " \n");
                at += strspn(at, " ");
            }
            value = strtod(at, NULL);
        }
    return value;
}

CASE(test_measures)
{
    expect("bench fabric --nic soft --min 64 --max 256 --iters 300", 0, "BW average[MiB/sec]");
    for (int column = 2; column <= 4; column++)
        assert_true(column_of(r.out_text, "BW peak", "128", column) > 0);
    assert_true(column_of(r.out_text, "BW peak", "256", 1) == 300);
    double min = column_of(r.out_text, "t_min", "256", 2),
           max = column_of(r.out_text, "t_min", "256", 3);
    double typical = column_of(r.out_text, "t_min", "256", 4),
           p99 = column_of(r.out_text, "t_min", "256", 7);
    assert_true(min > 0 && min <= typical && typical <= p99 && p99 <= max);
    double average = column_of(r.out_text, "BW peak", "256", 3) * 1048576,
           rate = column_of(r.out_text, "BW peak", "256", 4) * 1e6;
    assert_true(average > 0.99 * rate * 256 - 20000 && average < 1.01 * rate * 256 + 20000);
    expect("bench fabric --nic soft --test lat --size 4KB --iters 50", 0, "t_typical");
    assert_null(strstr(r.out_text, "BW peak"));
    expect("bench fabric --nic soft --test lat -b 64 -e 1024 -f 4 -n 200", 0, "95% percentile");
    assert_true(column_of(r.out_text, "t_min", "64", 1) == 200);
    assert_true(column_of(r.out_text, "t_min", "128", 1) == -1); /* 64, 256, 1024 */
    double p95 = column_of(r.out_text, "t_min", "1024", 9);
    assert_true(p95 >= column_of(r.out_text, "t_min", "1024", 4) &&
                p95 <= column_of(r.out_text, "t_min", "1024", 7));
    expect("bench ring --commands 100000 --rounds 3", 0, "median[M/s]");
}

/* Both ways at once: each end checks the bytes and flags that the other put, in each half of the
 * data; and where a wire has no way back of its own, both together are no faster than it. */
CASE(test_both_ways)
{
    setenv("SOFTNIC", "bw=200MB/s", 1);
    expect("bench fabric --nic soft --test bw -s 256KB -n 100", 0, "BW average");
    double one = column_of(r.out_text, "BW peak", "262144", 3);
    expect("bench fabric --nic soft --test bibw -s 256KB -n 100", 0, "BW average");
    double both = column_of(r.out_text, "BW peak", "262144", 3);
    unsetenv("SOFTNIC");
    print_message("one way %.1f, both %.1f MB/s\n", one, both);
    assert_true(one > 0 && one < 215 && both > one && both < 2.15 * 200);
    expect("bench fabric --nic soft --test bibw -b 16 -e 4MB -f 64 --csv /dev/stdout", 0,
           "bibw,16,");
    expect("bench fabric --nic soft --test bibw -s 8MB -n 20 --json /dev/stdout", 0,
           "\"test\":\"bibw\",\"bytes\":8388608");
#ifdef MK_HAVE_EFA
    expect("bench fabric --fabric efa --nic soft --test bibw -s 64KB -n 300", 0, "BW average");
#endif
}

/* Over SRD the receiving end has to poll: its flags are checked all the same. */
CASE(test_efa)
{
#ifdef MK_HAVE_EFA
    expect("bench fabric --fabric efa --efa window=1", 2, "window takes 8 to 256");
    expect("bench fabric --fabric efa --nic soft0", 2, "soft0");
    expect(
        "bench fabric --fabric efa --nic soft --rails 2 --size 192KB --iters 300 --efa window=16",
        0, "+softefa");
    assert_true(column_of(r.out_text, "BW peak", "196608", 1) == 300);
    assert_true(column_of(r.out_text, "t_min", "196608", 1) == 300);
#else
    print_message("skipped: built without <infiniband/efadv.h>\n");
    skip();
#endif
}
