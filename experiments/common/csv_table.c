#include "experiments/common/csv_table.h"
#include "core/base/file_lock.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/result_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_MS 60000 /* another bench appends for moments */

void csv_free(struct csv_table *t)
{
    if (t->names)
        fclose(t->names);
    if (t->cells)
        fclose(t->cells);
    free(t->header);
    free(t->rows);
    *t = (struct csv_table){.count = 0};
}

/* Not where there was no memory, which is told in the end. */
static int csv_table_is_open(const struct csv_table *t)
{
    return t->names && t->cells;
}

void csv_row(struct csv_table *t)
{
    if (!t->count) {
        t->names = open_memstream(&t->header, &t->header_bytes);
        t->cells = open_memstream(&t->rows, &t->rows_bytes);
    } else if (csv_table_is_open(t)) {
        fputc('\n', t->cells);
    }
    t->count++;
    t->columns = 0;
}

/* Begins a cell: writes its column's name and what stands between cells. Whether it can be. */
static int csv_table_next_cell(struct csv_table *t, const char *name)
{
    if (!csv_table_is_open(t))
        return 0;
    if (t->count == 1)
        fprintf(t->names, "%s%s", t->columns ? "," : "", name);
    if (t->columns++)
        fputc(',', t->cells);
    return 1;
}

void csv_text(struct csv_table *t, const char *name, const char *text)
{
    if (!csv_table_next_cell(t, name))
        return;
    text = text ? text : "";
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, t->cells);
        return;
    }
    fputc('"', t->cells);
    for (; *text; text++)
        fprintf(t->cells, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', t->cells);
}

void csv_whole(struct csv_table *t, const char *name, uint64_t value)
{
    if (csv_table_next_cell(t, name))
        fprintf(t->cells, "%lu", value);
}

void csv_number(struct csv_table *t, const char *name, const char *format, double value)
{
    if (csv_table_next_cell(t, name) && isfinite(value))
        fprintf(t->cells, format, value);
}

/* t->header and t->rows are all that was written. 0 or -ENOMEM. */
static int csv_table_flush(struct csv_table *t)
{
    if (!csv_table_is_open(t))
        return -ENOMEM;
    return fflush(t->names) | fflush(t->cells) | ferror(t->names) | ferror(t->cells) ? -ENOMEM : 0;
}

/* The first line of a file in *line, which the caller frees, without its end; empty for an empty
 * file. 0 or -errno. */
static int csv_table_first_line(int fd, char **line)
{
    size_t room = 0;
    int copy = dup(fd);
    MK_CLOSED FILE *f = copy < 0 ? NULL : fdopen(copy, "r");
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
    if (length < 0) { /* at the end, too, there may be a buffer */
        free(*line);
        *line = rc ? NULL : strdup("");
        return rc || *line ? rc : -ENOMEM;
    }
    (*line)[strcspn(*line, "\r\n")] = 0;
    return 0;
}

/* The cell number `index` of a line without quotes, in `cell`. Where there is none it is empty. */
static void csv_table_cell_of(const char *line, int index, char *cell, size_t size)
{
    for (; index && *line; index--)
        line += strcspn(line, ",") + (line[strcspn(line, ",")] == ',');
    snprintf(cell, size, "%.*s", (int)strcspn(line, ","), line);
}

/* Says where two headers differ. */
static void csv_table_tell_difference(const char *path, const char *header, const char *there,
                                      char *error, size_t size)
{
    char a[64], b[64];
    int i = 0;
    do {
        csv_table_cell_of(header, i, a, sizeof a);
        csv_table_cell_of(there, i++, b, sizeof b);
    } while (!strcmp(a, b) && (*a || *b));
    snprintf(error, size, "--append: %s is another table: its column %d is %s%s%s", path, i,
             *b ? b : "not there",
             *a ? ", and this bench writes " : ", which this bench does not write", a);
}

static int csv_table_compare(const char *path, const char *header, char *error, size_t size)
{
    struct stat s;
    MK_FREED char *line = NULL;
    if (stat(path, &s))
        return 0; /* whether it can be made is another question */
    if (!S_ISREG(s.st_mode))
        return mk_fail(-EINVAL, error, size, "--append adds to a file, and %s is none", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC),
        rc = fd < 0 ? -errno : csv_table_first_line(fd, &line);
    if (fd >= 0)
        close(fd);
    if (rc)
        return mk_fail(-EINVAL, error, size, "--append: %s cannot be read: %s", path,
                       strerror(-rc));
    int same = !*line || !strcmp(line, header);
    if (!same)
        csv_table_tell_difference(path, header, line, error, size);
    return same ? 0 : -EINVAL;
}

int csv_check_append(struct csv_table *t, const char *path, char *error, size_t size)
{
    int rc = csv_table_flush(t);
    rc = rc ? rc : csv_table_compare(path, t->header, error, size);
    csv_free(t);
    return rc;
}

static int csv_table_write_all(int fd, const char *text, size_t bytes)
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
static int csv_table_append_locked(int fd, const char *header, const char *rows, size_t bytes)
{
    struct stat s;
    MK_FREED char *line = NULL;
    char last = '\n';
    if (fstat(fd, &s))
        return -errno;
    int rc = csv_table_first_line(fd, &line);
    if (!rc && *line && strcmp(line, header))
        rc = -EEXIST; /* it has become another table since it was looked at */
    if (!rc && s.st_size && pread(fd, &last, 1, s.st_size - 1) != 1)
        rc = -EIO;
    if (rc)
        return rc;
    if (!s.st_size)
        rc = csv_table_write_all(fd, header, strlen(header));
    if (!s.st_size || last != '\n')
        rc = rc ? rc : csv_table_write_all(fd, "\n", 1);
    rc = rc ? rc : csv_table_write_all(fd, rows, bytes);
    rc = rc ? rc : csv_table_write_all(fd, "\n", 1);
    if (!rc && fsync(fd) && errno != EINVAL)
        rc = -errno;
    if (rc && ftruncate(fd, s.st_size))
        return rc;
    return rc;
}

static int csv_table_append(const char *path, const char *header, const char *rows, size_t bytes)
{
    int lock, rc = mk_file_lock(&lock, path, LOCK_MS);
    int fd = rc ? -1 : open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    rc = rc ? rc : fd < 0 ? -errno : csv_table_append_locked(fd, header, rows, bytes);
    if (fd >= 0)
        close(fd);
    mk_file_unlock(lock, path);
    return rc;
}

int csv_write(struct csv_table *t, const char *path, size_t from)
{
    struct result_file f;
    int rc = csv_table_flush(t);
    rc = rc ? rc : result_open(&f);
    if (rc)
        return rc;
    if (!from)
        fprintf(f.out, "%s\n", t->header);
    fprintf(f.out, "%s\n", t->rows + from + (from > 0)); /* behind the end of line there */
    return result_close(&f, path);
}

int csv_end(struct csv_table *t, const char *path, int append)
{
    int rc = append ? csv_table_flush(t) : csv_write(t, path, 0);
    if (append && !rc)
        rc = csv_table_append(path, t->header, t->rows, t->rows_bytes);
    csv_free(t);
    return rc;
}
