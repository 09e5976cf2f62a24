// Graphs that kernels launch. Arguments: images with the kernels of fake_cuda/kernels/test_kernels.cu and
// graph_kernels.ptx.
#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphInstantiateWithParams(void **, void *, void *), cuGraphUpload(void *, void *);
int cuGraphExecGetFlags(void *, uint64_t *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);

enum { AUTO_FREE = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, GRAPHS = 40 };

static void *increment, *launch_graph, *stream;
static uint64_t device;

static int count_so_far(void) {
    int count;
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&count, device, sizeof count));
    return count;
}

static void *adding(int times) {
    void *graph;
    int one = 1;
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    for (int at = 0; at < times; at++) launch(increment, 1, (void *[]){&device, &one}, stream);
    CHECK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void launches(void) {
    void *graph = adding(2), *inner, *outer, *exec;
    uint64_t flags;
    CHECK(cuGraphInstantiateWithFlags(&inner, graph, DEVICE_LAUNCH));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphExecGetFlags(inner, &flags));
    NEED(flags == DEVICE_LAUNCH);
    CHECK(cuGraphUpload(inner, stream));
    launch(launch_graph, 1, (void *[]){&inner}, stream);
    NEED(count_so_far() == 2);
    CHECK(cuGraphLaunch(inner, stream));  // by the host too
    NEED(count_so_far() == 4);
    // By a kernel of another graph, as CUDA demands.
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    launch(launch_graph, 1, (void *[]){&inner}, stream);
    CHECK(cuStreamEndCapture(stream, &outer));
    CHECK(cuGraphInstantiateWithFlags(&exec, outer, 0));
    for (int at = 0; at < 3; at++) CHECK(cuGraphLaunch(exec, stream));
    NEED(count_so_far() == 10);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(outer));
    CHECK(cuGraphExecDestroy(inner));
    NEED(cuGraphLaunch(inner, stream) != 0);
}

static void many(void) {
    void *graph = adding(1), *made[GRAPHS];
    int before = count_so_far();
    for (int round = 0; round < 3; round++) {
        for (int at = 0; at < GRAPHS; at++) {
            struct {
                uint64_t flags;
                void *upload, *node;
                int result;
            } how = {DEVICE_LAUNCH | UPLOAD, stream, NULL, 1};
            CHECK(cuGraphInstantiateWithParams(&made[at], graph, &how));
            NEED(how.result == 0 && how.node == NULL);
        }
        for (int at = 0; at < GRAPHS; at++) {
            launch(launch_graph, 1, (void *[]){&made[at]}, stream);
            CHECK(cuStreamSynchronize(stream));
            CHECK(cuGraphExecDestroy(made[at]));
        }
        NEED(count_so_far() == before + (round + 1) * GRAPHS);
    }
    CHECK(cuGraphDestroy(graph));
}

static void never(void *unused) { (void)unused; }

static void refused(void) {
    void *graph = adding(1), *made, *pinned;
    NEED(cuGraphInstantiateWithFlags(&made, graph, DEVICE_LAUNCH | AUTO_FREE) != 0);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuLaunchHostFunc(stream, never, NULL));
    CHECK(cuStreamEndCapture(stream, &graph));
    NEED(cuGraphInstantiateWithFlags(&made, graph, DEVICE_LAUNCH) != 0);
    CHECK(cuGraphDestroy(graph));
    // The GPU itself reads mapped memory.
    uint64_t seen;
    int found = 0;
    CHECK(cuMemHostAlloc(&pinned, 64, 2));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, pinned, 0));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuMemcpyHtoDAsync_v2(device + 64, pinned, 4, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&made, graph, DEVICE_LAUNCH));
    CHECK(cuGraphUpload(made, stream));
    *(int *)pinned = 7;
    launch(launch_graph, 1, (void *[]){&made}, stream);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&found, device + 64, sizeof found));
    NEED(found == 7);
    CHECK(cuGraphExecDestroy(made));
    CHECK(cuGraphDestroy(graph));
}

int main(int words, char **word) {
    void *module, *other;
    NEED(words == 3);
    start(0);
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuModuleLoad(&other, word[2]));
    CHECK(cuModuleGetFunction(&launch_graph, other, "launch_graph"));
    CHECK(cuMemAlloc_v2(&device, 4096));
    CHECK(cuMemsetD8_v2(device, 0, 4096));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamCreate(&stream, 1));
    launches();
    many();
    refused();
    puts("results right");
    return 0;
}
