// A launch of a graph that fails leaves the host's memory as it is, and the next one does not.
// Argument: how many host nodes come behind the copy to the host.
#include "graphs.h"

int cuGraphAddHostNode(void **, void *, void **, size_t, const void *);

enum { N = 500, BYTES = N * 4 };

struct host_node {
    void (*function)(void *);
    void *data;
};

static int seen;

static void see(void *first) { seen = *(int *)first; }

int main(int words, char **word) {
    NEED(words == 2);
    start(0);
    void *context, *stream, *graph, *node, *exec;
    uint64_t numbers;
    static int out[N];
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    CHECK(cuGraphCreate(&graph, 0));
    struct copy copy = {.source = {.kind = 2, .device = numbers}, .target = {.kind = 1, .host = out},
                        .width = BYTES, .height = 1, .depth = 1};
    CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context));
    for (int at = 0; at < atoi(word[1]); at++) {
        CHECK(cuGraphAddHostNode(&node, graph, &node, 1, &(struct host_node){see, out}));
    }
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 1; round < 5; round++) {  // the driver refuses the second launch
        bool fails = round == 2;
        memset(out, 0x77, BYTES);
        seen = 0;
        CHECK(cuMemsetD8Async(numbers, (unsigned char)round, BYTES, stream));
        int status = cuGraphLaunch(exec, stream), later = cuStreamSynchronize(stream);
        NEED((status | later) == (fails ? 1 : 0));
        CHECK(cuCtxSynchronize());
        NEED(out[3] == (fails ? 0x77 : round) * 0x01010101);
        NEED(seen == (fails || atoi(word[1]) == 0 ? 0 : round * 0x01010101));
    }
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    puts("results right");
    return 0;
}
