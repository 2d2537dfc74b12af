/* Coroutines keep their own stacks and registers, end, start again, and an overrun hits the guard
 * page. */
#include "tests/helpers/test.h"
#include "sim/coroutine.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 40

struct counter {
    uint64_t steps, sum;
    double product;
};

/* Values live across yields in registers and on the stack, each in its own. */
static void count_up(void *argument)
{
    struct counter *c = argument;
    volatile uint64_t array[64] = {0};
    uint64_t sum = 0;
    double product = 1;
    for (uint64_t i = 0; i < c->steps; i++) {
        array[i % 64] += i;
        sum += i * c->steps;
        product *= 1.0 + 1.0 / (double)(i + c->steps);
        coroutine_yield();
    }
    for (int i = 0; i < 64; i++)
        sum += array[i];
    c->sum = sum;
    c->product = product;
}

CASE(test_interleaved)
{
    struct coroutine_pool *pool;
    struct coroutine *c[COUNT];
    struct counter counters[COUNT];
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(coroutine_create(&c[i], pool), 0);
    for (int again = 0; again < 3; again++) {
        for (int i = 0; i < COUNT; i++) {
            counters[i] = (struct counter){.steps = (uint64_t)(i + again) * 7};
            coroutine_start(c[i], count_up, &counters[i]);
        }
        for (int left = COUNT; left;) {
            left = 0;
            for (int i = 0; i < COUNT; i++)
                left += coroutine_resume(c[i]);
        }
        for (int i = 0; i < COUNT; i++) {
            uint64_t n = counters[i].steps, sum = n ? n * (n - 1) / 2 : 0;
            double product = 1;
            for (uint64_t j = 0; j < n; j++)
                product *= 1.0 + 1.0 / (double)(j + n);
            assert_int_equal(counters[i].sum, sum * n + sum);
            assert_true(counters[i].product == product);
            assert_int_equal(coroutine_resume(c[i]), 0);
        }
    }
    for (int i = 0; i < COUNT; i++)
        coroutine_destroy(c[i]);
    coroutine_pool_destroy(pool);
}

static void resume_another(void *argument)
{
    for (int i = 0; i < 3; i++) {
        coroutine_resume(argument);
        coroutine_yield();
    }
}

CASE(test_nested_and_dropped)
{
    struct coroutine_pool *pool;
    struct coroutine *outer, *inner;
    struct counter counter = {.steps = 5};
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    assert_int_equal(coroutine_create(&outer, pool), 0);
    assert_int_equal(coroutine_create(&inner, pool), 0);
    coroutine_start(inner, count_up, &counter);
    coroutine_start(outer, resume_another, inner);
    while (coroutine_resume(outer))
        ;
    assert_int_equal(coroutine_resume(inner), 1); /* the fourth step of five */
    coroutine_start(inner, count_up, &counter);   /* dropped where it stood */
    int steps = 0;
    while (coroutine_resume(inner))
        steps++;
    assert_int_equal(steps, 5);
    coroutine_destroy(inner);
    coroutine_destroy(outer);
    coroutine_pool_destroy(pool);
}

static void overrun(void *argument)
{
    uint8_t here;
    for (volatile uint8_t *below = &here;; below -= 64) /* walks down its own stack, over the end */
        *below = 1;
}

CASE(test_guard_page)
{
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* the sanitizer sees the walk itself first */
#endif
    pid_t child = fork();
    if (!child) {
        struct coroutine_pool *pool;
        struct coroutine *c;
        signal(SIGSEGV, SIG_DFL);
        if (coroutine_pool_create(&pool, 65536) || coroutine_create(&c, pool))
            _exit(1);
        coroutine_start(c, overrun, NULL);
        coroutine_resume(c);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
#if defined(__SANITIZE_THREAD__)
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
#else
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
#endif
}
