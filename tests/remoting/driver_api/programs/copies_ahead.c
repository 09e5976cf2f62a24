// Copies from pageable memory in a row, each of which is waited for, and then a kernel in another stream.
// Argument: an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "check.h"

int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);

enum { ROWS = 5, COPIES = 20, N = 80000 };

int main(int count, char **arguments) {
    static int in[N], out[N];
    void *module, *increment, *stream, *other;
    uint64_t memory;
    int n = N;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, COPIES * sizeof in));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    for (int row = 0; row < ROWS; row++) {
        CHECK(cuCtxSynchronize());
        for (int at = 0; at < COPIES; at++) {
            for (int word = 0; word < N; word++) in[word] = row + at + word;
            CHECK(cuMemcpyHtoDAsync_v2(memory + at * sizeof in, in, at & 1 ? sizeof in : 64, stream));
            CHECK(cuStreamSynchronize(stream));
        }
        for (int at = 0; at < COPIES; at++) {
            uint64_t where = memory + at * sizeof in;
            launch(increment, 64, (void *[]){&where, &n}, other);
        }
        CHECK(cuStreamSynchronize(other));
        for (int at = 0; at < COPIES; at++) {
            CHECK(cuMemcpyDtoH_v2(out, memory + at * sizeof in, sizeof in));
            NEED(out[15] == row + at + 15 + 1);
            if (at & 1) NEED(out[N - 1] == row + at + N - 1);
        }
    }
    puts("results right");
    return 0;
}
