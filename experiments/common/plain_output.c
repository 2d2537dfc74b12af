#include "experiments/common/plain_output.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* A character may come in two pieces. */
static struct plain_stream {
    int fd;
    unsigned follow; /* bytes of a character that are still to come */
    int c1;          /* its first byte was 0xc2, which is held back: C1 begins so */
} plain_streams[] = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}};

/* One byte, as one or two: how many went to `out`. */
static size_t plain_output_byte(struct plain_stream *s, unsigned char c, char *out)
{
    size_t n = 0;
    if (s->c1) {
        int control = c >= 0x80 && c < 0xa0;
        s->c1 = 0;
        out[n++] = (c & 0xc0) == 0x80 && !control ? (char)0xc2 : '?';
        if ((c & 0xc0) == 0x80) {
            if (!control)
                out[n++] = (char)c;
            return n;
        }
    } else if (s->follow && (c & 0xc0) == 0x80) {
        s->follow--;
        out[n++] = (char)c;
        return n;
    }
    s->follow = c >= 0xc3 && c < 0xe0   ? 1
                : c >= 0xe0 && c < 0xf0 ? 2
                : c >= 0xf0 && c < 0xf5 ? 3
                                        : 0;
    s->c1 = c == 0xc2;
    if (!s->c1)
        out[n++] = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || (c >= 0x80 && !s->follow)
                       ? '?'
                       : (char)c;
    return n;
}

static ssize_t plain_output_write(void *cookie, const char *text, size_t size)
{
    struct plain_stream *s = cookie;
    char piece[4096];
    for (size_t i = 0; i < size;) {
        size_t used = 0;
        while (i < size && used + 2 <= sizeof piece)
            used += plain_output_byte(s, (unsigned char)text[i++], piece + used);
        for (size_t sent = 0; sent < used;) {
            ssize_t n = write(s->fd, piece + sent, used - sent);
            if (n < 0 && errno != EINTR)
                return 0; /* stdio's word for an error */
            sent += n > 0 ? (size_t)n : 0;
        }
    }
    return (ssize_t)size;
}

static FILE *plain_output_open(int stream, FILE *old, int mode)
{
    FILE *f = fopencookie(&plain_streams[stream], "w",
                          (cookie_io_functions_t){.write = plain_output_write});
    if (!f)
        return old;
    setvbuf(f, NULL, mode, BUFSIZ);
    return f;
}

void plain_output_begin(void)
{
    stdout = plain_output_open(0, stdout, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = plain_output_open(1, stderr, _IONBF);
}
