#define _GNU_SOURCE
#include "experiments/common/csv_row.h"
#include "experiments/common/result_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

int csv_row_open(struct csv_row *r)
{
    *r = (struct csv_row){NULL, NULL, NULL, NULL, 0, 0, 0};
    r->names = open_memstream(&r->header, &r->header_bytes);
    r->cells = open_memstream(&r->row, &r->row_bytes);
    if (r->names && r->cells)
        return 0;
    csv_row_free(r);
    return -ENOMEM;
}

/* Begins a cell: writes its column's name and what stands between cells. */
static void csv_row_next_cell(struct csv_row *r, const char *name)
{
    fprintf(r->names, "%s%s", r->columns ? "," : "", name);
    if (r->columns++)
        fputc(',', r->cells);
}

void csv_text(struct csv_row *r, const char *name, const char *text)
{
    csv_row_next_cell(r, name);
    text = text ? text : "";
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, r->cells);
        return;
    }
    fputc('"', r->cells);
    for (; *text; text++)
        fprintf(r->cells, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', r->cells);
}

void csv_whole(struct csv_row *r, const char *name, uint64_t value)
{
    csv_row_next_cell(r, name);
    fprintf(r->cells, "%llu", (unsigned long long)value);
}

void csv_number(struct csv_row *r, const char *name, const char *format, double value)
{
    csv_row_next_cell(r, name);
    if (isfinite(value))
        fprintf(r->cells, format, value);
}

int csv_row_close(struct csv_row *r)
{
    int bad = ferror(r->names) | ferror(r->cells);
    bad |= fclose(r->names) | fclose(r->cells);
    r->names = r->cells = NULL;
    return bad ? -ENOMEM : 0;
}

void csv_row_free(struct csv_row *r)
{
    if (r->names)
        fclose(r->names);
    if (r->cells)
        fclose(r->cells);
    free(r->header);
    free(r->row);
    *r = (struct csv_row){NULL, NULL, NULL, NULL, 0, 0, 0};
}

/* The first line of a file in *line, which the caller frees, without its end; empty for an empty
 * file. 0 or -errno. */
static int csv_row_first_line(int fd, char **line)
{
    size_t room = 0;
    int copy = dup(fd);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "r");
    *line = NULL;
    if (!f) {
        if (copy >= 0)
            close(copy);
        return -errno;
    }
    rewind(f);
    errno = 0;
    ssize_t length = getline(line, &room, f);
    int rc = length < 0 ? -errno : 0;
    fclose(f);
    if (length < 0) { /* at the end, too, there may be a buffer */
        free(*line);
        *line = rc ? NULL : strdup("");
        return rc || *line ? rc : -ENOMEM;
    }
    (*line)[strcspn(*line, "\r\n")] = 0;
    return 0;
}

/* The cell number `index` of a line without quotes, in `cell`. Where there is none it is empty. */
static void csv_row_cell_of(const char *line, int index, char *cell, size_t size)
{
    for (; index && *line; index--)
        line += strcspn(line, ",") + (line[strcspn(line, ",")] == ',');
    snprintf(cell, size, "%.*s", (int)strcspn(line, ","), line);
}

/* Says where two headers differ. */
static void csv_row_tell_difference(const char *path, const char *header, const char *there,
                                    char *error, size_t size)
{
    char a[64], b[64];
    int i = 0;
    do {
        csv_row_cell_of(header, i, a, sizeof a);
        csv_row_cell_of(there, i++, b, sizeof b);
    } while (!strcmp(a, b) && (*a || *b));
    snprintf(error, size, "--append: %s is another table: its column %d is %s%s%s", path, i,
             *b ? b : "not there",
             *a ? ", and this bench writes " : ", which this bench does not write", a);
}

int csv_check_append(const char *path, const char *header, char *error, size_t size)
{
    struct stat s;
    char *line;
    if (stat(path, &s))
        return 0; /* whether it can be made is another question */
    if (!S_ISREG(s.st_mode)) {
        snprintf(error, size, "--append adds to a file, and %s is none", path);
        return -EINVAL;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = fd < 0 ? -errno : csv_row_first_line(fd, &line);
    if (fd >= 0)
        close(fd);
    if (rc) {
        snprintf(error, size, "--append: %s cannot be read: %s", path, strerror(-rc));
        return -EINVAL;
    }
    int same = !*line || !strcmp(line, header);
    if (!same)
        csv_row_tell_difference(path, header, line, error, size);
    free(line);
    return same ? 0 : -EINVAL;
}

static int csv_row_write_all(int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        text += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Under the file's lock: the header where it is empty still, and the rows; cut off again where not
 * all could be written. */
static int csv_row_append_locked(int fd, const char *header, const char *text, size_t bytes)
{
    struct stat s;
    char *line = NULL, last = '\n';
    if (fstat(fd, &s))
        return -errno;
    size_t skip = s.st_size ? strlen(header) + 1 : 0;
    int rc = csv_row_first_line(fd, &line);
    if (!rc && *line && strcmp(line, header))
        rc = -EEXIST; /* it has become another table since it was looked at */
    free(line);
    if (!rc && s.st_size && pread(fd, &last, 1, s.st_size - 1) != 1)
        rc = -EIO;
    if (rc)
        return rc;
    if (last != '\n')
        rc = csv_row_write_all(fd, "\n", 1);
    rc = rc ? rc : csv_row_write_all(fd, text + skip, bytes - skip);
    if (!rc && fsync(fd) && errno != EINVAL)
        rc = -errno;
    if (rc && ftruncate(fd, s.st_size))
        return rc;
    return rc;
}

static int csv_row_append(const char *path, const char *header, const char *text, size_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666), rc = fd < 0 ? -errno : 0;
    while (!rc && flock(fd, LOCK_EX))
        if (errno != EINTR)
            rc = -errno;
    rc = rc ? rc : csv_row_append_locked(fd, header, text, bytes);
    if (fd >= 0)
        close(fd);
    return rc;
}

int csv_write(const char *path, const struct csv_row *rows, uint32_t count, int add)
{
    struct result_file f;
    int rc = result_open(&f);
    if (rc)
        return rc;
    fprintf(f.out, "%s\n", rows->header);
    for (uint32_t i = 0; i < count; i++)
        fprintf(f.out, "%s\n", rows[i].row);
    if (!add)
        return result_close(&f, path);
    int bad = ferror(f.out);
    bad |= fclose(f.out);
    rc = bad ? -ENOMEM : csv_row_append(path, rows->header, f.text, f.bytes);
    free(f.text);
    return rc;
}
