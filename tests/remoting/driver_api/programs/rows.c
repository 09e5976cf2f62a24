// Host functions in a row, and what lies between others.
// Argument: an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "check.h"

int cuLaunchHostFunc(void *, void (*)(void *), void *), cuStreamQuery(void *);
int cuStreamAddCallback(void *, void (*)(void *, int, void *), void *, unsigned);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *), cuMemAllocHost_v2(void **, size_t);

enum { ROUNDS = 5, ROW = 100, MANY = 1000 };

static int calls, seen, *pinned;

static void next(void *number) {
    if (calls == (int)(intptr_t)number) calls++;
}

static void called(void *stream, int status, void *number) {
    (void)stream;
    if (status == 0) next(number);
}

static void look(void *unused) {
    (void)unused;
    seen = pinned[0];
}

static void write_one_more(void *unused) {
    (void)unused;
    pinned[0]++;
}

int main(int count, char **arguments) {
    void *module, *increment, *stream, *other;
    uint64_t memory;
    int result = 0;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuMemAllocHost_v2((void **)&pinned, 64));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    pinned[0] = 0;

    // In their order, callbacks among them; and over when the stream is.
    for (int round = 0; round < ROUNDS; round++) {
        calls = 0;
        for (int at = 0; at < ROW; at++) {
            void *number = (void *)(intptr_t)at;
            if (at % 10 == 9) {
                CHECK(cuStreamAddCallback(stream, called, number, 0));
            } else {
                CHECK(cuLaunchHostFunc(stream, next, number));
            }
        }
        CHECK(cuStreamSynchronize(stream));
        NEED(calls == ROW && cuStreamQuery(stream) == 0);
    }

    // What lies between stays between: each copy takes what the function before it has written.
    for (int at = 1; at <= 20; at++) {
        CHECK(cuLaunchHostFunc(stream, write_one_more, NULL));
        CHECK(cuLaunchHostFunc(stream, look, NULL));
        CHECK(cuMemcpyHtoDAsync_v2(memory, pinned, 4, stream));
        launch(increment, 1, (void *[]){&memory, &(int){1}}, stream);
        CHECK(cuLaunchHostFunc(stream, write_one_more, NULL));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemcpyDtoH_v2(&result, memory, 4));
        NEED(seen == 2 * at - 1 && result == 2 * at && pinned[0] == 2 * at);
    }

    // Of two streams in turns, and many.
    calls = 0;
    pinned[0] = 0;
    for (int at = 0; at < MANY; at++) {
        CHECK(cuLaunchHostFunc(stream, next, (void *)(intptr_t)at));
        if (at % 100 == 0) CHECK(cuLaunchHostFunc(other, write_one_more, NULL));
    }
    CHECK(cuCtxSynchronize());
    NEED(calls == MANY && pinned[0] == MANY / 100);
    puts("results right");
    return 0;
}
