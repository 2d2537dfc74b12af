/* A thousand random mixed operations on a softnic connection leave memory and completions as a
 * sequential model says. */
#include "softnic_load.h"

enum {
    OPERATIONS = 1000,
    TARGET = 256 << 10, /* bytes that the operations work on, at the far end */
    RESULTS = 4 << 20,  /* where READs and atomics answer, each to bytes of its own */
    RECEIVES = 4 << 20, /* where SENDs land, each in a buffer of its own */
    SOURCE = 256 << 10, /* never written */
    MAX_BYTES = 20000,
};

/* Near and far memory as they should be; `far` is one region [TARGET | RECEIVES], `near` is [SOURCE
 * | RESULTS]. */
static struct {
    uint8_t *near, *far;
    size_t results, receives; /* used so far */
    bool reading;             /* a READ has been posted and no fence since */
} model;

struct expected {
    uint64_t id;
    uint32_t bytes, imm;
    bool has_imm, write;
};

static uint32_t pick(uint32_t n)
{
    return (uint32_t)((((uint64_t)random() << 31) ^ (uint64_t)random()) % n);
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = (uint64_t)random() << 33 ^ (uint64_t)random();
        memcpy(bytes + i, &word, 8);
    }
}

static uint32_t pick_length(void)
{
    switch (pick(4)) {
    case 0:
        return pick(64);
    case 1:
        return pick(5000);
    default:
        return pick(MAX_BYTES);
    }
}

/* Source bytes in one to four pieces; writes them to `out` too. */
static int gather(struct end *near, uint32_t length, struct ibv_sge *sge, uint8_t *out)
{
    int count = 1 + (int)pick(4);
    for (int i = 0; i < count; i++) {
        uint32_t part = i == count - 1 ? length : pick(length + 1);
        uint32_t at = pick(SOURCE - part);
        sge[i] = (struct ibv_sge){(uintptr_t)near->buffer + at, part, near->mr->lkey};
        memcpy(out, model.near + at, part);
        out += part;
        length -= part;
    }
    return count;
}

static void prepare_receive(struct end *far, struct ibv_send_wr *wr, struct expected *e,
                            uint64_t id, const uint8_t *data)
{
    e->id = id;
    e->write = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    e->has_imm = e->write || wr->opcode == IBV_WR_SEND_WITH_IMM;
    e->imm = e->has_imm ? wr->imm_data : 0;
    assert_int_equal(end_receive(far, id, TARGET + model.receives, e->bytes), 0);
    if (!e->write) {
        memcpy(model.far + TARGET + model.receives, data, e->bytes);
        model.receives += e->bytes;
    }
}

/* Posts one random operation and applies it to the model. True when it makes a receive
 * completion. */
