// Pinned memory that kernels reach by addresses which they find in memory, as NCCL's do. Argument:
// an image with the kernels of fake_cuda/kernels/memory_kernels.cu.
#include <pthread.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemHostGetFlags(unsigned *, void *), cuPointerGetAttribute(void *, int, uint64_t);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemsetD32_v2_ptds(uint64_t, unsigned, size_t), cuMemcpyDtoD_v2(uint64_t, uint64_t, size_t);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);

#define MAPPED 2  // CU_MEMHOSTALLOC_DEVICEMAP

enum { SMALL = 8, LARGE = 1 << 18, WIDE = 17 << 18 };  // ints

struct order {
    uint64_t from, to;
    long long n;
};

static void *kernel, *stream;
static uint64_t orders, memory;
static int *small, *large;

static uint64_t of(const void *address) { return (uint64_t)(uintptr_t)address; }

// to[i] = from[i] + 1, by addresses that only the order in device memory holds.
static void carry_out(uint64_t from, uint64_t to, long long n) {
    struct order order = {from, to, n};
    CHECK(cuMemcpyHtoDAsync_v2(orders, &order, sizeof order, stream));
    void *parameters[] = {&orders};
    launch(kernel, 32, parameters, stream);
}

static int *make(size_t count) {
    void *made;
    uint64_t seen;
    unsigned flags;
    CHECK(cuMemHostAlloc(&made, count * sizeof(int), MAPPED));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, made, 0));
    NEED(seen == of(made));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, (char *)made + 12, 0));
    NEED(seen == of(made) + 12);
    CHECK(cuPointerGetAttribute(&seen, 3, of(made) + 4));  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    NEED(seen == of(made) + 4);
    CHECK(cuPointerGetAttribute(&seen, 4, of(made) + 4));  // CU_POINTER_ATTRIBUTE_HOST_POINTER
    NEED(seen == of(made) + 4);
    CHECK(cuMemHostGetFlags(&flags, made));
    NEED(flags == MAPPED);
    for (size_t at = 0; at < count; at += 1021) NEED(((int *)made)[at] == 0);
    return made;
}

// One pool of which parts are used, as CatBoost has it: what nobody has touched yet is compared all the same
// once a kernel, or the program, writes there.
static void a_pool(void) {
    enum { POOL = 6 << 20, STEP = POOL / 8 };  // ints: 24 MiB
    int *pool;
    CHECK(cuMemHostAlloc((void **)&pool, POOL * sizeof(int), 0));
    pool[STEP] = 5;
    CHECK(cuMemsetD32_v2_ptds(of(pool + 2 * STEP), 9, 100));  // it has a mirror from here on
    NEED(pool[2 * STEP] == 9 && pool[2 * STEP + 99] == 9 && pool[2 * STEP + 100] == 0);
    for (int at = 3; at < 8; at++) {
        pool[at * STEP + 7] = at;  // for the first time
        CHECK(cuMemcpyDtoD_v2(of(pool + at * STEP + 8), of(pool + at * STEP + 7), 4));
        CHECK(cuMemsetD32_v2_ptds(of(pool + POOL - at), (unsigned)at, 1));
        CHECK(cuCtxSynchronize());
        NEED(pool[at * STEP + 8] == at && pool[POOL - at] == at);
    }
    CHECK(cuMemcpyDtoD_v2(of(pool), of(pool + STEP), 4));
    CHECK(cuCtxSynchronize());
    NEED(pool[0] == 5 && pool[1] == 0 && pool[STEP + 1] == 0);
    CHECK(cuMemFreeHost(pool));
}

// These return when they have written, because it is memory of the host.
static void set_by_the_device(void) {
    CHECK(cuMemsetD8_v2(of(small), 7, SMALL * sizeof(int)));
    for (int at = 0; at < SMALL; at++) NEED(small[at] == 0x07070707);
    CHECK(cuMemsetD32_v2_ptds(of(large + 5), 9, 1000));
    NEED(large[5] == 9 && large[1004] == 9);
    CHECK(cuMemcpyDtoD_v2(of(small), of(large + 5), 4));
    NEED(small[0] == 9 && small[1] == 0x07070707);
    CHECK(cuMemsetD32_v2_ptds(of(large + 5), 0, 1000));
    NEED(large[5] == 0 && large[1004] == 0);
}

static void both_ways(void) {
    for (int round = 0; round < 3; round++) {
        for (int at = 0; at < SMALL; at++) small[at] = 10 * round + at;
        carry_out(of(small), of(large + 100), SMALL);
        carry_out(of(large + 100), of(large + LARGE - SMALL), SMALL);
        carry_out(of(large + LARGE - SMALL), of(small), SMALL);
        CHECK(cuStreamSynchronize(stream));
        for (int at = 0; at < SMALL; at++) {
            NEED(small[at] == 10 * round + at + 3);
            NEED(large[100 + at] == small[at] - 2 && large[LARGE - SMALL + at] == small[at] - 1);
        }
    }
    NEED(large[99] == 0 && large[100 + SMALL] == 0);
}

