/* Any bytes, in any pieces: the bootstrap's parser takes or refuses them, and it never reads or
 * writes out of bounds, never takes more memory than twice what came, and what it takes can be
 * written again. */
#include "core/comm/bootstrap_wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static void take_hello(const struct wire_parser *p)
{
    struct wire_hello hello;
    uint8_t again[WIRE_HELLO_BYTES];
    wire_get_hello(p->payload, &hello);
    wire_put_hello(again, &hello);
    require(!memcmp(again, p->payload, sizeof again), "a hello is written as it was read");
}

static void take_failure(const struct wire_parser *p)
{
    struct mk_failure f, g;
    uint8_t again[WIRE_FAILURE_BYTES];
    char text[300];
    int final, last;
    if (wire_get_failure(p->payload, p->header.length, &f, &final))
        return;
    failure_sentence(&f, text, sizeof text);
    require(strlen(text) < sizeof text, "a sentence ends");
    wire_put_failure(again, &f, final);
    require(!wire_get_failure(again, sizeof again, &g, &last) && last == final,
            "a failure is written as it was read");
    require(!memcmp(&f, &g, sizeof f), "a failure stays the same");
    struct failure_case c;
    require(!failure_case_open(&c, 4), "there is memory");
    failure_merge(&c, &f);
    failure_merge(&c, &g);
    failure_case_close(&c);
}

static void take_refuse(const struct wire_parser *p)
{
    int code;
    char text[WIRE_REFUSE_TEXT];
    if (!wire_get_refuse(p->payload, p->header.length, &code, text))
        require(code > 0 && strlen(text) < sizeof text, "a refusal has a reason");
}

static void take(const struct wire_parser *p)
{
    uint8_t header[WIRE_HEADER_BYTES];
    wire_put_header(header, (enum wire_kind)p->header.kind, p->header.sequence, p->header.from,
                    p->header.length);
    require(!memcmp(header + 8, p->raw + 8, 16), "a header is written as it was read");
    if (p->header.kind == WIRE_HELLO)
        take_hello(p);
    else if (p->header.kind == WIRE_FAIL)
        take_failure(p);
    else if (p->header.kind == WIRE_REFUSE)
        take_refuse(p);
    else if (p->header.kind == WIRE_PART)
        wire_get_u32(p->payload);
    else if (p->header.kind == WIRE_PONG)
        wire_get_u64(p->payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte says in what pieces the rest arrives. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct wire_parser p = {0};
    size_t piece = data[0] + 1u;
    for (size_t at = 1; at < size;) {
        size_t n = size - at < piece ? size - at : piece, used;
        const char *why;
        int result = wire_feed(&p, data + at, n, &used, &why);
        at += used;
        require(used <= n, "no more is taken than there is");
        require(p.capacity <= 4096 || p.capacity <= 2 * size, "memory follows what arrived");
        if (result < 0) {
            require(why != NULL, "a refusal says why");
            break;
        }
        require(result == 1 || used == n, "all is taken until a frame is complete");
        if (result == 1) {
            take(&p);
            wire_release(&p);
        }
    }
    wire_release(&p);
    return 0;
}
