// Capture behind the door: the host's memory, nodes that a capture made, memory allocated in it.
// Argument: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu.
#include "graphs.h"

enum { N = 500, BYTES = N * 4, MIB = 1 << 20 };
int cuStreamQuery(void *);

enum { UNSUPPORTED = 900, INVALIDATED = 901, UNMATCHED = 903, ISOLATED = 905 };

static void *module, *increment, *stream, *other;
static uint64_t numbers;
static int n = N;

static void count(void *on) {
    void *two[] = {&numbers, &n};
    launch(increment, N, two, on);
}

static void *ready(void *graph) {
    void *exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void fire(void *exec) {
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
}

static bool are(const int *got, int wanted) {
    for (int at = 0; at < N; at++) {
        if (got[at] != wanted) return false;
    }
    return true;
}

// Up, twice counted, down; the memory of the host is read and written again at each launch.
static void *copies(int *in, int *out) {
    void *graph;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemcpyHtoDAsync_v2(numbers, in, BYTES, stream));
    count(stream);
    count(stream);
    CHECK(cuMemcpyDtoHAsync_v2(out, numbers, BYTES, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void fill(int *in, int with) {
    for (int at = 0; at < N; at++) in[at] = with;
}

static void host_memory(int *in, int *out) {
    void *nodes[8], *to[8], *outer, *clone;
    int types[4], used = 0;
    size_t found = 8;
    void *graph = copies(in, out), *exec = ready(graph);
    for (int round = 0; round < 3; round++) {
        fill(in, round * 10);
        fire(exec);
        NEED(are(out, round * 10 + 2));
    }
    // Its nodes are as good as those that are made one by one.
    CHECK(cuGraphGetNodes(graph, nodes, &found));
    NEED(found == 4);
    for (int at = 0; at < 4; at++) CHECK(cuGraphNodeGetType(nodes[at], &types[at]));
    NEED(types[0] == 1 && types[1] == 0 && types[2] == 0 && types[3] == 1);
    struct copy copy;
    CHECK(cuGraphMemcpyNodeGetParams(nodes[0], &copy));
    NEED(copy.source.host == in && copy.target.device == numbers && copy.width == BYTES);
    CHECK(cuGraphMemcpyNodeGetParams(nodes[3], &copy));
    NEED(copy.target.host == out && copy.source.device == numbers);
    struct kernel_node kernel;
    CHECK(cuGraphKernelNodeGetParams_v2(nodes[1], &kernel));
    NEED(kernel.function == increment && *(uint64_t *)kernel.parameters[0] == numbers);
    found = 4;  // room for so many
    CHECK(cuGraphGetEdges(graph, nodes + 4, to, &found));
    NEED(found == 3);
    void *end = nodes[0];
    for (int at = 0; at < 3; at++) {  // a chain, whose edges and kernels come in any order
        int edge = 0;
        while (edge < 3 && nodes[4 + edge] != end) edge++;
        NEED(edge < 3);
        end = to[edge];
    }
    NEED(end == nodes[3]);
    int *elsewhere = calloc(N, 4);
    copy.target.host = elsewhere;
    CHECK(cuGraphExecMemcpyNodeSetParams(exec, nodes[3], &copy, NULL));
    fill(in, 5);
    fill(out, 1);
    fire(exec);
    NEED(are(elsewhere, 7));
    NEED(are(out, 1));
    // Another capture takes the place of the first, with memory of its own.
    int *fresh = calloc(N, 4);
    void *next = copies(fresh, out);
    struct update update;
    CHECK(cuGraphExecUpdate_v2(exec, next, &update));
    fire(exec);
    NEED(are(out, 2));
    CHECK(cuGraphDestroy(next));
    fill(fresh, 20);
    fire(exec);
    NEED(are(out, 22));
    CHECK(cuGraphClone(&clone, graph));
    void *twin = ready(clone);
    fill(in, 30);
    fire(twin);
    NEED(are(out, 32));
    // A launch cannot be captured, and spoils what tries to (seen on an H200).
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    NEED(cuGraphLaunch(twin, stream) == 900);
    CHECK(cuStreamIsCapturing(stream, &used));
    NEED(used == 2);
    NEED(cuStreamEndCapture(stream, &outer) == 901);
    CHECK(cuCtxSynchronize());
    CHECK(cuGraphExecDestroy(twin));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(clone));
    CHECK(cuGraphDestroy(graph));
    free(elsewhere);
    free(fresh);
}

// Many rows, and more bytes than fit into one record, read and written by one launch.
static void large(void) {
    enum { WIDTH = 3000, ROWS = 100, PITCH = 4096 };
    uint64_t device;
    void *graph;
    unsigned char *in = malloc(PITCH * ROWS), *out = malloc(PITCH * ROWS);
    CHECK(cuMemAlloc_v2(&device, PITCH * ROWS));
    for (int at = 0; at < PITCH * ROWS; at++) in[at] = (unsigned char)(at * 13 >> 2);
    memset(out, 0x77, PITCH * ROWS);
    struct {
        size_t x, y;
        int kind;
        const void *host;
        uint64_t device;
        void *array;
        size_t pitch;
    } sides[2] = {{.kind = 1, .host = in, .pitch = PITCH}, {.kind = 2, .device = device,
                                                            .pitch = WIDTH}};
    struct {
        __typeof__(sides[0]) source, target;
        size_t width, height;
    } there = {sides[0], sides[1], WIDTH, ROWS}, back = there;
    back.source = sides[1];
    back.target = sides[0];
    back.target.host = out;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemcpy2DAsync_v2(&there, stream));
    CHECK(cuMemcpy2DAsync_v2(&back, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    fire(ready(graph));
    for (int row = 0; row < ROWS; row++) {
        for (int at = 0; at < PITCH; at++) {
            NEED(out[row * PITCH + at] == (at < WIDTH ? in[row * PITCH + at] : 0x77));
        }
    }
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(device));
    free(in);
    free(out);
}

// What a capture says of itself, and nodes that are put between captured work.
static void information(void) {
    int status = 9, *out = calloc(N, 4);
    uint64_t id = 0, again = 0, spare;
    void *graph, *same, **front, *fork, *joined, *nodes[8], *node, *edges;
    size_t found;
    CHECK(cuMemAlloc_v2(&spare, BYTES));
    CHECK(cuMemsetD8_v2(numbers, 0, BYTES));
    CHECK(cuMemsetD8_v2(spare, 0, BYTES));
    CHECK(cuCtxSynchronize());
    CHECK(cuEventCreate(&fork, 2));
    CHECK(cuEventCreate(&joined, 2));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &front, &edges, &found));
    NEED(status == 1 && id != 0 && graph != NULL && found == 0);
    count(stream);
    CHECK(cuEventRecord(fork, stream));
    CHECK(cuStreamWaitEvent(other, fork, 0));
    CHECK(cuStreamIsCapturing(other, &status));
    NEED(status == 1);
    CHECK(cuMemcpyDtoHAsync_v2(out, numbers, BYTES, other));
    CHECK(cuEventRecord(joined, other));
    CHECK(cuStreamWaitEvent(stream, joined, 0));
    CHECK(cuStreamGetCaptureInfo_v3(stream, &status, &again, &same, &front, NULL, &found));
    NEED(id == again && same == graph && found == 2);
    CHECK(cuGraphAddEmptyNode(&node, graph, front, found));
    CHECK(cuStreamUpdateCaptureDependencies_v2(stream, &node, NULL, 1, 1));
    count(stream);
    CHECK(cuStreamEndCapture(stream, &same));
    NEED(same == graph);
    CHECK(cuStreamIsCapturing(other, &status));
    NEED(status == 0);
    found = 8;
    CHECK(cuGraphNodeGetDependentNodes(node, nodes, &found));
    NEED(found == 1);
    found = 8;
    CHECK(cuGraphNodeGetDependencies(node, nodes, &found));
    NEED(found == 2);
    // More work behind what is there.
    void *elsewhere[] = {&spare, &n};
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, &node, NULL, 1, 0));
    launch(increment, N, elsewhere, stream);
    CHECK(cuStreamEndCapture(stream, &same));
    NEED(same == graph);
    found = 0;
    CHECK(cuGraphGetNodes(graph, NULL, &found));
    NEED(found == 5);
    found = 8;
    CHECK(cuGraphNodeGetDependentNodes(node, nodes, &found));
    NEED(found == 2);
    void *exec = ready(graph);
    fire(exec);
    NEED(are(out, 1));
    fire(exec);
    NEED(are(out, 3));
    CHECK(cuMemcpyDtoH_v2(out, spare, BYTES));
    NEED(are(out, 2));
    CHECK(cuMemFree_v2(spare));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuEventDestroy_v2(fork));
    CHECK(cuEventDestroy_v2(joined));
    NEED(cuStreamEndCapture(stream, &same) == 401);
    free(out);
}

