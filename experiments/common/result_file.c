#include "experiments/common/result_file.h"
#include "experiments/common/output_file.h"
#include "experiments/common/trace_output.h"

#include <errno.h>
#include <stdlib.h>

int result_open(struct result_file *r)
{
    r->out = open_memstream(&r->text, &r->bytes);
    return r->out ? 0 : -ENOMEM;
}

void result_drop(struct result_file *r)
{
    fclose(r->out);
    free(r->text);
}

/* Whether a folder takes no new file, or none in this one's place, though the file itself can be
 * written: one that is not the user's, or a file that is mounted by itself, as in a container. */
static int result_file_no_place_beside(int rc)
{
    return rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -EBUSY;
}

static int result_file_write_over(const char *path, const char *text, size_t bytes)
{
    FILE *f = output_open(path);
    if (!f)
        return -errno;
    fwrite(text, 1, bytes, f); /* output_close asks ferror */
    return output_close(f, path);
}

int result_close(struct result_file *r, const char *path)
{
    struct trace_output file;
    char unused[8];
    int bad = ferror(r->out);
    bad |= fclose(r->out);
    int rc = bad ? -ENOMEM : trace_output_open(&file, path, 0, unused, sizeof unused);
    if (!rc) {
        fwrite(r->text, 1, r->bytes, file.out); /* trace_output_close asks ferror */
        rc = trace_output_close(&file, 0, unused, sizeof unused);
    }
    if (result_file_no_place_beside(rc))
        rc = result_file_write_over(path, r->text, r->bytes);
    free(r->text);
    return rc;
}