static bool operate(struct end *near, struct end *far, struct address to, uint64_t id,
                    bool signaled, struct expected *expected)
{
    static uint8_t data[MAX_BYTES + 8];
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_RDMA_WRITE,          IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM,       IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,  IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_sge sge[4];
    enum ibv_wr_opcode opcode = opcodes[pick(8)];
    bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint32_t length = atomic ? 8 : pick_length();
    uint32_t at = atomic ? pick(TARGET / 8) * 8 : pick(TARGET - length);
    struct ibv_send_wr wr = end_wr(opcode, id, sge, to, at);
    wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    wr.imm_data = (uint32_t)random();
    if (atomic || opcode == IBV_WR_RDMA_READ) {
        model.results = (model.results + 7) & ~(size_t)7;
        sge[0] = (struct ibv_sge){(uintptr_t)near->buffer + SOURCE + model.results, length,
                                  near->mr->lkey};
        memcpy(model.near + SOURCE + model.results, model.far + at, length);
        model.results += length;
    } else {
        wr.num_sge = gather(near, length, sge, data);
        if (length <= 64 && pick(2))
            wr.send_flags |= IBV_SEND_INLINE;
        if (opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
            memcpy(model.far + at, data, length);
    }
    if (atomic) {
        uint64_t old, *word = (uint64_t *)(void *)(model.far + at);
        memcpy(&old, word, 8);
        wr.wr.atomic.remote_addr = to.buffer + at;
        wr.wr.atomic.rkey = to.rkey;
        wr.wr.atomic.compare_add = pick(2) ? old : pick(1000);
        wr.wr.atomic.swap = pick(1 << 30);
        if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            *word = old + wr.wr.atomic.compare_add;
        else if (old == wr.wr.atomic.compare_add)
            *word = wr.wr.atomic.swap;
    }
    /* The specification lets what follows a READ change the bytes that it reads, unless it is
     * fenced. */
    if (model.reading && opcode != IBV_WR_RDMA_READ) {
        wr.send_flags |= IBV_SEND_FENCE;
        model.reading = false;
    }
    model.reading |= opcode == IBV_WR_RDMA_READ;
    bool receives = opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND ||
                    opcode == IBV_WR_SEND_WITH_IMM;
    if (receives) {
        expected->bytes = length;
        prepare_receive(far, &wr, expected, id, data);
    }
    assert_int_equal(end_post(near, &wr), 0);
    return receives;
}

static void check_receives(struct end *far, struct expected *expected, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct ibv_wc wc = cq_take(far->recv_cq);
        assert_int_equal(wc.status, IBV_WC_SUCCESS);
        assert_int_equal(wc.wr_id, expected[i].id);
        assert_int_equal(wc.byte_len, expected[i].bytes);
        assert_int_equal(wc.opcode, expected[i].write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
        assert_int_equal(!!(wc.wc_flags & IBV_WC_WITH_IMM), expected[i].has_imm);
        if (expected[i].has_imm)
            assert_int_equal(wc.imm_data, expected[i].imm);
    }
}

static void same(const char *what, const uint8_t *got, const uint8_t *want, size_t size,
                 unsigned seed)
{
    if (!memcmp(got, want, size))
        return;
    for (size_t i = 0; i < size; i++)
        if (got[i] != want[i])
            fail_msg("%s differs at byte %zu (seed %u)", what, i, seed);
}

static void run(const char *options, unsigned seed)
{
    static struct expected expected[OPERATIONS];
    nic_configure("bw=unlimited,latency=0ns,delay=0ns,copy=auto");
    nic_configure(options);
    srandom(seed);
    struct ibv_context *here = nic_open(0), *there = nic_open(1);
    struct end near = end_new(here, SOURCE + RESULTS), far = end_new(there, TARGET + RECEIVES);
    model.near = malloc(near.size);
    model.far = malloc(far.size);
    model.results = model.receives = 0;
    model.reading = false;
    fill(model.near, near.size);
    fill(model.far, far.size);
    memcpy(near.buffer, model.near, near.size);
    memcpy(far.buffer, model.far, far.size);
    ends_connect(&near, &far);
    struct address to = end_address(&far);

    for (unsigned done = 0; done < OPERATIONS;) {
        unsigned burst = 1 + pick(60), receives = 0;
        uint64_t signaled[64], signals = 0;
        for (unsigned i = 0; i < burst; i++) {
            bool last = i == burst - 1, signal = last || pick(3) == 0;
            if (model.results >
                RESULTS - 2 * MAX_BYTES) /* the rest of the bytes are checked below; begin again */
                model.results = 0;
            if (signal)
                signaled[signals++] = done + i;
            receives += operate(&near, &far, to, done + i, signal, &expected[receives]);
        }
        for (unsigned i = 0; i < signals; i++)
            cq_expect(near.send_cq, signaled[i], IBV_WC_SUCCESS);
        check_receives(&far, expected, receives);
        same("far memory", far.buffer, model.far, TARGET, seed);
        same("received messages", far.buffer + TARGET, model.far + TARGET, model.receives, seed);
        same("near memory", near.buffer, model.near, near.size, seed);
        if (model.receives > RECEIVES / 2)
            model.receives = 0;
        done += burst;
    }
    assert_true(cq_silent(near.send_cq, 2) && cq_silent(far.recv_cq, 2));
    end_close(&near);
    end_close(&far);
    nic.ibv_close_device(here);
    nic.ibv_close_device(there);
    free(model.near);
    free(model.far);
}

CASE(direct)
{
    for (unsigned seed = 1; seed <= 3; seed++)
        run("copy=auto", seed);
    run("copy=auto", (unsigned)time(NULL));
}

CASE(stream)
{
    for (unsigned seed = 1; seed <= 3; seed++)
        run("copy=stream", seed);
    run("copy=stream", (unsigned)time(NULL));
}

CASE(slow_and_jittery)
{
    run("latency=20us,bw=2GB/s,delay=300us~0.1,seed=4", 5);
    run("latency=20us,bw=2GB/s,delay=300us~0.1,copy=stream,seed=5", (unsigned)time(NULL));
}

static int setup(void **state)
{
    nic_load();
    return 0;
}

FIXTURE(setup, NULL)
