#include "core/base/c_numbers.h"

#include <pthread.h>

static locale_t c_numbers;

static void c_numbers_make(void)
{
    c_numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t mk_c_numbers(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, c_numbers_make);
    return uselocale(c_numbers);
}

void mk_c_numbers_end(const locale_t *before)
{
    uselocale(*before);
}
