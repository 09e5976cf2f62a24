// Memory is free once cuMemFree has returned, so nothing that a stream waits for later keeps it, nor the
// calls that come next. Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, and how
// the memory is freed and the stream waits.
#include "check.h"

#include <unistd.h>

int cuStreamWaitValue32_v2(void *, uint64_t, uint32_t, unsigned), cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuStreamWriteValue32_v2(void *, uint64_t, uint32_t, unsigned);

struct operation {
    uint32_t kind, padding;
    uint64_t address, value, flags, alias, rest;
};
int cuStreamBatchMemOp_v2(void *, unsigned, const struct operation *, unsigned);

enum { PIECE = 1 << 20, LATER_US = 100000, WAIT_32 = 1 };

int main(int count, char **arguments) {
    void *module, *wait_for_flag, *one, *other;
    uint64_t flag, piece, another;
    NEED(count == 3);
    start(0);
    bool busy = strcmp(arguments[2], "busy") == 0;
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&wait_for_flag, module, "wait_for_flag"));
    CHECK(cuStreamCreate(&one, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuMemAlloc_v2(&flag, PIECE));
    CHECK(cuMemsetD8_v2(flag, 0, 4));
    CHECK(cuMemAlloc_v2(&piece, PIECE));
    if (busy) CHECK(cuMemsetD8_v2(piece, 0, PIECE));
    else CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(piece));
    if (strcmp(arguments[2], "kernel") == 0) {
        CHECK(cuLaunchKernel(wait_for_flag, 1, 1, 1, 1, 1, 1, 0, one, (void *[]){&flag}, NULL));
    } else if (strcmp(arguments[2], "several") == 0) {
        const struct operation wait = {.kind = WAIT_32, .address = flag, .value = 1};
        CHECK(cuStreamBatchMemOp_v2(one, 1, &wait, 0));
    } else {
        CHECK(cuStreamWaitValue32_v2(one, flag, 1, 0));
    }
    if (!busy) usleep(LATER_US);
    CHECK(cuMemAlloc_v2(&another, 2 * PIECE));
    if (strcmp(arguments[2], "kernel") == 0) CHECK(cuMemsetD32Async(flag, 1, 1, other));
    else CHECK(cuStreamWriteValue32_v2(other, flag, 1, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(another));
    CHECK(cuMemFree_v2(flag));
    puts("results right");
    return 0;
}
