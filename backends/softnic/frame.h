/* What travels between two softnic processes: a fixed header, then source segments or payload.
 *
 * The receiver treats every byte as foreign: softnic_frame_parse() is the only way in, and refuses
 * what does not fit. Both ends are on one host, so the header is in the host's byte order. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SOFTNIC_FRAME_MAGIC = 0x32464e53, /* "SNF2": a change of layout changes the digit */
    SOFTNIC_MAX_SEGMENTS = 16,
    SOFTNIC_MAX_PAYLOAD = 32 << 10, /* bytes of message in one frame */
    SOFTNIC_MAX_MESSAGE = 1 << 30,
    SOFTNIC_HANDLE_BYTES = 64 + 16, /* of a cudaIpc handle and a UUID */
};

enum softnic_kind {
    /* The two ends of a link introduce themselves. qpn_from: device and context of the requester;
     * address/operand: a word to read directly */
    SOFTNIC_HELLO = 1,
    /* the answer; SOFTNIC_FLAG_PULL: the responder can read the requester's memory */
    SOFTNIC_WELCOME,
    /* requests. SRD's data frames: psn is a token, operand[0] the qkey, operand[1] the message's
     * bytes, of which this frame has `length` for `address` on */
    SOFTNIC_WRITE,
    SOFTNIC_SEND,
    SOFTNIC_READ, /* operand[0]: bytes wanted from `offset` on; SRD: operand[1]: qkey */
    SOFTNIC_COMPARE_SWAP,
    SOFTNIC_FETCH_ADD,
    SOFTNIC_SHARE, /* the sender's GPU memory from `address` on, operand[0] bytes, as number
                    * operand[1]; the payload is its cudaIpc handle and its GPU's UUID. Segments may
                    * lie in it from now on */
    /* responses */
    SOFTNIC_ACK, /* everything up to psn is done */
    SOFTNIC_NAK, /* operand[0]: enum softnic_nak; operand[1]: the responder's RNR timer code */
    SOFTNIC_READ_DATA,
    SOFTNIC_ATOMIC_RESULT, /* operand[0]: the value before */
    /* everything shared up to number operand[0] has been mapped, or cannot be */
    SOFTNIC_SHARED,
    SOFTNIC_KINDS,
};

enum softnic_nak {
    SOFTNIC_NAK_UNREACHABLE =
        1, /* no QP there that takes requests from this one: a real network would stay silent */
    SOFTNIC_NAK_SEQUENCE,
    SOFTNIC_NAK_RNR,
    SOFTNIC_NAK_ACCESS,
    SOFTNIC_NAK_INVALID,
    SOFTNIC_NAK_OPERATION,
    SOFTNIC_NAK_STRANGER, /* SRD: no address handle for the sender */
    SOFTNIC_NAKS,
};

enum {
    SOFTNIC_FLAG_IMM = 1,
    SOFTNIC_FLAG_SOLICITED = 2,
    SOFTNIC_FLAG_PULL = 4, /* segments name the sender's memory, the receiver copies from there */
};

struct softnic_frame {
    uint32_t magic;
    uint8_t kind;
    uint8_t flags;
    uint16_t segments;
    uint32_t payload;  /* bytes of message behind the header */
    uint32_t qpn_to;   /* 24 bits */
    uint32_t qpn_from; /* 24 bits; in HELLO device << 12 | context */
    uint32_t psn;      /* 24 bits, one per message */
    uint32_t imm;      /* as the application gave it (network byte order) */
    uint32_t rkey;
    uint32_t length; /* of the whole message, bytes */
    uint32_t offset; /* of this frame's bytes in it */
    uint64_t address;
    uint64_t operand[2];
};

struct softnic_segment {
    uint64_t address, length;
};

/* A frame that passed the checks. `payload` points into the parsed buffer. */
struct softnic_message {
    struct softnic_frame head;
    struct softnic_segment segment[SOFTNIC_MAX_SEGMENTS];
    const uint8_t *payload;
};

/* Takes one frame from `bytes`. Returns the bytes that it occupies, 0 when `have` are not enough
 * yet, or -EPROTO. */
ssize_t softnic_frame_parse(const uint8_t *bytes, size_t have, struct softnic_message *out);
