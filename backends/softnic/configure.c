/* The process's options: from the environment at first use, then from softnic_configure(). */
#include "nic.h"

#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static struct softnic_options process_options;
static bool process_options_set;
static struct softnic_context *process_contexts;
static _Thread_local char sentence[320];
static bool silent; /* or it has been said */

static int configure_load_environment(void)
{
    struct softnic_options options;
    const char *text = getenv("SOFTNIC");
    if (process_options_set)
        return 0;
    softnic_options_default(&options);
    int error =
        text && *text ? softnic_options_parse(text, &options, sentence, sizeof(sentence)) : 0;
    if (error) {
        if (!silent)
            fprintf(stderr, "%s; softnic shows no device\n", sentence);
        silent = true;
        return error;
    }
    process_options = options;
    process_options_set = true;
    return 0;
}

int softnic_options_current(struct softnic_options *options)
{
    pthread_mutex_lock(&process_lock);
    int error = configure_load_environment();
    *options = process_options;
    pthread_mutex_unlock(&process_lock);
    return error;
}

void softnic_silent(void)
{
    pthread_mutex_lock(&process_lock);
    silent = true;
    pthread_mutex_unlock(&process_lock);
}

const char *softnic_error(void)
{
    return sentence;
}

/* fork: the locks are held across it, so that the child finds the lists whole. The child's contexts
 * are dead. */
static void configure_fork_prepare(void)
{
    pthread_mutex_lock(&process_lock);
    for (struct softnic_context *ctx = process_contexts; ctx; ctx = ctx->next)
        pthread_mutex_lock(&ctx->lock);
}

static void configure_fork_done(void)
{
    for (struct softnic_context *ctx = process_contexts; ctx; ctx = ctx->next)
        pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_unlock(&process_lock);
}

static void configure_fork_child(void)
{
    for (struct softnic_context *ctx = process_contexts; ctx; ctx = ctx->next)
        softnic_progress_forked(ctx);
    configure_fork_done();
    process_contexts = NULL;
}

static void configure_watch_forks(void)
{
    pthread_atfork(configure_fork_prepare, configure_fork_done, configure_fork_child);
}

void softnic_context_register(struct softnic_context *ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, configure_watch_forks);
    pthread_mutex_lock(&process_lock);
    ctx->next = process_contexts;
    process_contexts = ctx;
    pthread_mutex_unlock(&process_lock);
}

void softnic_context_unregister(struct softnic_context *ctx)
{
    pthread_mutex_lock(&process_lock);
    struct softnic_context **at = &process_contexts;
    while (*at != ctx)
        at = &(*at)->next;
    *at = ctx->next;
    pthread_mutex_unlock(&process_lock);
}

/* A context takes new options at once: the faults count from here, and links to a dropped device go
 * silent. */
static void configure_apply(struct softnic_context *ctx, const struct softnic_options *old,
                            const struct softnic_options *new)
{
    pthread_mutex_lock(&ctx->lock);
    unsigned roce = ctx->options.roce;
    ctx->options = *new;
    softnic_options_narrow(&ctx->options, ctx->device->index);
    ctx->options.roce = roce; /* a port does not change its kind while it is open */
    if (new->seed != old->seed)
        ctx->random = new->seed;
    if (new->fail_nth != old->fail_nth)
        ctx->requests = 0;
    if (new->drop_device != old->drop_device || new->drop_after != old->drop_after ||
        new->delay_nth != old->delay_nth)
        ctx->messages = 0;
    softnic_links_drop(ctx);
    pthread_mutex_unlock(&ctx->lock);
}

int softnic_configure(const char *text)
{
    pthread_mutex_lock(&process_lock);
    int error = configure_load_environment();
    if (!error) {
        struct softnic_options options = process_options;
        error = softnic_options_parse(text, &options, sentence, sizeof(sentence));
        if (!error) {
            for (struct softnic_context *ctx = process_contexts; ctx; ctx = ctx->next)
                configure_apply(ctx, &process_options, &options);
            process_options = options;
            sentence[0] = 0;
        }
    }
    pthread_mutex_unlock(&process_lock);
    return error;
}
