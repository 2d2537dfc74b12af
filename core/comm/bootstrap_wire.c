#include "core/comm/bootstrap_wire.h"
#include "core/comm/bootstrap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void bootstrap_wire_put(uint8_t *out, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t bootstrap_wire_get(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << 8 * i;
    return value;
}

void wire_put_u64(uint8_t *out, uint64_t value)
{
    bootstrap_wire_put(out, value, 8);
}

uint64_t wire_get_u64(const uint8_t *in)
{
    return bootstrap_wire_get(in, 8);
}

void wire_put_u32(uint8_t *out, uint32_t value)
{
    bootstrap_wire_put(out, value, 4);
}

uint32_t wire_get_u32(const uint8_t *in)
{
    return (uint32_t)bootstrap_wire_get(in, 4);
}

void wire_put_header(uint8_t out[WIRE_HEADER_BYTES], enum wire_kind kind, uint32_t sequence,
                     uint32_t from, uint64_t length)
{
    bootstrap_wire_put(out, WIRE_MAGIC, 4);
    bootstrap_wire_put(out + 4, WIRE_VERSION, 2);
    bootstrap_wire_put(out + 6, kind, 2);
    bootstrap_wire_put(out + 8, sequence, 4);
    bootstrap_wire_put(out + 12, from, 4);
    bootstrap_wire_put(out + 16, length, 8);
}

/* Payload bytes that a kind may have. */
static const struct {
    uint64_t least, most;
} bounds[WIRE_KINDS] = {
    [WIRE_HELLO] = {WIRE_HELLO_BYTES, WIRE_HELLO_BYTES},
    [WIRE_WELCOME] = {HMAC_BYTES, HMAC_BYTES},
    [WIRE_CHALLENGE] = {WIRE_NONCE_BYTES, WIRE_NONCE_BYTES},
    [WIRE_REFUSE] = {5, 4 + WIRE_REFUSE_TEXT},
    [WIRE_PART] = {4, WIRE_MAX_BYTES},
    [WIRE_RESULT] = {0, WIRE_MAX_BYTES},
    [WIRE_PONG] = {8, 8},
    [WIRE_STAND] = {1, BOOTSTRAP_STAND_BYTES},
    [WIRE_FAIL] = {WIRE_FAILURE_BYTES, WIRE_FAILURE_BYTES},
};

static int bootstrap_wire_read_header(struct wire_parser *p, const char **why)
{
    struct wire_header *h = &p->header;
    h->version = (uint32_t)bootstrap_wire_get(p->raw + 4, 2);
    h->kind = (uint32_t)bootstrap_wire_get(p->raw + 6, 2);
    h->sequence = wire_get_u32(p->raw + 8);
    h->from = wire_get_u32(p->raw + 12);
    h->length = wire_get_u64(p->raw + 16);
    *why = NULL;
    if (h->kind == WIRE_NONE || h->kind >= WIRE_KINDS)
        *why = "a frame of unknown kind";
    else if (h->version != WIRE_VERSION && h->kind != WIRE_HELLO && h->kind != WIRE_REFUSE &&
             h->kind != WIRE_CHALLENGE)
        *why = "a frame of another version";
    else if (h->length < bounds[h->kind].least || h->length > bounds[h->kind].most)
        *why = "a frame of impossible length";
    else if (h->from >= MK_MAX_RANKS)
        *why = "a frame from an impossible rank";
    return *why ? -EPROTO : 0;
}

/* Room for at least one more byte, at most twice the bytes that have arrived. */
static int bootstrap_wire_grow(struct wire_parser *p)
{
    uint64_t capacity = p->capacity ? p->capacity * 2 : 4096;
    if (capacity > p->header.length)
        capacity = p->header.length;
    uint8_t *larger = realloc(p->payload, capacity);
    if (!larger)
        return -ENOMEM;
    p->payload = larger;
    p->capacity = capacity;
    return 0;
}

int wire_feed(struct wire_parser *p, const uint8_t *bytes, size_t size, size_t *used,
              const char **why)
{
    *used = 0;
    *why = NULL;
    while (p->have < WIRE_HEADER_BYTES && *used < size) {
        p->raw[p->have++] = bytes[(*used)++];
        /* A stranger's first bytes say so: no need to wait for a whole header from it. */
        if (p->have == 4 && wire_get_u32(p->raw) != WIRE_MAGIC) {
            *why = "bytes that are not mkernel's";
            return -EPROTO;
        }
        if (p->have == WIRE_HEADER_BYTES) {
            int result = bootstrap_wire_read_header(p, why);
            if (result)
                return result;
        }
    }
    if (p->have < WIRE_HEADER_BYTES)
        return 0;
    while (p->got < p->header.length && *used < size) {
        if (p->got == p->capacity) {
            int result = bootstrap_wire_grow(p);
            if (result)
                return result;
        }
        uint64_t n = p->capacity - p->got;
        if (n > size - *used)
            n = size - *used;
        memcpy(p->payload + p->got, bytes + *used, n);
        p->got += n;
        *used += n;
    }
    return p->got == p->header.length;
}

void wire_release(struct wire_parser *p)
{
    free(p->payload);
    memset(p, 0, sizeof *p);
}

