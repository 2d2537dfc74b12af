/* Options of a fabric as "key=value,...": whole numbers with names, defaults and bounds, kept in a
 * struct of int64_t. A fabric's options are a macro of rows X(key, default, least, greatest). */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct option_key {
    const char *name;
    size_t offset; /* of an int64_t in the struct of options */
    int64_t standard, min, max;
};

/* A row as a field of the struct of options, and as a key. */
#define OPTION_FIELD(name, standard, min, max) int64_t name;
#define OPTION_KEY(of, name, standard, min, max) {#name, offsetof(of, name), standard, min, max},

void option_keys_default(void *options, const struct option_key *keys, size_t count);

/* Sets the options in `text` (NULL: none); `fabric` is the fabric's name in sentences. 0, or
 * -EINVAL with a sentence in `error`, and then some of them may be set. */
int option_keys_parse(void *options, const struct option_key *keys, size_t count,
                      const char *fabric, const char *text, char *error, size_t size);
