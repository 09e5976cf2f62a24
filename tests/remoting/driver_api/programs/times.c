// Times between events, streams that are known idle, and copies behind which nothing is waited for.
// Argument: an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "check.h"

int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventElapsedTime(float *, void *, void *), cuEventDestroy_v2(void *);
int cuStreamQuery(void *), cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);

enum { ROUNDS = 10, N = 300000 };

static void *increment;

static void add_one(uint64_t where, int count, void *stream) {
    launch(increment, (unsigned)count, (void *[]){&where, &count}, stream);
}

static void times(void *stream, uint64_t memory) {
    void *first, *last, *silent;
    float time = -1, again = -1;
    CHECK(cuEventCreate(&first, 0));
    CHECK(cuEventCreate(&last, 0));
    CHECK(cuEventCreate(&silent, 2));
    for (int at = 0; at < ROUNDS; at++) {
        CHECK(cuEventRecord(first, stream));
        add_one(memory, 1, stream);
        CHECK(cuEventRecord(silent, stream));
        CHECK(cuEventRecord(last, stream));
        CHECK(cuEventSynchronize(last));
        CHECK(cuEventQuery(first));
        CHECK(cuEventQuery(silent));
        CHECK(cuEventQuery(last));
        CHECK(cuEventElapsedTime(&time, first, last));
        NEED(time >= 0 && time < 5000);
        CHECK(cuEventElapsedTime(&again, first, last));
        NEED(again == time);
    }
    NEED(cuEventElapsedTime(&time, silent, last) == 400);
    // Recorded again, the first is behind the last, and the time that was known is not that.
    CHECK(cuEventRecord(first, stream));
    CHECK(cuEventSynchronize(first));
    CHECK(cuEventElapsedTime(&time, last, first));
    NEED(time >= 0);
    CHECK(cuEventElapsedTime(&again, first, last));
    NEED(again <= 0);
    // In the other order of the streams, and of an event that ended.
    CHECK(cuEventDestroy_v2(first));
    CHECK(cuEventCreate(&first, 0));
    NEED(cuEventElapsedTime(&time, first, last) == 400);
    CHECK(cuEventRecord(first, NULL));
    CHECK(cuEventRecord(last, stream));
    CHECK(cuEventSynchronize(last));
    CHECK(cuEventSynchronize(first));
    CHECK(cuEventElapsedTime(&time, first, last));
    CHECK(cuEventDestroy_v2(first));
    CHECK(cuEventDestroy_v2(last));
    CHECK(cuEventDestroy_v2(silent));
}

// What is copied is there for whatever comes next, in other streams too.
static void copies(void *stream, void *other, uint64_t memory, uint64_t copy) {
    static int in[N], out[N];
    CHECK(cuCtxSynchronize());
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < N; at++) in[at] = at + round;
        size_t size = round & 1 ? sizeof in : 256;
        CHECK(cuMemcpyHtoDAsync_v2(memory, in, size, stream));
        CHECK(cuStreamSynchronize(stream));
        memset(in, 0xee, sizeof in);  // it was read
        CHECK(cuMemcpyHtoDAsync_v2(memory + size, in, 4, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuStreamQuery(stream));
        add_one(memory, 64, other);
        CHECK(cuMemcpyDtoDAsync_v2(copy, memory, size, other));
        CHECK(cuStreamSynchronize(other));
        CHECK(cuMemcpyDtoH_v2(out, copy, size));
        NEED(out[5] == 5 + round + 1 && out[63] == 63 + round + 1);
        NEED(size < sizeof in || out[N - 1] == N - 1 + round);
    }
}

// Memory that kernels and the host see, which libraries have: it keeps no copy elsewhere from going
// ahead, and has at once what is copied there.
static void mapped(void *stream, void *other, uint64_t memory, uint64_t copy) {
    int *seen, in[64];
    uint64_t alias;
    CHECK(cuMemHostAlloc((void **)&seen, 1 << 20, 2));
    CHECK(cuMemHostGetDevicePointer_v2(&alias, seen, 0));
    copies(stream, other, memory, copy);
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < 64; at++) in[at] = at + round;
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemcpyHtoDAsync_v2(alias, in, sizeof in, stream));
        CHECK(cuStreamSynchronize(stream));
        NEED(seen[63] == 63 + round);
        CHECK(cuMemcpyHtoDAsync_v2(memory, in, sizeof in, stream));
        CHECK(cuStreamSynchronize(stream));
        add_one(alias, 64, stream);
        CHECK(cuStreamSynchronize(stream));
        NEED(seen[63] == 64 + round);
    }
}

// As cudaMemcpy, of more than what never waits.
static void copies_now(void *stream, uint64_t memory) {
    static int in[N], out[N];
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < N; at++) in[at] = at * round;
        CHECK(cuMemcpyHtoD_v2(memory, in, sizeof in));
        memset(in, 0xee, sizeof in);
        CHECK(cuMemcpyHtoD_v2(memory, in, 4));
        add_one(memory, 64, stream);  // which does not wait for the legacy stream
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemcpyDtoH_v2(out, memory, sizeof out));
        NEED(out[63] == 63 * round + 1 && out[N - 1] == (N - 1) * round);
    }
}

// As programs poll that wait for a kernel's result in mapped memory: each wait would compare all of it.
static void idle(void *stream, uint64_t memory) {
    for (int round = 0; round < ROUNDS; round++) {
        add_one(memory, 1, stream);
        for (int at = 0; at < 20; at++) {
            CHECK(cuCtxSynchronize());
            CHECK(cuStreamQuery(stream));
            CHECK(cuStreamQuery(NULL));
        }
    }
}

int main(int count, char **arguments) {
    void *module, *stream, *other;
    uint64_t memory, copy;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, 2 << 20));
    CHECK(cuMemAlloc_v2(&copy, 2 << 20));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    times(stream, memory);
    times(NULL, memory);
    copies(stream, other, memory, copy);
    copies(NULL, stream, memory, copy);
    copies_now(stream, memory);
    mapped(stream, other, memory, copy);
    idle(stream, memory);
    puts("results right");
    return 0;
}
