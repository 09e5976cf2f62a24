// What is counted besides allocations, and what kernels print; the partition is 64 MiB.
#include "check.h"

int cuCtxGetLimit(size_t *, int), cuCtxSetLimit(int, size_t), cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *), cuEventSynchronize(void *);

#define MIB ((size_t)1 << 20)
#define PTX ".version 8.0\n.target sm_90\n.address_size 64\n"

static const char large[] = PTX ".visible .global .align 4 .b8 room[67112960];\n";
static const char small[] = PTX ".global .align 8 .v2 .f32 pairs[131072];\n"
                                ".const .align 4 .u32 one = 1;\n";

int main(int count, char **arguments) {
    void *module, *say, *event;
    size_t size, all, heap;
    uint64_t name;
    NEED(count == 2);
    start(0);
    all = left();

    // Variables of modules.
    OURS(cuModuleLoadData(&module, large) == 2);
    OURS(left() == all);
    CHECK(cuModuleLoadData(&module, small));
    OURS(left() == all - 2 * MIB);
    CHECK(cuModuleUnload(module));
    OURS(left() == all);

    // What kernels may allocate and print, beyond what the driver has at first.
    CHECK(cuCtxGetLimit(&heap, 2));
    CHECK(cuCtxSetLimit(2, heap + 32 * MIB));
    OURS(left() == all - 32 * MIB);
    OURS(cuCtxSetLimit(2, heap + 128 * MIB) == 2);
    CHECK(cuCtxGetLimit(&size, 2));
    OURS(size == heap + 32 * MIB && left() == all - 32 * MIB);
    CHECK(cuCtxSetLimit(2, heap));
    CHECK(cuCtxSetLimit(1, 16 * MIB));
    OURS(left() < all && left() >= all - 16 * MIB);
    CHECK(cuCtxSetLimit(1, MIB));
    OURS(left() == all);
    // Stacks, of all threads that the device can have.
    int processors, threads;
    CHECK(cuCtxGetLimit(&size, 0));
    CHECK(cuDeviceGetAttribute(&processors, 16, 0));
    CHECK(cuDeviceGetAttribute(&threads, 39, 0));
    OURS(cuCtxSetLimit(0, size + 4096) == 2 && left() == all);
    CHECK(cuCtxSetLimit(0, size + 32));
    OURS(left() <= all - (size_t)processors * (size_t)threads * 32);
    all = left();

    // printf: in turn with the program's own, and there before a synchronisation is over.
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&say, module, "say"));
    CHECK(cuMemAlloc_v2(&name, 16));
    CHECK(cuMemcpyHtoD_v2(name, "here", 5));
    void *parameters[] = {&name, &(int){2}};
    puts("first");
    launch(say, 256, parameters, NULL);
    CHECK(cuCtxSynchronize());
    puts("second");
    CHECK(cuEventCreate(&event, 0));
    launch(say, 256, parameters, NULL);
    CHECK(cuEventRecord(event, NULL));
    CHECK(cuEventSynchronize(event));
    puts("third");
    parameters[1] = &(int){256};
    launch(say, 256, parameters, NULL);
    CHECK(cuMemcpyDtoH_v2(&size, name, 5));
    puts("results right");
    return 0;
}