void wire_put_hello(uint8_t out[WIRE_HELLO_BYTES], const struct wire_hello *hello)
{
    memcpy(out, hello->proof, HMAC_BYTES);
    memcpy(out + HMAC_BYTES, hello->nonce, WIRE_NONCE_BYTES);
    wire_put_u32(out + HMAC_BYTES + WIRE_NONCE_BYTES, hello->rank);
    wire_put_u32(out + HMAC_BYTES + WIRE_NONCE_BYTES + 4, hello->world);
}

void wire_get_hello(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *hello)
{
    memcpy(hello->proof, in, HMAC_BYTES);
    memcpy(hello->nonce, in + HMAC_BYTES, WIRE_NONCE_BYTES);
    hello->rank = wire_get_u32(in + HMAC_BYTES + WIRE_NONCE_BYTES);
    hello->world = wire_get_u32(in + HMAC_BYTES + WIRE_NONCE_BYTES + 4);
}

void wire_prove(uint8_t proof[HMAC_BYTES], enum wire_kind kind, const char token[WIRE_TOKEN_BYTES],
                const uint8_t challenge[WIRE_NONCE_BYTES], const struct wire_hello *hello)
{
    uint8_t message[4 + WIRE_NONCE_BYTES + WIRE_HELLO_BYTES];
    struct wire_hello rest = *hello;
    memset(rest.proof, 0, sizeof rest.proof);
    wire_put_u32(message, kind);
    memcpy(message + 4, challenge, WIRE_NONCE_BYTES);
    wire_put_hello(message + 4 + WIRE_NONCE_BYTES, &rest);
    hmac(token, message, sizeof message, proof);
}

/* Copies a string from elsewhere: ends within `size`, and nothing in it moves the cursor of a
 * terminal. */
static int bootstrap_wire_take_string(char *out, const uint8_t *in, size_t size)
{
    size_t n = strnlen((const char *)in, size);
    if (n == size)
        return -EPROTO;
    memset(out, 0, size);
    for (size_t i = 0; i < n; i++) {
        if (in[i] < 0x20 || in[i] == 0x7f)
            return -EPROTO;
        out[i] = (char)in[i];
    }
    return 0;
}

/* The result passes take_string at the other end. */
static void bootstrap_wire_give_string(uint8_t *out, const char *in, size_t size)
{
    size_t n = strnlen(in, size - 1);
    memset(out, 0, size);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)in[i] < 0x20 || in[i] == 0x7f ? ' ' : (uint8_t)in[i];
}

size_t wire_put_refuse(uint8_t *out, int error, const char *text)
{
    size_t n = strnlen(text, WIRE_REFUSE_TEXT - 1) + 1;
    wire_put_u32(out, (uint32_t)error);
    bootstrap_wire_give_string(out + 4, text, n);
    return 4 + n;
}

int wire_get_refuse(const uint8_t *in, uint64_t length, int *error, char text[WIRE_REFUSE_TEXT])
{
    uint32_t code = length < 5 ? 0 : wire_get_u32(in);
    if (code == 0 || code > 4095 || length > 4 + WIRE_REFUSE_TEXT)
        return -EPROTO;
    *error = (int)code;
    memset(text, 0, WIRE_REFUSE_TEXT);
    return bootstrap_wire_take_string(text, in + 4, length - 4);
}

/* The fields of a record in their order on the wire. */
#define FAILURE_U32(f)                                                                             \
    &(f)->kind, &(f)->op, &(f)->rank, &(f)->cta, &(f)->role, &(f)->flag, &(f)->chunk,              \
        &(f)->producer, &(f)->relay, &(f)->evidence
#define FAILURE_U64(f) &(f)->seen, &(f)->wanted, &(f)->epoch, &(f)->waited_ns

void wire_put_failure(uint8_t *out, const struct mk_failure *f, int final)
{
    const uint32_t *const words[] = {FAILURE_U32(f)};
    const uint64_t *const longs[] = {FAILURE_U64(f)};
    memset(out, 0, WIRE_FAILURE_BYTES);
    wire_put_u32(out, final != 0);
    out += 4;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++, out += 4)
        wire_put_u32(out, *words[i]);
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++, out += 8)
        wire_put_u64(out, *longs[i]);
    wire_put_u32(out, (uint32_t)f->status);
    bootstrap_wire_give_string(out + 4, f->what, sizeof f->what);
    bootstrap_wire_give_string(out + 4 + sizeof f->what, f->detail, sizeof f->detail);
}

int wire_get_failure(const uint8_t *in, uint64_t length, struct mk_failure *f, int *final)
{
    uint32_t *const words[] = {FAILURE_U32(f)};
    uint64_t *const longs[] = {FAILURE_U64(f)};
    if (length != WIRE_FAILURE_BYTES)
        return -EPROTO;
    memset(f, 0, sizeof *f);
    uint32_t last = wire_get_u32(in);
    in += 4;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++, in += 4)
        *words[i] = wire_get_u32(in);
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++, in += 8)
        *longs[i] = wire_get_u64(in);
    f->status = (int32_t)wire_get_u32(in);
    if (last > 1 || f->kind == MK_FAIL_NONE || f->kind >= MK_FAIL_KINDS ||
        f->evidence > FAILURE_BEST_EVIDENCE)
        return -EPROTO;
    *final = (int)last;
    int result = bootstrap_wire_take_string(f->what, in + 4, sizeof f->what);
    return result
               ? result
               : bootstrap_wire_take_string(f->detail, in + 4 + sizeof f->what, sizeof f->detail);
}
