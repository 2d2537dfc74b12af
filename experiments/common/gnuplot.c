#include "experiments/common/gnuplot.h"
#include "core/sentence.h"
#include "experiments/common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

void gnuplot_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("''", out);
        else
            fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, out);
    fputc('\'', out);
}

int gnuplot_is_svg(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcasecmp(dot, ".svg");
}

int gnuplot_check_path(const char *option, const char *path, char *error, size_t size)
{
    const char *dot = strrchr(path, '.');
    if (dot && (!strcasecmp(dot, ".png") || !strcasecmp(dot, ".svg")))
        return 0;
    return mk_fail(-EINVAL, error, size, "%s must end in .png or .svg", option);
}

enum { END = 12 };

/* The last bytes of what comes in pieces. */
static void gnuplot_keep_end(char end[END], const char *piece, size_t n)
{
    size_t new = n < END ? n : END;
    memmove(end, end + new, END - new);
    memcpy(end + END - new, piece + n - new, new);
}

/* Whether a picture ends as one: in an empty chunk IEND with its checksum, or in the root's closing
 * tag. */
static int gnuplot_is_whole(const char end[END], const char *path)
{
    if (gnuplot_is_svg(path))
        return memmem(end, END, "</svg>", 6) != NULL;
    return !memcmp(end, "\0\0\0\0IEND\xae\x42\x60\x82", END);
}

/* gnuplot's picture of a script, from a pipe: it does not notice itself where a disk is full. 0 or
 * -errno with a sentence. */
int gnuplot_run(int script, FILE *out, const char *path, char *error, size_t size)
{
    int picture[2], status, rc = 0;
    char name[32], piece[65536], end[END] = "";
    snprintf(name, sizeof name, "/dev/fd/%d", script);
    if (pipe2(picture, O_CLOEXEC))
        return mk_fail(-EIO, error, size, "cannot start gnuplot: %s", strerror(errno));
    char *const words[] = {"gnuplot", name, NULL};
    /* its complaints are many lines */
    const struct process_how how = {.program = "gnuplot",
                                    .words = words,
                                    .in = -1,
                                    .out = picture[1],
                                    .err = -1,
                                    .death = SIGKILL};
    pid_t child = process_start(&how);
    close(picture[1]);
    if (child < 0) {
        close(picture[0]);
        return mk_fail(-EIO, error, size, "cannot start gnuplot: %s", strerror(-child));
    }
    for (ssize_t n; !rc && (n = read(picture[0], piece, sizeof piece)) > 0;) {
        if (fwrite(piece, 1, (size_t)n, out) < (size_t)n || fflush(out))
            rc = mk_fail(-errno, error, size, "cannot write '%s': %s", path, strerror(errno));
        gnuplot_keep_end(end, piece, (size_t)n);
    }
    close(picture[0]);
    status = process_end(child);
    if (rc)
        return rc;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        rc = mk_fail(-ENOENT, error, size, "gnuplot is not installed (package gnuplot-nox)");
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) || !gnuplot_is_whole(end, path))
        rc = mk_fail(-EIO, error, size, "gnuplot could not draw '%s'", path);
    return rc;
}
