#include "tui/screen.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <term.h>

static struct {
    SCREEN *screen;
    FILE *out; /* ncurses writes through it */
    struct termios saved;
    int have_saved, open, pipe[2];
    int colours; /* 256, 8 or 0 */
    volatile sig_atomic_t ending, resized, suspend;
    struct sigaction old[NSIG];
} tty = {.pipe = {-1, -1}};

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/* 256-colour and 8-colour foregrounds by meaning; -1: the terminal's own. Waits are reds, work is
 * blue, what overlaps is green, what communicates is orange, so that the pairs that matter differ
 * for colour-blind eyes too. */
static const short palette[COLOURS][2] = {
    [COLOUR_TEXT] = {-1, -1},
    [COLOUR_FAINT] = {245, -1},
    [COLOUR_TITLE] = {-1, -1},
    [COLOUR_COMPUTE] = {33, COLOR_BLUE},
    [COLOUR_COPY] = {208, COLOR_YELLOW},
    [COLOUR_SEND] = {170, COLOR_MAGENTA},
    [COLOUR_REDUCE] = {44, COLOR_CYAN},
    [COLOUR_WAIT_DATA] = {167, COLOR_RED},
    [COLOUR_WAIT_ROOM] = {203, COLOR_RED},
    [COLOUR_WAIT_NETWORK] = {196, COLOR_RED},
    [COLOUR_BOTH] = {77, COLOR_GREEN},
    [COLOUR_IDLE] = {240, -1},
    [COLOUR_NVLINK] = {80, COLOR_CYAN},
    [COLOUR_NIC] = {141, COLOR_MAGENTA},
    [COLOUR_MARK] = {220, COLOR_YELLOW},
    [COLOUR_ERROR] = {197, COLOR_RED},
};

