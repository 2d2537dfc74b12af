/* The frames that one end of the bootstrap writes, the other reads, in any pieces; anything else is
 * refused. */
#include "core/comm/bootstrap_wire.h"

#include <time.h>

#include "tests/helpers/test.h"

CASE(frames_survive_any_cut)
{
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    for (int round = 0; round < 300; round++) {
        uint64_t length = (uint64_t)rand_r(&seed) % (round % 10 ? 300 : 70000) + 4;
        size_t whole = WIRE_HEADER_BYTES + length;
        uint8_t *bytes = malloc(whole);
        struct wire_parser p = {0};
        wire_put_header(bytes, WIRE_PART, (uint32_t)round, 17, length);
        for (uint64_t i = 0; i < length; i++)
            bytes[WIRE_HEADER_BYTES + i] = (uint8_t)rand_r(&seed);
        for (size_t at = 0; at < whole;) {
            size_t cut = (size_t)rand_r(&seed) % (length / 4 + 1) + 1, used;
            const char *why;
            cut = cut < whole - at ? cut : whole - at;
            int done = wire_feed(&p, bytes + at, cut, &used, &why);
            assert_int_equal(used, cut);
            at += cut;
            assert_int_equal(done, at == whole);
        }
        assert_int_equal(p.header.kind, WIRE_PART);
        assert_int_equal(p.header.sequence, round);
        assert_int_equal(p.header.from, 17);
        assert_memory_equal(p.payload, bytes + WIRE_HEADER_BYTES, length);
        wire_release(&p);
        free(bytes);
    }
}

/* A frame's end is not overrun: the next frame's bytes stay with the caller. */
CASE(two_frames_in_one_piece)
{
    uint8_t bytes[2 * WIRE_HEADER_BYTES + 8];
    struct wire_parser p = {0};
    size_t used;
    const char *why;
    wire_put_header(bytes, WIRE_PONG, 5, 0, 8);
    wire_put_u64(bytes + WIRE_HEADER_BYTES, 0x0123456789abcdefull);
    wire_put_header(bytes + WIRE_HEADER_BYTES + 8, WIRE_BYE, 6, 3, 0);
    assert_int_equal(wire_feed(&p, bytes, sizeof bytes, &used, &why), 1);
    assert_int_equal(used, WIRE_HEADER_BYTES + 8);
    assert_true(wire_get_u64(p.payload) == 0x0123456789abcdefull);
    wire_release(&p);
    assert_int_equal(wire_feed(&p, bytes + used, sizeof bytes - used, &used, &why), 1);
    assert_int_equal(p.header.kind, WIRE_BYE);
    assert_int_equal(used, WIRE_HEADER_BYTES);
    wire_release(&p);
}

static int refused(const uint8_t header[WIRE_HEADER_BYTES])
{
    struct wire_parser p = {0};
    size_t used;
    const char *why;
    int result = wire_feed(&p, header, WIRE_HEADER_BYTES, &used, &why);
    assert_true(result != -EPROTO || why != NULL);
    assert_null(p.payload); /* a length that lies costs no memory */
    wire_release(&p);
    return result == -EPROTO;
}

