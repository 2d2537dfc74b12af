/* The programs of docs/examples do what they say: `make install` lays down all that they need and
 * `make uninstall` takes it away, they compile by the guide's line against that alone, run, and
 * give right results; the one that the guide shows is the first of them. */
#include <arpa/inet.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/helpers/free_port.h"
#include "tests/helpers/folder.h"
#include "tests/helpers/sanitized.h"
#include "tests/helpers/shell.h"

static char said[65536];
static char line[1024]; /* the guide's, by which a program is compiled */

/* Runs what printf makes of the rest, and fails with what it says where its status is not `status`.
 */
__attribute__((format(printf, 2, 3))) static void sh(int status, const char *format, ...)
{
    char command[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    int got = shell(command, said, sizeof said);
    if (got != status)
        fail_msg("status %d of %s: %s", got, command, said);
}

static void says(const char *text)
{
    if (!strstr(said, text))
        fail_msg("'%s' is not in: %s", text, said);
}

static void needs(const char *program)
{
    char command[128];
    if (access("docs/GUIDE.md", R_OK) || SLOWDOWN > 1) {
        print_message(
            "skipped: run it in the repository's root, without sanitizers (a program without them "
            "cannot load the library)\n");
        skip();
    }
    snprintf(command, sizeof command, "command -v %s", program);
    if (shell(command, said, sizeof said)) {
        print_message("skipped: no %s here\n", program);
        skip();
    }
}

/* `make install` or `make uninstall` of what is built, under the folder's own prefix. */
static void make(const char *target, const char *variables)
{
    char build[1024], mkernel[1100];
    struct stat before, after;
    ssize_t length = readlink("/proc/self/exe", build, sizeof build - 1);
    assert_true(length > 0);
    build[length] = 0;
    for (int i = 0; i < 2; i++)
        *strrchr(build, '/') = 0;
    snprintf(mkernel, sizeof mkernel, "%s/mkernel", build);
    assert_int_equal(stat(mkernel, &before), 0);
    sh(0, "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make BUILD=%s CUDA_HOME= NVCC= %s %s 2>&1",
       build, target, variables);
    assert_int_equal(stat(mkernel, &after), 0); /* which other tests run, with CUDA if it has it */
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

/* The indented blocks of the guide's section, one after the other: lines that begin with four
 * blanks, up to the next text. */
static void read_blocks(char *blocks[], int room, int *count)
{
    char text[1024];
    FILE *f = fopen("docs/GUIDE.md", "r"), *out = NULL;
    static char *texts[8];
    static size_t sizes[8];
    int here = 0;
    assert_non_null(f);
    *count = 0;
    while (fgets(text, sizeof text, f)) {
        if (text[0] == '#')
            here = !strcmp(text, "## From C\n");
        int code = here && !strncmp(text, "    ", 4);
        if (out && !code && text[0] != '\n') {
            fclose(out);
            blocks[(*count)] = texts[*count];
            ++*count;
            out = NULL;
        }
        if (code && !out && *count < room)
            out = open_memstream(&texts[*count], &sizes[*count]);
        if (out)
            fputs(code ? text + 4 : text, out);
    }
    fclose(f);
    assert_null(out); /* the section does not end in one */
}

/* Compiles docs/examples/NAME.c in the test's folder as the guide does it, NAME in place of
 * one_rank. */
static void compile(const char *name, const char *more)
{
    char edited[1200] = "";
    for (const char *c = line, *at; *c; c = at + strlen("one_rank")) {
        at = strstr(c, "one_rank");
        if (!at) {
            strcat(edited, c);
            break;
        }
        strncat(edited, c, (size_t)(at - c));
        strcat(edited, name);
    }
    if (shell("test -e \"$P/p/bin/mkernel\"", said, sizeof said))
        make("install-built", "PREFIX=\"$P/p\"");
    sh(0,
       "cp docs/examples/%s.c \"$P\"/ && cd \"$P\" && PKG_CONFIG_PATH=\"$P/p/lib/pkgconfig\" && "
       "export PKG_CONFIG_PATH && "
       "%s -Wall -Wextra -Werror %s 2>&1",
       name, edited, more);
}

CASE(the_guide_shows_the_first_example)
{
    char *blocks[4], file[8192];
    int count;
    needs("pkg-config");
    read_blocks(blocks, 4, &count);
    assert_int_equal(count, 2);
    FILE *f = fopen("docs/examples/one_rank.c", "r");
    assert_non_null(f);
    size_t size = fread(file, 1, sizeof file - 1, f);
    fclose(f);
    file[size] = '\0';
    snprintf(line, sizeof line, "%.*s", (int)strcspn(blocks[1], "\n"), blocks[1]);
    assert_memory_equal(line, "gcc ", 4);
    blocks[0][strlen(blocks[0]) - 1] = '\0'; /* the empty line behind it */
    assert_string_equal(blocks[0], file);
    for (int i = 0; i < count; i++)
        free(blocks[i]);
}

CASE(install_lays_down_what_uninstall_removes)
{
    needs("make");
    make("install-built", "DESTDIR=\"$P/stage\" PREFIX=/opt/mkernel");
    sh(0, "cd \"$P/stage\" && find . -type f -o -type l | grep -v -e libsoftnic -e share/mkernel/ "
          "| LC_ALL=C sort");
    char wanted[1024];
    snprintf(wanted, sizeof wanted, "%s",
             "./opt/mkernel/bin/mkernel\n"
             "./opt/mkernel/include/mkernel/mkernel.h\n"
             "./opt/mkernel/include/mkernel/ops/registry.h\n"
             "./opt/mkernel/include/mkernel/types.h\n"
             "./opt/mkernel/lib/libmkernel.so\n"
             "./opt/mkernel/lib/libmkernel.so.0\n"
             "./opt/mkernel/lib/libmkernel.so.0.1.0\n"
             "./opt/mkernel/lib/pkgconfig/mkernel.pc\n"
             "./opt/mkernel/share/bash-completion/completions/mkernel\n"
             "./opt/mkernel/share/man/man1/mkernel.1\n");
    assert_string_equal(said, wanted);
    sh(0, "cat \"$P/stage/opt/mkernel/lib/pkgconfig/mkernel.pc\"");
    says("prefix=/opt/mkernel\n");
    says("libdir=/opt/mkernel/lib\n");
    sh(0, "cd / && \"$P/stage/opt/mkernel/bin/mkernel\" --version");
    assert_int_equal(strncmp(said, "mkernel 0.1.0\ncommit    ", 24), 0);
    says("\nbuilt by  ");
    says("\nlibraries SQLite ");
    /* what `--vs torch` runs, and the sweeps that the documents name */
    sh(0, "ls experiments/baselines/*.py docs/experiments/*.yaml | sed 's,.*/,,' | LC_ALL=C sort "
          ">\"$P/wanted\"; cd \"$P/stage/opt/mkernel/share/mkernel\" && find . -type f | sed "
          "'s,.*/,,' | LC_ALL=C sort | diff \"$P/wanted\" - 2>&1");
    sh(0, "cd \"$P/stage/opt/mkernel\" && bin/mkernel sweep share/mkernel/experiments/chunks.yaml "
          "--list >\"$P/wanted\" && [ -s \"$P/wanted\" ]");
    make("uninstall", "DESTDIR=\"$P/stage\" PREFIX=/opt/mkernel");
    sh(0, "cd \"$P/stage\" && find . -type f -o -type l -o -name mkernel -type d ! -path "
          "./opt/mkernel");
    assert_string_equal(said, "");
}

/* `make demo` goes on to ask the compiler where there is no package manager that it knows. */
CASE(without_apt_nothing_is_installed_and_the_build_decides)
{
    sh(0, "mkdir \"$P/few\" && for p in sh uname grep find head sed; do ln -s \"$(command -v $p)\" "
          "\"$P/few/$p\"; done; PATH=\"$P/few\" sh experiments/setup.sh demo 2>&1");
    says("setup: this machine has no apt-get: nothing is installed");
}

CASE(one_rank_multiplies)
{
    needs("pkg-config");
    compile("one_rank", "");
    sh(0, "cd / && timeout 300 \"$P/one_rank\" 2>&1");
    assert_string_equal(said, "0x4480\n");
}

CASE(two_ranks_add_their_products)
{
    int port = free_port();
    needs("pkg-config");
    compile("two_ranks", "");
    sh(0,
       "cd / && { timeout 300 \"$P/two_ranks\" 0 %d & timeout 300 \"$P/two_ranks\" 1 %d && wait "
       "$!; } 2>&1",
       port, port);
    says("rank 0: 3 launches are right\n");
    says("rank 1: 3 launches are right\n");
    sh(2, "\"$P/two_ranks\" 2>&1");
}

CASE(experts_answer_on_one_rank_and_on_two)
{
    int port = free_port();
    needs("pkg-config");
    compile("moe", "-lm");
    sh(0, "cd / && timeout 300 \"$P/moe\" 2>&1");
    says(", right\n");
    sh(0,
       "cd / && { timeout 300 \"$P/moe\" 0 2 %d & timeout 300 \"$P/moe\" 1 2 %d && wait $!; } 2>&1",
       port, port);
    says("rank 0: relative error ");
    says("rank 1: relative error ");
}

/* Compiled where CUDA is. Where no GPU is it ends with the library's sentence, not with a crash. */
CASE(the_cuda_example_compiles_and_ends)
{
    char more[512];
    needs("pkg-config");
    if (shell("for d in \"${CUDA_HOME:-/usr/local/cuda}\" /usr/local/cuda; do test -e "
              "$d/include/cuda_runtime_api.h && printf %s $d && exit; done; "
              "exit 1",
              said, sizeof said)) {
        print_message("skipped: no CUDA here\n");
        skip();
    }
    snprintf(more, sizeof more, "-I%.100s/include -L%.100s/lib64 -lcudart -Wl,-rpath,%.100s/lib64",
             said, said, said);
    compile("cuda", more);
    int status = shell("cd / && timeout 300 \"$P/cuda\" 2>&1", said, sizeof said);
    if (status == 0)
        says("0x44c0, right\n");
    else if (status != 1 || (!strstr(said, "rank 0: no usable GPU") &&
                             !strstr(said, "rank 0: this build has no cuda executor") &&
                             !strstr(said, "compute capability")))
        fail_msg("status %d: %s", status, said);
}

static int begin(void **state)
{
    return folder_make(state) || setenv("P", folder, 1);
}

FIXTURE(begin, folder_remove)