int screen_utf8(void)
{
    const char *names[] = {getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")};
    if (!setlocale(LC_CTYPE, ""))
        for (int i = 0; i < 3; i++) {
            if (!names[i] || !*names[i])
                continue;
            /* the locale is named but not installed here: its character set still says what the
             * terminal takes */
            if (strstr(names[i], "UTF-8") || strstr(names[i], "utf8"))
                setlocale(LC_CTYPE, "C.UTF-8");
            break;
        }
    return !strcmp(nl_langinfo(CODESET), "UTF-8");
}

static void screen_wake(void)
{
    int saved = errno;
    if (write(tty.pipe[1], "", 1) < 0) {
        /* the pipe is full: the loop wakes anyway */
    }
    errno = saved;
}

static void screen_on_signal(int number)
{
    if (number == SIGWINCH)
        tty.resized = 1;
    else if (number == SIGTSTP)
        tty.suspend = 1;
    else
        tty.ending = number;
    screen_wake();
}

/* A crash cannot go through ncurses: the plain bytes that leave every mode it set, and the line
 * settings. */
static void screen_on_crash(int number)
{
    static const char leave[] = "\033[?1000l\033[?1006l\033[?1049l\033[0m\033[?25h\r\n";
    if (tty.have_saved) {
        if (write(STDOUT_FILENO, leave, sizeof leave - 1) < 0) {
            /* nothing else can be done */
        }
        tcsetattr(STDIN_FILENO, TCSANOW, &tty.saved);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void screen_catch(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, &tty.old[number]);
}

static void screen_catch_signals(void)
{
    for (size_t i = 0; i < sizeof end_signals / sizeof *end_signals; i++)
        screen_catch(end_signals[i], screen_on_signal);
    for (size_t i = 0; i < sizeof crash_signals / sizeof *crash_signals; i++)
        screen_catch(crash_signals[i], screen_on_crash);
    screen_catch(SIGWINCH, screen_on_signal);
    screen_catch(SIGTSTP, screen_on_signal);
}

static void screen_release_signals(void)
{
    for (size_t i = 0; i < sizeof end_signals / sizeof *end_signals; i++)
        sigaction(end_signals[i], &tty.old[end_signals[i]], NULL);
    for (size_t i = 0; i < sizeof crash_signals / sizeof *crash_signals; i++)
        sigaction(crash_signals[i], &tty.old[crash_signals[i]], NULL);
    sigaction(SIGWINCH, &tty.old[SIGWINCH], NULL);
    sigaction(SIGTSTP, &tty.old[SIGTSTP], NULL);
}

static void screen_start_colours(int wanted)
{
    tty.colours = 0;
    if (!wanted || !has_colors() || start_color() == ERR)
        return;
    use_default_colors();
    tty.colours = COLORS >= 256 ? 256 : COLORS >= 8 ? 8 : 0;
    for (int i = 0; i < COLOURS && tty.colours; i++)
        init_pair((short)(i + 1), palette[i][tty.colours == 8], -1);
}

int screen_open(const struct screen_options *options, char *error, int size)
{
    int status = 0;
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return mk_fail(-ENOTTY, error, (size_t)size,
                       "the viewer needs a terminal; --dump-screen prints a screen without one");
    if (!term || !*term || setupterm(NULL, STDOUT_FILENO, &status) != OK || !cursor_address)
        return mk_fail(
            -ENODEV, error, (size_t)size,
            "terminal type '%.40s' cannot place the cursor; set TERM, or use --dump-screen "
            "or `mkernel trace summary`",
            term ? term : "");
    if (pipe(tty.pipe)) {
        status = -errno;
        snprintf(error, (size_t)size, "cannot make a pipe: %s", strerror(-status));
        return status;
    }
    for (int i = 0; i < 2; i++) {
        int flags = fcntl(tty.pipe[i], F_GETFL);
        fcntl(tty.pipe[i], F_SETFL, flags | O_NONBLOCK);
        fcntl(tty.pipe[i], F_SETFD, FD_CLOEXEC);
    }
    del_curterm(cur_term); /* newterm makes its own */
    tty.have_saved = tcgetattr(STDIN_FILENO, &tty.saved) == 0;
    /* a stream of its own: ncurses asks for the descriptor, and stdout may have none */
    int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    tty.out = copy < 0 ? NULL : fdopen(copy, "w");
    tty.screen = tty.out ? newterm(NULL, tty.out, stdin) : NULL;
    if (!tty.screen) {
        if (tty.out)
            fclose(tty.out);
        close(tty.pipe[0]);
        close(tty.pipe[1]);
        return mk_fail(-ENODEV, error, (size_t)size, "terminal type '%.40s' is not known here",
                       term);
    }
    tty.open = 1;
    screen_catch_signals();
    atexit(screen_close);
    cbreak();
    noecho();
    nonl(); /* Enter stays apart from Ctrl-J */
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(25);
    curs_set(0);
    screen_start_colours(options->colour);
    if (options->mouse) {
        mousemask(BUTTON1_PRESSED | BUTTON4_PRESSED | BUTTON5_PRESSED, NULL);
        mouseinterval(0);
    }
    return 0;
}

void screen_close(void)
{
    if (!tty.open)
        return;
    tty.open = 0;
    mousemask(0, NULL);
    endwin();
    delscreen(tty.screen);
    fclose(tty.out);
    tty.out = NULL;
    tty.screen = NULL;
    screen_release_signals();
    if (tty.have_saved)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &tty.saved);
    tty.have_saved = 0;
    close(tty.pipe[0]);
    close(tty.pipe[1]);
}

void screen_size(int *width, int *height)
{
    getmaxyx(stdscr, *height, *width);
}

void screen_draw(const struct cells *c, int whole)
{
    if (whole)
        clearok(stdscr, TRUE);
    erase();
    for (int y = 0; y < c->height && y < LINES; y++)
        for (int x = 0; x < c->width && x < COLS; x++) {
            const struct cell *cell = &c->cell[(size_t)y * (size_t)c->width + (size_t)x];
            attr_t attr = (cell->attr & ATTR_BOLD ? A_BOLD : 0) |
                          (cell->attr & ATTR_REVERSE ? A_REVERSE : 0) |
                          (cell->attr & ATTR_UNDERLINE ? A_UNDERLINE : 0) |
                          (cell->attr & ATTR_DIM ? A_DIM : 0);
            wchar_t text[2] = {(wchar_t)cell->glyph, 0};
            cchar_t wide;
            if (cell->glyph == ' ' && !attr)
                continue;
            setcchar(&wide, text, attr, tty.colours ? (short)(cell->colour + 1) : 0, NULL);
            mvadd_wch(y, x, &wide);
        }
    refresh();
}

int screen_signal(void)
{
    return tty.ending;
}

int screen_finish(int rc)
{
    int ended = screen_signal();
    screen_close();
    if (ended) {
        signal(ended, SIG_DFL);
        raise(ended);
    }
    if (rc)
        fprintf(stderr, "mkernel tui: %s\n",
                rc == -ENOMEM ? "no memory for the screen" : "the terminal is gone");
    return rc;
}

void screen_suspend(void)
{
    struct sigaction ours, standard = {.sa_handler = SIG_DFL};
    sigset_t stop;
    tty.suspend = 0;
    def_prog_mode();
    endwin();
    sigaction(SIGTSTP, &standard, &ours);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    raise(SIGTSTP); /* returns when the shell continues us */
    sigaction(SIGTSTP, &ours, NULL);
    reset_prog_mode();
    tty.resized = 1; /* the window may have changed meanwhile; draws everything anew */
}

static int resized(struct key *key)
{
    struct winsize size;
    tty.resized = 0;
    /* resizeterm would post KEY_RESIZE, and that bring us here again */
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
        resize_term(size.ws_row, size.ws_col);
    *key = (struct key){TUI_RESIZE, COLS, LINES};
    return 1;
}

static int screen_translate(int code, struct key *key)
{
    static const struct {
        int from, to;
    } map[] = {{KEY_UP, TUI_UP},        {KEY_DOWN, TUI_DOWN},     {KEY_LEFT, TUI_LEFT},
               {KEY_RIGHT, TUI_RIGHT},  {KEY_PPAGE, TUI_PAGE_UP}, {KEY_NPAGE, TUI_PAGE_DOWN},
               {KEY_HOME, TUI_HOME},    {KEY_END, TUI_END},       {KEY_ENTER, TUI_ENTER},
               {'\r', TUI_ENTER},       {'\n', TUI_ENTER},        {KEY_BACKSPACE, TUI_BACKSPACE},
               {127, TUI_BACKSPACE},    {8, TUI_BACKSPACE},       {'\t', TUI_TAB},
               {KEY_BTAB, TUI_BACKTAB}, {27, TUI_ESCAPE}};
    MEVENT mouse;
    *key = (struct key){0};
    if (code == KEY_RESIZE)
        return 0; /* SIGWINCH is ours: what it asks for is done */
    if (code == KEY_MOUSE) {
        if (getmouse(&mouse) != OK)
            return 0;
        key->code = mouse.bstate & BUTTON4_PRESSED   ? TUI_WHEEL_UP
                    : mouse.bstate & BUTTON5_PRESSED ? TUI_WHEEL_DOWN
                    : mouse.bstate & BUTTON1_PRESSED ? TUI_CLICK
                                                     : 0;
        key->x = mouse.x;
        key->y = mouse.y;
        return key->code != 0;
    }
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (map[i].from == code) {
            key->code = map[i].to;
            return 1;
        }
    key->code = code < 128 ? code : 0;
    return key->code != 0;
}

/* A sequence that the terminal sends and ncurses does not know (an odd key with a modifier, a
 * report) is dropped whole: its letters are not meant as commands. Returns whether what follows an
 * escape was one. */
static int screen_drop_sequence(void)
{
    int next = getch(), c = next;
    if (next == '[' || next == 'O') {
        for (int i = 0; i < 32 && c != ERR && (i == 0 || c < 0x40 || c > 0x7e); i++)
            c = getch();
        return 1;
    }
    if (next != ERR)
        ungetch(next);
    return 0;
}

int screen_key(struct key *key, int timeout_ms)
{
    for (;;) {
        struct pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {tty.pipe[0], POLLIN, 0}};
        char drain[64];
        if (tty.ending)
            return -EINTR;
        if (tty.suspend)
            screen_suspend();
        if (tty.resized)
            return resized(key);
        int code = getch(); /* what ncurses holds already */
        if (code != ERR) {
            if ((code != 27 || !screen_drop_sequence()) && screen_translate(code, key))
                return 1;
            continue;
        }
        int n = poll(fds, 2, timeout_ms);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -EIO;
        if (n > 0 && fds[1].revents & POLLIN)
            while (read(tty.pipe[0], drain, sizeof drain) > 0)
                ;
        if (n > 0 && fds[0].revents & (POLLHUP | POLLERR | POLLNVAL) && !(fds[0].revents & POLLIN))
            return -EIO;
        if (n > 0 && fds[0].revents & POLLIN && fds[0].revents & POLLHUP)
            return -EIO;
    }
}
