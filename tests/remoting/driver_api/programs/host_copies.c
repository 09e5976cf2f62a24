// Graphs with both host nodes and copies of the host's memory.
// Argument: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "graphs.h"

int cuGraphAddHostNode(void **, void *, void **, size_t, const void *);

enum { N = 500, BYTES = N * 4 };

struct host_node {
    void (*function)(void *);
    void *data;
};

static void *module, *increment, *stream, *context;
static uint64_t numbers;
static int n = N, in[N], out[N], seen[8], seen_count;

static void see(void *number) { seen[seen_count++ % 8] = *(int *)number; }

static bool are(const int *got, int wanted) {
    for (int at = 0; at < N; at++) {
        if (got[at] != wanted) return false;
    }
    return true;
}

static void fill(int *memory, int with) {
    for (int at = 0; at < N; at++) memory[at] = with;
}

static void count(void) {
    void *two[] = {&numbers, &n};
    launch(increment, N, two, stream);
}

static void *made(void *graph) {
    void *exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void fire(void *exec) {
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
}

static void *down(void *graph, void **on, size_t ons, int *to) {
    void *node;
    struct copy copy = {.source = {.kind = 2, .device = numbers}, .target = {.kind = 1, .host = to},
                        .width = BYTES, .height = 1, .depth = 1};
    CHECK(cuGraphAddMemcpyNode(&node, graph, on, ons, &copy, context));
    return node;
}

static void *up(void *graph, void **on, size_t ons, const int *from) {
    void *node;
    struct copy copy = {.source = {.kind = 1, .host = from}, .target = {.kind = 2, .device = numbers},
                        .width = BYTES, .height = 1, .depth = 1};
    CHECK(cuGraphAddMemcpyNode(&node, graph, on, ons, &copy, context));
    return node;
}

static void *call(void *graph, void **on, size_t ons, void (*function)(void *), void *data) {
    void *node;
    CHECK(cuGraphAddHostNode(&node, graph, on, ons, &(struct host_node){function, data}));
    return node;
}

static void *kernel(void *graph, void **on, size_t ons) {
    void *node, *two[] = {&numbers, &n};
    struct kernel_node params = {.function = increment, .grid = {2, 1, 1}, .block = {256, 1, 1},
                                 .parameters = two};
    CHECK(cuGraphAddKernelNode_v2(&node, graph, on, ons, &params));
    return node;
}

// Copies to the device before a function, and to the host behind it.
static void around(void) {
    int number = 7;
    void *graph, *nodes[2];
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    count();
    CHECK(cuMemcpyHtoDAsync_v2(numbers, in, BYTES, stream));  // behind another node
    CHECK(cuLaunchHostFunc(stream, see, &number));
    count();
    CHECK(cuMemcpyDtoHAsync_v2(out, numbers, BYTES, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    void *exec = made(graph);
    for (int round = 0; round < 3; round++) {
        fill(in, 10 * round);
        fire(exec);
        NEED(are(out, 10 * round + 1) && seen_count == round + 1 && seen[round] == 7);
    }
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    // A function beside both copies, and behind one of them.
    CHECK(cuGraphCreate(&graph, 0));
    nodes[0] = up(graph, NULL, 0, in);
    call(graph, nodes, 1, see, &number);
    nodes[1] = kernel(graph, nodes, 1);
    down(graph, nodes + 1, 1, out);
    exec = made(graph);
    fill(in, 50);
    fire(exec);
    NEED(are(out, 51) && seen_count == 4);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

// What a function may write is not copied from as it was before the launch.
static void refused(void) {
    void *graph, *exec, *outer, *node;
    CHECK(cuGraphCreate(&graph, 0));
    node = call(graph, NULL, 0, see, &n);
    node = kernel(graph, &node, 1);
    up(graph, &node, 1, in);
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 801);
    // Nor in a graph within a graph, of whose copy of a copy the original has gone.
    CHECK(cuGraphCreate(&outer, 0));
    CHECK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph));
    CHECK(cuGraphDestroy(graph));
    OURS(cuGraphInstantiateWithFlags(&exec, outer, 0) == 801);
    CHECK(cuGraphClone(&graph, outer));
    CHECK(cuGraphDestroy(outer));
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 801);
    CHECK(cuGraphDestroy(graph));
}

int main(int words, char **word) {
    NEED(words == 2);
    start(0);
    int device = 0;
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    around();
    refused();
    puts("results right");
    return 0;
}