CASE(impossible_headers_are_refused)
{
    uint8_t h[WIRE_HEADER_BYTES];
    wire_put_header(h, WIRE_PART, 0, 0, 100);
    assert_false(refused(h));
    for (int bit = 0; bit < 48; bit++) { /* magic and version */
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(refused(h));
        h[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (uint32_t kind = 0; kind < 70000; kind++) {
        wire_put_header(h, (enum wire_kind)kind, 0, 0, 8);
        uint32_t k = kind & 0xffff;
        assert_int_equal(!refused(h), k == WIRE_REFUSE || k == WIRE_PART || k == WIRE_RESULT ||
                                          k == WIRE_PONG || k == WIRE_STAND);
    }
    wire_put_header(h, WIRE_PART, 0, 0, WIRE_MAX_BYTES);
    assert_false(refused(h));
    wire_put_header(h, WIRE_PART, 0, 0, WIRE_MAX_BYTES + 1);
    assert_true(refused(h));
    wire_put_header(h, WIRE_PART, 0, MK_MAX_RANKS, 8);
    assert_true(refused(h));
    wire_put_header(h, WIRE_HELLO, 0, 0, WIRE_HELLO_BYTES);
    h[4] = 9; /* a hello of another version is read: its sender is to be told */
    assert_false(refused(h));
}

CASE(failures_survive_the_wire)
{
    struct mk_failure f, got;
    int final;
    uint8_t bytes[WIRE_FAILURE_BYTES];
    memset(&f, 0, sizeof f);
    memset(&got, 0xff, sizeof got);
    f.kind = MK_FAIL_NETWORK;
    f.op = 1, f.rank = 2, f.cta = 3, f.role = 4, f.flag = 5, f.chunk = 6, f.producer = 7,
    f.evidence = 2;
    f.seen = 1ull << 40, f.wanted = 9ull << 50, f.epoch = 10, f.waited_ns = 11;
    f.status = -12;
    snprintf(f.what, sizeof f.what, "what was waited for");
    memset(f.detail, 'd', sizeof f.detail - 1);
    for (int last = 0; last < 2; last++) {
        wire_put_failure(bytes, &f, last);
        assert_int_equal(wire_get_failure(bytes, sizeof bytes, &got, &final), 0);
        assert_memory_equal(&f, &got, sizeof f);
        assert_int_equal(final, last);
    }
    assert_int_equal(wire_get_failure(bytes, sizeof bytes - 1, &got, &final), -EPROTO);
    bytes[4] = 200; /* kind */
    assert_int_equal(wire_get_failure(bytes, sizeof bytes, &got, &final), -EPROTO);
    /* unterminated, and with a terminal's escape: sent as something harmless */
    memset(f.what, 'w', sizeof f.what);
    f.what[3] = 27;
    wire_put_failure(bytes, &f, 0);
    assert_int_equal(wire_get_failure(bytes, sizeof bytes, &got, &final), 0);
    assert_int_equal(strlen(got.what), sizeof got.what - 1);
    assert_int_equal(got.what[3], ' ');
    bytes[WIRE_FAILURE_BYTES - 4] = 27; /* the same from a peer that does not care */
    memset(bytes + WIRE_FAILURE_BYTES - sizeof f.detail, 27, 4);
    assert_int_equal(wire_get_failure(bytes, sizeof bytes, &got, &final), -EPROTO);
}

CASE(refusals_survive_the_wire)
{
    uint8_t bytes[4 + WIRE_REFUSE_TEXT];
    char text[WIRE_REFUSE_TEXT], long_text[2000];
    int code;
    size_t n = wire_put_refuse(bytes, EPERM, "wrong job token");
    assert_int_equal(wire_get_refuse(bytes, n, &code, text), 0);
    assert_int_equal(code, EPERM);
    assert_string_equal(text, "wrong job token");
    assert_int_equal(wire_get_refuse(bytes, n - 1, &code, text), -EPROTO); /* not terminated */
    assert_int_equal(wire_get_refuse(bytes, 3, &code, text), -EPROTO);
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    n = wire_put_refuse(bytes, EPERM, long_text);
    assert_int_equal(n, sizeof bytes);
    assert_int_equal(wire_get_refuse(bytes, n, &code, text), 0);
    assert_int_equal(strlen(text), WIRE_REFUSE_TEXT - 1);
}

/* The codes of RFC 4231, cases 1 and 2, and of two and three blocks (by Python). */
CASE(codes_are_those_of_the_standard)
{
    static const struct {
        char key[HMAC_KEY_BYTES];
        const char *message, *code;
    } cases[] = {
        {"\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b",
         "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {"a token", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "c9d8613b2a8dd1dcd485b67605273ec37345ae1ec806b2b3896a567e01f4cae8"},
        {"a token",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaa",
         "021db1372d4b308d459d70b205d05e12cdea936ea52a5aedbec684e468eb06b2"},
        {"a token",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "04ee774ddaf0f37c83e03e9c67b463b8725ff7c763b543cab90783b5556d5f4a"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t code[HMAC_BYTES];
        char text[2 * HMAC_BYTES + 1];
        hmac(cases[i].key, cases[i].message, strlen(cases[i].message), code);
        for (unsigned b = 0; b < HMAC_BYTES; b++)
            snprintf(text + 2 * b, 3, "%02x", code[b]);
        assert_string_equal(text, cases[i].code);
    }
}

/* A proof is for one sender, one token, one challenge and one hello: any bit of them changes it. */
CASE(proofs_differ_by_any_bit)
{
    struct {
        char token[WIRE_TOKEN_BYTES];
        uint8_t challenge[WIRE_NONCE_BYTES];
        struct wire_hello hello;
    } right = {.token = "secret", .hello = {.rank = 1, .world = 2}}, other;
    uint8_t a[HMAC_BYTES], b[HMAC_BYTES];
    wire_prove(a, WIRE_HELLO, right.token, right.challenge, &right.hello);
    wire_prove(b, WIRE_WELCOME, right.token, right.challenge, &right.hello);
    assert_false(hmac_same(a, b));
    for (size_t bit = 0; bit < 8 * sizeof right; bit++) {
        other = right;
        ((uint8_t *)&other)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        wire_prove(b, WIRE_HELLO, other.token, other.challenge, &other.hello);
        /* the proof itself is no part of what is proved */
        assert_int_equal(
            hmac_same(a, b),
            !memcmp(right.token, other.token, sizeof right.token) &&
                !memcmp(right.challenge, other.challenge, sizeof right.challenge) &&
                !memcmp(right.hello.nonce, other.hello.nonce, sizeof right.hello.nonce) &&
                right.hello.rank == other.hello.rank && right.hello.world == other.hello.world);
    }
}
