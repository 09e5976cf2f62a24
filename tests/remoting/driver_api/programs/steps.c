// Steps as JAX's: launches, nodes of a graph that are changed, the graph, and a function that only tells.
// Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, the library with the
// function, the number of steps, and how a step ends: "free", or "fed" and with its result on the host.
#include <dlfcn.h>

#include "graphs.h"

enum { NODES = 12, N = 4 };

static void *increment;

int main(int count, char **arguments) {
    void *module, *compute, *others[2], *library, *graph, *exec, *nodes[NODES], *marks[4];
    uint64_t memory, numbers[NODES];
    int told = 0, n = N, *host;
    NEED(count == 5);
    int steps = atoi(arguments[3]);
    bool fed = strcmp(arguments[4], "fed") == 0;
    NEED((library = dlopen(arguments[2], RTLD_NOW)) != NULL);
    void *found = dlsym(library, "tell");
    void (*tell)(void *);
    memcpy(&tell, &found, sizeof tell);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&memory, 4096));
    CHECK(cuMemsetD8_v2(memory, 0, 4096));
    CHECK(cuCtxSynchronize());  // a fill returns early, and streams of flag 1 do not wait for it
    CHECK(cuMemAllocHost_v2((void **)&host, 64));
    CHECK(cuStreamCreate(&compute, 1));
    for (int at = 0; at < 2; at++) CHECK(cuStreamCreate(&others[at], 1));
    for (int at = 0; at < 4; at++) CHECK(cuEventCreate(&marks[at], 2));

    CHECK(cuGraphCreate(&graph, 0));
    for (int at = 0; at < NODES; at++) {
        numbers[at] = memory;
        struct kernel_node node = {.function = increment, .grid = {1, 1, 1}, .block = {N, 1, 1},
                                   .parameters = (void *[]){&numbers[at], &n}};
        CHECK(cuGraphAddKernelNode_v2(&nodes[at], graph, at ? &nodes[at - 1] : NULL, at > 0, &node));
    }
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));

    for (int step = 0; step < steps; step++) {
        if (fed) {
            static int in[8];
            CHECK(cuMemcpyHtoDAsync_v2(memory + 2048, in, sizeof in, others[0]));
            CHECK(cuEventRecord(marks[0], others[0]));
            CHECK(cuStreamWaitEvent(compute, marks[0], 0));
            CHECK(cuLaunchHostFunc(others[0], tell, &told));
        }
        for (int at = 0; at < 3; at++) launch(increment, N, (void *[]){&memory, &n}, compute);
        for (int at = 0; at < NODES; at++) {
            // To another place at each step, which shows whether the change came before the launch.
            numbers[at] = memory + 64 * (uint64_t)(at + step % 2);
            struct kernel_node node = {.function = increment, .grid = {1, 1, 1}, .block = {N, 1, 1},
                                       .parameters = (void *[]){&numbers[at], &n}};
            CHECK(cuGraphExecKernelNodeSetParams_v2(exec, nodes[at], &node));
        }
        CHECK(cuGraphLaunch(exec, compute));
        CHECK(cuEventRecord(marks[1], compute));
        CHECK(cuStreamWaitEvent(others[1], marks[1], 0));
        CHECK(cuLaunchHostFunc(others[1], tell, &told));
        if (fed) {
            CHECK(cuMemcpyDtoHAsync_v2(host, memory, 4, others[1]));
            CHECK(cuStreamSynchronize(others[1]));
            NEED(host[0] == 3 * (step + 1) + (step + 2) / 2);
        }
    }
    for (int at = 0; at < 2; at++) CHECK(cuStreamSynchronize(others[at]));
    NEED(told == steps * (fed ? 2 : 1));
    int sums[NODES + 1] = {0};
    for (int at = 0; at <= NODES; at++) CHECK(cuMemcpyDtoH_v2(&sums[at], memory + 64 * (uint64_t)at, 4));
    int even = (steps + 1) / 2, odd = steps / 2;
    NEED(sums[0] == 3 * steps + even && sums[NODES] == odd);
    for (int at = 1; at < NODES; at++) NEED(sums[at] == steps);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    puts("results right");
    return 0;
}