static void add(void *sum) { *(int *)sum += 1; }

// A host function may come behind copies from the host's memory, and not before one, which would bring the
// bytes that were there before the launch.
static void host_functions(int *in, int *out) {
    void *graph, *exec;
    int calls = 0;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemcpyHtoDAsync_v2(numbers, in, BYTES, stream));
    CHECK(cuLaunchHostFunc(stream, add, &calls));
    CHECK(cuStreamEndCapture(stream, &graph));
    exec = ready(graph);
    fire(exec);
    fire(exec);
    NEED(calls == 2);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuLaunchHostFunc(stream, add, &calls));
    CHECK(cuMemcpyHtoDAsync_v2(numbers, out, BYTES, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 801);
    CHECK(cuGraphDestroy(graph));
}

static void memory(void) {
    size_t before = left();
    uint64_t inside = 0, kept = 0;
    void *graph, *nodes[4];
    size_t found = 4;
    int types[3], got[4];
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemAllocAsync(&inside, 16 * MIB, stream));
    CHECK(cuMemsetD8Async(inside, 1, N, stream));
    CHECK(cuMemFreeAsync(inside, stream));
    CHECK(cuMemAllocAsync(&kept, 4 * MIB, stream));
    CHECK(cuMemsetD8Async(kept, 2, N, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    OURS(left() == before);
    void *exec = ready(graph);
    OURS(left() == before - 20 * MIB);
    fire(exec);
    CHECK(cuMemcpyDtoH_v2(got, kept, sizeof got));
    NEED(got[3] == 0x02020202);
    CHECK(cuMemFreeAsync(kept, stream));
    fire(exec);
    CHECK(cuMemcpyDtoH_v2(got, kept, sizeof got));
    CHECK(cuMemFree_v2(kept));
    CHECK(cuGraphGetNodes(graph, nodes, &found));
    for (int at = 0; at < 3; at++) CHECK(cuGraphNodeGetType(nodes[at], &types[at]));
    NEED(types[0] == 10 && types[1] == 2 && types[2] == 11);
    uint64_t freed;
    CHECK(cuGraphMemFreeNodeGetParams(nodes[2], &freed));
    NEED(freed == inside);
    CHECK(cuGraphExecDestroy(exec));
    OURS(left() == before);
    CHECK(cuGraphDestroy(graph));
}

// What spoils a capture is heard of when it ends, and of nothing else.
static void mistakes(void) {
    void *graph, *event, *elsewhere;
    int status;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventCreate(&elsewhere, 0));
    for (int round = 0; round < 3; round++) {
        CHECK(cuStreamBeginCapture_v2(stream, 2));
        count(stream);
        if (round == 0) NEED(cuStreamSynchronize(stream) == UNSUPPORTED);
        if (round == 1) NEED(cuStreamQuery(stream) == UNSUPPORTED);
        if (round == 2) {
            CHECK(cuEventRecord(elsewhere, other));
            int waited = cuStreamWaitEvent(stream, elsewhere, 0);
            NEED(waited == 0 || waited == ISOLATED);
        } else {
            CHECK(cuStreamIsCapturing(stream, &status));
            NEED(status == 2);
        }
        NEED(cuStreamEndCapture(stream, &graph) == INVALIDATED && graph == NULL);
        CHECK(cuCtxSynchronize());
    }
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    count(stream);
    CHECK(cuEventRecord(event, stream));
    CHECK(cuStreamWaitEvent(other, event, 0));
    NEED(cuStreamEndCapture(other, &graph) == UNMATCHED);
    count(other);
    CHECK(cuEventRecord(event, other));
    CHECK(cuStreamWaitEvent(stream, event, 0));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuEventDestroy_v2(elsewhere));
}

int main(int arguments, char **values) {
    int *in, *out, *plain = calloc(N, 4), *result = calloc(N, 4);
    NEED(arguments == 2);
    start(0);
    CHECK(cuModuleLoad(&module, values[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    CHECK(cuMemAllocHost_v2((void **)&in, BYTES));
    CHECK(cuMemAllocHost_v2((void **)&out, BYTES));
    host_memory(in, out);
    host_memory(plain, result);
    large();
    information();
    host_functions(in, out);
    memory();
    mistakes();
    CHECK(cuMemFreeHost(in));
    CHECK(cuMemFreeHost(out));
    CHECK(cuCtxSynchronize());
    puts("results right");
    return 0;
}
