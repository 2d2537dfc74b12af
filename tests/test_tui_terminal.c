/* In a real terminal the viewer shows what it dumps, follows a resize, stops and comes back, and
 * gives the terminal back on every way out; where there is none, or a poor one, it says a sentence
 * and ends in status 2. */
/* WAITS */
#include "tests/helpers/tui_stage.h"

#include "tests/helpers/command.h"

static struct command_run result;
static char mkernel[512], server[64];
static int have_tmux;

/* A shell command's output, at most 64 KiB. */
static const char *shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *shell(const char *format, ...)
{
    static char out[1 << 16];
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    pclose(f);
    return out;
}

#define TMUX "tmux -L %s -f /dev/null "

static void type(const char *keys)
{
    shell(TMUX "send-keys -t v %s", server, keys);
}

static const char *pane(void)
{
    return shell(TMUX "capture-pane -p -t v", server);
}

/* Waits at most a minute until the pane shows `what`; its screen is printed where it never does. */
static int appears(const char *what)
{
    const struct timespec moment = {0, 50000000};
    for (int i = 0; i < 1200; i++) {
        if (strstr(pane(), what))
            return 1;
        nanosleep(&moment, NULL);
    }
    fprintf(stderr, "\"%s\" never came up:\n%s", what, pane());
    return 0;
}

/* Waits at most a minute until the pane is exactly the screen that `mkernel tui ... --dump-screen`
 * prints. */
static int becomes(const char *dump)
{
    const struct timespec moment = {0, 50000000};
    char want[1 << 15];
    snprintf(want, sizeof want, "%s", dump);
    for (int i = 0; i < 1200; i++) {
        if (!strcmp(pane(), want))
            return 1;
        nanosleep(&moment, NULL);
    }
    fprintf(stderr, "the terminal shows\n%sand not\n%s", pane(), want);
    return 0;
}

static const char *dump(int width, int height, const char *options)
{
    return shell("LC_ALL=C.UTF-8 %s tui %s --dump-screen --size %dx%d %s", mkernel, stage_trace(0),
                 width, height, options);
}

/* A shell in a terminal of the given size, its settings noted. ncurses keeps buffers for ever,
 * which a sanitizer would report at the viewer's end; its own memory is checked by the tests that
 * need no terminal. */
static void open_terminal(int width, int height)
{
    static int number;
    if (number)
        shell(TMUX "kill-server 2>/dev/null", server);
    snprintf(server, sizeof server, "mk_tui_%d_%d", (int)getpid(),
             number++); /* the old server may still be leaving */
    shell(TMUX "new-session -d -s v -x %d -y %d \"env PS1='READY> ' ASAN_OPTIONS=detect_leaks=0 "
               "LC_ALL=C.UTF-8 TERM=tmux-256color sh\"",
          server, width, height);
    shell(TMUX "set-option -g window-size manual", server);
    assert_true(appears("READY>"));
    char keys[256];
    snprintf(keys, sizeof keys, "'stty -g > %s/before' Enter", stage_folder);
    type(keys);
}

static void start_viewer(const char *environment, const char *options)
{
    char keys[1024];
    snprintf(keys, sizeof keys, "'clear; %s %s tui %s %s' Enter", environment, mkernel,
             stage_trace(0), options);
    type(keys);
    assert_true(appears("Detail"));
}

/* After the viewer: the shell is back on its own screen, and the line settings are what they
 * were. */
static void terminal_is_restored(const char *status)
{
    char keys[256];
    assert_true(appears("READY>"));
    snprintf(keys, sizeof keys, "'echo status=$?; stty -g > %s/after; echo no\"\"ted' Enter",
             stage_folder);
    type(keys);
    assert_true(appears("noted"));
    assert_non_null(strstr(pane(), status));
    assert_null(strstr(pane(), "Detail"));
    snprintf(keys, sizeof keys, "cmp %s/before %s/after 2>&1", stage_folder, stage_folder);
    assert_string_equal(shell("%s", keys), "");
    assert_string_equal(
        shell(TMUX "display-message -p -t v '#{alternate_on} #{cursor_flag} #{mouse_any_flag}'",
              server),
        "0 1 0\n");
}