// All of it, then single elements of it, with more launches in between than changes.
static void written_by_the_program(void) {
    for (int at = 0; at < LARGE; at++) large[at] = at;
    carry_out(of(large), memory, LARGE);
    for (int round = 0; round < 40; round++) {
        if (round % 4 == 0) large[round * 6007] = -round;
        carry_out(of(large), memory, LARGE);
    }
    int *answer = malloc(LARGE * sizeof(int));
    NEED(answer != NULL);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(answer, memory, LARGE * sizeof(int)));
    for (int at = 0; at < LARGE; at++) {
        bool changed = at % 6007 == 0 && at / 6007 < 40 && at / 6007 % 4 == 0;
        NEED(answer[at] == (changed ? -at / 6007 : at) + 1);
    }
    free(answer);
}

// What a kernel writes between two words of the program's stays.
static void side_by_side(void) {
    carry_out(of(large), memory, 64);
    CHECK(cuStreamSynchronize(stream));
    for (int round = 1; round < 4; round++) {
        carry_out(memory, of(large + 40), 2);
        large[0] = large[63] = 1000 * round;
        carry_out(of(large), memory, 64);
        CHECK(cuStreamSynchronize(stream));
        NEED(large[0] == 1000 * round && large[63] == 1000 * round);
        CHECK(cuMemcpyDtoH_v2(small, memory + 40 * sizeof(int), 2 * sizeof(int)));
        NEED(small[0] == large[40] + 1 && small[1] == large[41] + 1);
    }
}

// Copies bring bytes here while no kernel's memory may be written to.
static void copied(void) {
    CHECK(cuMemsetD8_v2(memory, 7, LARGE * sizeof(int)));
    carry_out(of(small), of(large), SMALL);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(large + 500, memory, 4000));
    NEED(large[500] == 0x07070707 && large[1499] == 0x07070707);
    CHECK(cuMemcpyDtoHAsync_v2(large + 100000, memory, 400000, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(large[100000] == 0x07070707 && large[199999] == 0x07070707);
    carry_out(of(large + 150000), of(small), SMALL);
    CHECK(cuStreamSynchronize(stream));
    NEED(small[0] == 0x07070708 && small[SMALL - 1] == 0x07070708);
}

static volatile bool stop;

static void *write_on(void *counter) {
    for (int at = 1; !stop; at++) *(volatile int *)counter = at;
    return NULL;
}

// No write is lost that another thread makes while this one launches.
static void at_the_same_time(void) {
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, write_on, large + 77777) == 0);
    for (int round = 0; round < 200; round++) carry_out(of(large + 77777), of(small), 1);
    CHECK(cuStreamSynchronize(stream));
    stop = true;
    pthread_join(thread, NULL);
    int last = large[77777];
    carry_out(of(large + 77777), of(small), 1);
    CHECK(cuStreamSynchronize(stream));
    NEED(large[77777] == last && small[0] == last + 1);
}

int main(int words, char **word) {
    void *module;
    NEED(words == 2);
    start(0);
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&kernel, module, "carry_out"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&orders, sizeof(struct order)));
    CHECK(cuMemAlloc_v2(&memory, LARGE * sizeof(int)));
    a_pool();
    for (int round = 0; round < 2; round++) {
        stop = false;
        small = make(SMALL);
        large = make(LARGE);
        set_by_the_device();
        both_ways();
        written_by_the_program();
        side_by_side();
        copied();
        at_the_same_time();
        CHECK(cuMemFreeHost(small));
        CHECK(cuMemFreeHost(large));
    }
    small = make(SMALL);
    for (int at = 0; at < 300; at++) {  // nor so many pieces
        int *one = make(SMALL);
        *one = at;
        if (at >= 10 && at < 290) continue;
        carry_out(of(one), of(small), 1);
        CHECK(cuStreamSynchronize(stream));
        NEED(small[0] == at + 1);
    }
    int *wide = make(WIDE);  // more than is mirrored in advance, and more than 58 pieces at once
    for (int at = 0; at < WIDE; at++) wide[at] = (int)((unsigned)at * 2654435761u);
    wide[WIDE - 1] = 41;
    carry_out(of(wide + WIDE - 1), of(small), 1);
    CHECK(cuStreamSynchronize(stream));
    NEED(small[0] == 42);
    CHECK(cuMemFreeHost(wide));
    CHECK(cuMemFreeHost(small));
    puts("results right");
    return 0;
}
