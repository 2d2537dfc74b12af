/* Inside core: the bytes of the bootstrap's TCP connections. Framing and parsing only: no sockets
 * here, so that every path can be fed by a fuzzer. All numbers are little-endian on the wire.
 *
 *   frame    magic u32 | version u16 | kind u16 | sequence u32 | from u32 (rank) | length u64
 *            (payload bytes) | payload
 *
 * The length of each kind is bounded, and memory grows with the bytes that have really arrived, so
 * a lying length costs nothing. */
#pragma once

#include "core/comm/failure.h"
#include "core/base/hmac.h"

#define WIRE_MAGIC 0x424b4d1au /* 0x1a "MKB" */
#define WIRE_VERSION 4u
#define WIRE_HEADER_BYTES 24u
#define WIRE_TOKEN_BYTES HMAC_KEY_BYTES
#define WIRE_NONCE_BYTES 16u
#define WIRE_HELLO_BYTES (HMAC_BYTES + WIRE_NONCE_BYTES + 8u)
#define WIRE_REFUSE_TEXT 512u
#define WIRE_MAX_BYTES ((uint64_t)1 << 32)

enum wire_kind {
    WIRE_NONE,
    WIRE_HELLO,     /* rank -> 0: proof, nonce, rank, world. The proof comes first */
    WIRE_WELCOME,   /* 0 -> rank: all have joined; its proof */
    WIRE_REFUSE,    /* 0 -> rank: errno and sentence; the connection ends */
    WIRE_PART,      /* rank -> 0: this rank's part of collective `sequence` */
    WIRE_RESULT,    /* 0 -> rank: its result */
    WIRE_PING,      /* rank -> 0: asks for rank 0's clock */
    WIRE_PONG,      /* 0 -> rank: ns */
    WIRE_FAIL,      /* both ways: a failure; from rank 0 it is the job's */
    WIRE_BYE,       /* both ways: leaves in good order */
    WIRE_STAND,     /* rank -> 0: where it stands (bootstrap_stand) */
    WIRE_CHALLENGE, /* 0 -> whoever has connected: a nonce for its hello */
    WIRE_KINDS
};

/* The kind of a collective, the first word of a PART: ranks that call different ones are told
 * so. */
enum wire_collective { WIRE_ALLGATHER, WIRE_GATHER, WIRE_BARRIER, WIRE_CLOCK, WIRE_COLLECTIVES };

struct wire_header {
    uint32_t kind;
    uint32_t version;
    uint32_t sequence;
    uint32_t from;
    uint64_t length;
};

struct wire_hello {
    uint8_t proof[HMAC_BYTES];
    uint8_t nonce[WIRE_NONCE_BYTES]; /* for rank 0's proof */
    uint32_t rank, world;
};

/* One frame as it arrives. Zeroed to begin with; wire_release frees it. */
struct wire_parser {
    uint8_t raw[WIRE_HEADER_BYTES];
    uint32_t have; /* header bytes */
    struct wire_header header;
    uint8_t *payload;
    uint64_t got, capacity;
};

void wire_put_header(uint8_t out[WIRE_HEADER_BYTES], enum wire_kind kind, uint32_t sequence,
                     uint32_t from, uint64_t length);

/* Takes bytes of one frame; *used says how many. Returns 1 once the frame is complete (take it,
 * then wire_release, before the next is fed), 0 where more is needed, -EPROTO (garbled: *why says
 * how, a constant string), -ENOMEM. */
int wire_feed(struct wire_parser *p, const uint8_t *bytes, size_t size, size_t *used,
              const char **why);
void wire_release(struct wire_parser *p);

void wire_put_hello(uint8_t out[WIRE_HELLO_BYTES], const struct wire_hello *hello);
void wire_get_hello(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *hello);

/* That the sender of `kind` (HELLO or WELCOME) knows the token, for the nonce of rank 0's challenge
 * and the rest of the hello. */
void wire_prove(uint8_t proof[HMAC_BYTES], enum wire_kind kind, const char token[WIRE_TOKEN_BYTES],
                const uint8_t challenge[WIRE_NONCE_BYTES], const struct wire_hello *hello);

/* A refusal: errno (positive on the wire) and one sentence. `out` has room for 4 +
 * WIRE_REFUSE_TEXT; returns the bytes. */
size_t wire_put_refuse(uint8_t *out, int error, const char *text);
int wire_get_refuse(const uint8_t *in, uint64_t length, int *error, char text[WIRE_REFUSE_TEXT]);

/* A failure record; `final` says that it will not change any more. wire_get_failure returns 0 or
 * -EPROTO: a record from elsewhere has its strings terminated and printable, and its kind known. */
#define WIRE_FAILURE_BYTES                                                                         \
    (4 + 10 * 4 + 4 * 8 + 4 + sizeof(((struct mk_failure *)0)->what) +                             \
     sizeof(((struct mk_failure *)0)->detail))
void wire_put_failure(uint8_t *out, const struct mk_failure *f, int final);
int wire_get_failure(const uint8_t *in, uint64_t length, struct mk_failure *f, int *final);

void wire_put_u64(uint8_t *out, uint64_t value);
uint64_t wire_get_u64(const uint8_t *in);
void wire_put_u32(uint8_t *out, uint32_t value);
uint32_t wire_get_u32(const uint8_t *in);
