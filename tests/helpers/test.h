/* What nearly every test includes; cmocka wants the first four before it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By the monotonic clock. */
__attribute__((unused)) static double test_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The whole of a file that is there, or as much as there is room for, with a 0 behind it. */
__attribute__((unused)) static char *test_read_file(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
    return text;
}

__attribute__((unused)) static void test_write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    fputs(text, f);
    fclose(f);
}

/* A case of the program: CASE(name) { ... }, or CASE_WITH a setup and a teardown of its own, each
 * `int f(void **state)` or NULL. Cases run in the order in which they stand. */
#define CASE(name) CASE_WITH(name, NULL, NULL)
#define CASE_WITH(name, setup, teardown)                                                           \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void name##_is_a_case(void)                                \
    {                                                                                              \
        test_cases[__COUNTER__] = (struct CMUnitTest){#name, name, setup, teardown, NULL};         \
    }                                                                                              \
    static void name(void **state)

/* The setup and the teardown of the program. */
#define FIXTURE(setup, teardown)                                                                   \
    __attribute__((constructor)) static void test_has_a_fixture(void)                              \
    {                                                                                              \
        test_setup = setup;                                                                        \
        test_teardown = teardown;                                                                  \
    }

__attribute__((unused)) static struct CMUnitTest test_cases[64]; /* cmocka passes over empty ones */
__attribute__((unused)) static CMFixtureFunction test_setup, test_teardown;

#ifndef OWN_MAIN /* a program that defines it runs `test_cases` itself */
int main(void)
{
    return cmocka_run_group_tests(test_cases, test_setup, test_teardown);
}
#endif