static int skip_without_tmux(void)
{
    if (have_tmux)
        return 0;
    printf("tmux is not installed: the viewer was not run in a real terminal\n");
    skip();
    return 1;
}

CASE(it_shows_what_it_dumps_and_follows_a_resize)
{
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    start_viewer("", "");
    assert_true(becomes(dump(100, 30, "")));
    shell(TMUX "resize-window -t v -x 132 -y 43", server);
    assert_true(becomes(shell("printf 'resize 132 43\\n' > %s/script; LC_ALL=C.UTF-8 %s tui %s "
                              "--dump-screen --size 100x30 "
                              "--script %s/script",
                              stage_folder, mkernel, stage_trace(0), stage_folder)));
    shell(TMUX "resize-window -t v -x 30 -y 6", server);
    assert_true(appears("too small"));
    shell(TMUX "resize-window -t v -x 100 -y 30", server);
    assert_true(becomes(dump(100, 30, "")));
    type("q");
    terminal_is_restored("status=0");
}

CASE(keys_and_mouse_of_a_terminal_arrive)
{
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    start_viewer("", "");
    type("Down Down Right Right + Tab PageDown Home BTab End");
    assert_true(becomes(shell("printf 'Down Down Right Right + Tab PageDown Home BackTab End\\n' > "
                              "%s/script; LC_ALL=C.UTF-8 %s "
                              "tui %s --dump-screen --size 100x30 --script %s/script",
                              stage_folder, mkernel, stage_trace(0), stage_folder)));
    /* a sequence that means nothing here is dropped; then a press of the left button at column 50,
     * line 5 (X10: 33 added to both) */
    type("-l \"$(printf '\\033[1;2I')\"");
    type("0 g Home");
    type("-l \"$(printf '\\033[M \\123\\046')\"");
    assert_true(
        becomes(shell("printf 'Down Down Right Right + Tab PageDown Home BackTab End\\n0 g "
                      "Home\\nclick 50 5\\n' > %s/script; "
                      "LC_ALL=C.UTF-8 %s tui %s --dump-screen --size 100x30 --script %s/script",
                      stage_folder, mkernel, stage_trace(0), stage_folder)));
    type("q");
    terminal_is_restored("status=0");
}

CASE(ctrl_z_and_fg)
{
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    start_viewer("", "");
    type("C-z");
    assert_true(appears("Stopped"));
    assert_string_equal(
        shell(TMUX "display-message -p -t v '#{alternate_on} #{cursor_flag}'", server), "0 1\n");
    type("fg Enter");
    assert_true(becomes(dump(100, 30, "")));
    type("q");
    assert_true(appears("READY>"));
    assert_string_equal(
        shell(TMUX "display-message -p -t v '#{alternate_on} #{cursor_flag}'", server), "0 1\n");
}

/* The pid of the viewer in the pane. */
static int viewer_pid(void)
{
    int top = atoi(shell(TMUX "display-message -p -t v '#{pane_pid}'", server));
    return atoi(shell("ps -o pid= --ppid %d", top));
}

CASE(every_way_out_restores_the_terminal)
{
    static const struct {
        int signal;
        const char *status;
    } ways[] = {{SIGINT, "status=130"},  {SIGTERM, "status=143"}, {SIGHUP, "status=129"},
                {SIGQUIT, "status=131"}, {SIGSEGV, "status=139"}, {SIGABRT, "status=134"}};
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        start_viewer("", "");
        if (ways[i].signal == SIGINT)
            type("C-c");
        else
            kill(viewer_pid(), ways[i].signal);
        terminal_is_restored(ways[i].status);
    }
}

