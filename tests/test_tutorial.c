/* docs/ADD_AN_OPERATOR.md shows the files as they are: each listing is its file, or the lines of it
 * that contain its text. */
#include <unistd.h>

#include "tests/helpers/command.h"

#define PAGE "docs/ADD_AN_OPERATOR.md"

/* The whole file with a 0 behind it. */
static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) < (1 << 20) - 1);
    fclose(f);
    return text;
}

/* What is expected in a listing: all of the file, or its lines with `text`. */
static void expect(const char *path, const char *text, char *out, size_t size)
{
    char *all = read_file(path), *save;
    if (!*text)
        snprintf(out, size, "%s", all);
    else
        out[0] = '\0';
    for (char *line = strtok_r(all, "\n", &save); *text && line; line = strtok_r(NULL, "\n", &save))
        if (strstr(line, text))
            snprintf(out + strlen(out), size - strlen(out), "%s\n", line);
    free(all);
}

CASE(listings_are_the_files)
{
    static char expected[1 << 20];
    if (access(PAGE, R_OK)) {
        print_message("skipped: this test reads the sources; run it in the repository's root\n");
        skip();
    }
    char *page = read_file(PAGE);
    uint32_t files = 0, lines = 0;
    for (const char *at = strstr(page, "<!-- "); at; at = strstr(at + 1, "<!-- ")) {
        char path[256], text[256] = "";
        int whole = sscanf(at, "<!-- file: %255[^ :] -->", path) == 1;
        if (!whole && sscanf(at, "<!-- line: %255[^ :]: %255[^>]", path, text) != 2)
            fail_msg("a mark of no kind: %.60s", at);
        if (strstr(text, " --"))
            *strstr(text, " --") = '\0';
        const char *begin = strstr(at, "\n```c\n");
        assert_non_null(begin);
        begin += strlen("\n```c\n");
        const char *end = strstr(begin, "\n```\n");
        assert_non_null(end);
        expect(path, text, expected, sizeof expected);
        size_t length = (size_t)(end + 1 - begin);
        if (length != strlen(expected) || memcmp(begin, expected, length))
            fail_msg("the listing of %s in " PAGE
                     " is another than the file; `python3 docs/listings.py` copies "
                     "it in",
                     path);
        assert_true(length > 10);
        files += (uint32_t)whole;
        lines += (uint32_t)!whole;
    }
    assert_int_equal(files, 6);
    assert_int_equal(lines, 1);
    free(page);
}

/* Runs `script` with the folder of this build, or its program `file`, and "check". */
static void check_made(const char *script, const char *file, const char *text)
{
    char build[512], line[640];
    ssize_t length = readlink("/proc/self/exe", build, sizeof build - 1);
    assert_true(length > 0);
    build[length] = '\0';
    for (int i = 0; i < 2; i++) /* tests/PROGRAM */
        *strrchr(build, '/') = '\0';
    if (access("docs/pictures.sh", R_OK)) {
        print_message("skipped: this test reads the sources; run it in the repository's root\n");
        skip();
    }
    snprintf(line, sizeof line, "%s '%s%s' check", script, build, file);
    if (system(line))
        fail_msg("%s", text);
}

/* What draws them (simulated launches, numbers of pictures, the viewer's screens) still says the
 * same. */
CASE(pictures_are_todays)
{
    if (!command_draws())
        skip();
    check_made("bash docs/pictures.sh", "",
               "pictures of the documents are old: `make pictures` draws them");
}

CASE(predictions_are_todays)
{
    check_made("python3 docs/predictions.py", "/mkernel",
               "docs/PREDICTIONS.md is old: `make predictions` writes it");
}

/* Measured rows beside what the page says: by operator, shape, ranks and device; others are left
 * out, and a folder without any is said. */
CASE(measurements_are_compared)
{
    static const char header[] =
        "m,n,k,fused_ms,efficiency,cublas_nccl_ms,torch_fused_ms,op,gpus,device\n";
    char folder[] = "/tmp/mkernel-test-XXXXXX", path[64], line[160], said[4096];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/gemm_ar.csv", folder);
    snprintf(line, sizeof line, "python3 docs/predictions.py mkernel compare %s 2>&1", folder);
    for (int rows = 0; rows < 2; rows++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(header, file);
        fputs("8192,8192,3584,2.0,.5,3.0,,gemm_ar,3,NVIDIA H200\n", file);
        if (rows)
            fputs("8192,8192,3584,2.0,.5,3.0,,gemm_ar,4,NVIDIA H200\n", file);
        fclose(file);
        FILE *out = popen(line, "r");
        assert_non_null(out);
        said[fread(said, 1, sizeof said - 1, out)] = '\0';
        assert_int_equal(WEXITSTATUS(pclose(out)), !rows);
        assert_non_null(strstr(said, rows ? "| GEMM+AllReduce: 8192,8192,3584 |" : "has no row"));
        assert_true(!rows || (strstr(said, " | 2000.0 | -") && strstr(said, " | .5 | 1.50 |  |") &&
                              strstr(said, "\n1 cell: off by ")));
    }
    remove(path);
    remove(folder);
}
