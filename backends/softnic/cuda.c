/* Finds the driver's calls in a libcuda that the application has loaded. */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct softnic_cuda driver;
static const struct softnic_cuda *provided;
static bool found;

static bool cuda_find(void)
{
    /* RTLD_NOLOAD: a process without libcuda has no GPU memory, and starting the driver takes a
     * second. */
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return false;
    const struct {
        const char *symbol;
        void *place;
        bool needed;
    } calls[] = {
#define X(field, symbol, arguments) {#symbol, &driver.field, true},
        SOFTNIC_CUDA_CALLS(X)
#undef X
#define X(field, symbol, arguments) {#symbol, &driver.field, false},
            SOFTNIC_CUDA_CALLS_MAYBE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *function = dlsym(library, calls[i].symbol);
        if (!function && calls[i].needed)
            return false;
        memcpy(calls[i].place, &function, sizeof(function));
    }
    return true;
}

const struct softnic_cuda *softnic_cuda(void)
{
    pthread_mutex_lock(&lock);
    if (!provided && !found)
        found = cuda_find();
    const struct softnic_cuda *table = provided ? provided : found ? &driver : NULL;
    pthread_mutex_unlock(&lock);
    return table;
}

void softnic_provide_cuda(const struct softnic_cuda *table)
{
    pthread_mutex_lock(&lock);
    provided = table;
    pthread_mutex_unlock(&lock);
}