CASE(colours_are_as_many_as_the_terminal_has)
{
    static const struct {
        const char *environment;
        int many, few;
    } kinds[] = {{"", 1, 0}, {"NO_COLOR=1", 0, 0}, {"TERM=screen", 0, 1}};
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        start_viewer(kinds[i].environment, "");
        assert_true(becomes(dump(100, 30, "")));
        const char *raw = shell(TMUX "capture-pane -e -p -t v", server);
        assert_int_equal(strstr(raw, "38;5;") != NULL, kinds[i].many);
        assert_int_equal(strstr(raw, "\033[34m") != NULL, kinds[i].few);
        type("q");
        terminal_is_restored("status=0");
        type("clear Enter");
    }
}

CASE(characters_are_those_of_the_locale)
{
    if (skip_without_tmux())
        return;
    open_terminal(100, 30);
    start_viewer("LC_ALL=C", "");
    assert_true(becomes(dump(100, 30, "--ascii")));
    type("q");
    terminal_is_restored("status=0");
    start_viewer("LC_ALL=xx_YY.UTF-8", ""); /* named but not installed: UTF-8 all the same */
    assert_true(becomes(dump(100, 30, "")));
    type("q");
    terminal_is_restored("status=0");
}

static void expect_refusal(const char *line, const char *word)
{
    command_expect(&result, line, "TERM=xterm", 2, word);
}

CASE(unusable_arguments_end_in_one_sentence)
{
    char line[512];
    expect_refusal("tui", "missing");
    expect_refusal("tui a b c", "one argument too many");
    expect_refusal("tui a --wrong", "--wrong");
    expect_refusal("tui a --size 80x24", "--dump-screen");
    expect_refusal("tui a --dump-screen --size 80", "WIDTHxHEIGHT");
    expect_refusal("tui a --dump-screen --size 0x9", "WIDTHxHEIGHT");
    expect_refusal("tui a --dump-screen --size 80x24x", "WIDTHxHEIGHT");
    expect_refusal("tui a --script", "needs a value");
    expect_refusal("tui a --key-times", "--key-times");
    expect_refusal("tui /nonexistent.db", "/nonexistent.db");
    expect_refusal("tui /etc/passwd", "not a trace");
    expect_refusal("tui /", "/");
    snprintf(line, sizeof line, "tui %s --dump-screen --script /nonexistent", stage_trace(0));
    expect_refusal(line, "/nonexistent");
    snprintf(line, sizeof line, "tui %s --dump-screen --script %s", stage_trace(0), stage_trace(0));
    expect_refusal(line, "line 1");
    snprintf(line, sizeof line, "tui %s", stage_trace(0)); /* its output is a pipe here */
    expect_refusal(line, "needs a terminal");
}

CASE(a_terminal_that_cannot_place_the_cursor_gets_a_sentence)
{
    static const char *const types[] = {"dumb", "nonsense-terminal", "''"};
    for (int i = 0; i < 3; i++) {
        /* `script` gives it a terminal without tmux */
        const char *out =
            shell("env TERM=%s script -qec '%s tui %s; echo status=$?' /dev/null </dev/null 2>&1",
                  types[i], mkernel, stage_trace(0));
        if (!strstr(out, "status=")) {
            puts("script(1) is not installed");
            skip();
        }
        assert_non_null(strstr(out, "cannot place the cursor"));
        assert_non_null(strstr(out, "status=2"));
        assert_null(strchr(out, '\033'));
    }
}

static int find(void **state)
{
    (void)state;
    command_path(mkernel, sizeof mkernel);
    stage_trace(0);
    have_tmux = strstr(shell("tmux -V 2>&1"), "tmux ") != NULL;
    return 0;
}

static int leave(void **state)
{
    if (server[0])
        shell(TMUX "kill-server 2>/dev/null", server);
    if (stage_folder[0])
        shell("rm -f %s/before %s/after %s/script", stage_folder, stage_folder, stage_folder);
    return stage_clean(state);
}

FIXTURE(find, leave)
