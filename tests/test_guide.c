/* The guide's C program does what the guide says: as it stands there it compiles by the line below it, against what `make
 * install` lays down, runs and gives the right product. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/helpers/folder.h"
#include "tests/helpers/sanitized.h"
#include "tests/helpers/shell.h"

static char said[8192];

/* The indented blocks of the guide's section, one after the other: lines that begin with four blanks, up to the next text. */
static void read_blocks(char *blocks[], int room, int *count)
{
    char line[1024];
    FILE *f = fopen("docs/GUIDE.md", "r"), *out = NULL;
    static char *texts[8];
    static size_t sizes[8];
    int here = 0;
    assert_non_null(f);
    *count = 0;
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#')
            here = !strcmp(line, "## From C\n");
        int code = here && !strncmp(line, "    ", 4);
        if (out && !code && line[0] != '\n') {
            fclose(out);
            blocks[(*count)] = texts[*count];
            ++*count;
            out = NULL;
        }
        if (code && !out && *count < room)
            out = open_memstream(&texts[*count], &sizes[*count]);
        if (out)
            fputs(code ? line + 4 : line, out);
    }
    fclose(f);
    assert_null(out); /* the section does not end in one */
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &length), 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* The program, but for its port: another one may be running. */
static void write_program(const char *program)
{
    char path[128];
    const char *port = strstr(program, ".port = 20123");
    assert_non_null(port);
    snprintf(path, sizeof path, "%s/multiply.c", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%.*s.port = %d%s", (int)(port - program), program, free_port(),
            port + strlen(".port = 20123"));
    assert_int_equal(fclose(f), 0);
}

/* What the Makefile installs: the public header and what it includes, and the library beside this program's folder. */
static void install(void)
{
    char build[1024], command[4096];
    ssize_t length = readlink("/proc/self/exe", build, sizeof build - 1);
    assert_true(length > 0);
    build[length] = 0;
    for (int i = 0; i < 2; i++)
        *strrchr(build, '/') = 0;
    snprintf(command, sizeof command,
             "set -e; mkdir -p %s/p/lib; cp %s/libmkernel.so* %s/p/lib/; "
             "for h in $(gcc -I. -MM core/mkernel.h | tr ' \\\\' '\\n\\n' | grep '\\.h$'); do "
             "install -D -m 644 $h %s/p/include/mkernel/$h; done 2>&1",
             folder, build, folder, folder);
    if (shell(command, said, sizeof said))
        fail_msg("%s: %s", command, said);
}

static void the_program_compiles_and_multiplies(void **state)
{
    char *blocks[4], command[4096];
    int count;
    if (access("docs/GUIDE.md", R_OK) || SLOWDOWN > 1) {
        print_message("skipped: run it in the repository's root, without sanitizers (a program without them "
                      "cannot load the library)\n");
        skip();
    }
    read_blocks(blocks, 4, &count);
    assert_int_equal(count, 2);
    assert_memory_equal(blocks[1], "gcc ", 4);
    write_program(blocks[0]);
    install();
    blocks[1][strcspn(blocks[1], "\n")] = 0;
    snprintf(command, sizeof command, "cd %s && PREFIX=%s/p && %s -Wall -Werror 2>&1", folder, folder,
             blocks[1]);
    if (shell(command, said, sizeof said))
        fail_msg("%s: %s", command, said);
    snprintf(command, sizeof command, "cd / && timeout 300 %s/multiply 2>&1", folder);
    if (shell(command, said, sizeof said) || strcmp(said, "0x4480\n") != 0)
        fail_msg("%s: %s", command, said);
    for (int i = 0; i < count; i++)
        free(blocks[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_program_compiles_and_multiplies)};
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
