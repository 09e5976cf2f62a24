// Graphs by node behind the door; the partition is 64 MiB. Argument: a cubin with the kernels of
// fake_cuda/kernels/test_kernels.cu.
#include "graphs.h"

int cuCtxGetCurrent(void **);

enum { N = 1000, BYTES = N * 4 };

static void *module, *increment, *saxpy, *stream, *context;

static struct kernel_node counting(uint64_t *numbers, int *count, void **two) {
    two[0] = numbers;
    two[1] = count;
    return (struct kernel_node){.function = increment, .grid = {4, 1, 1}, .block = {256, 1, 1},
                                .parameters = two};
}

static void run(void *graph, int times) {
    void *exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int at = 0; at < times; at++) CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(exec));
}

static int value(uint64_t numbers) {
    int got[N];
    CHECK(cuMemcpyDtoH_v2(got, numbers, BYTES));
    for (int at = 1; at < N; at++) NEED(got[at] == got[0]);
    return got[0];
}

// Nodes and edges come in any order.
static bool is_among(void *node, void **nodes, size_t count) {
    for (size_t at = 0; at < count; at++) {
        if (nodes[at] == node) return true;
    }
    return false;
}

static bool is_edge(void *one, void *other, void **from, void **to, size_t count) {
    for (size_t at = 0; at < count; at++) {
        if (from[at] == one && to[at] == other) return true;
    }
    return false;
}

// Fill with 5, increment twice, in the order that edges say and not in that of making.
static void order(void) {
    uint64_t numbers;
    int n = N;
    void *graph, *fill, *first, *second, *join, *two[2], *nodes[8], *from[8], *to[8];
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    struct kernel_node kernel = counting(&numbers, &n, two);
    struct memset_node five = {.target = numbers, .value = 5, .element = 4, .width = N, .height = 1};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &kernel));
    n = -1;  // parameters were copied
    CHECK(cuGraphAddKernelNode_v2(&second, graph, NULL, 0, &(struct kernel_node){
        .function = increment, .grid = {4, 1, 1}, .block = {256, 1, 1},
        .parameters = (void *[]){&numbers, &(int){N}}}));
    CHECK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &five, context));
    CHECK(cuGraphAddDependencies(graph, (void *[]){fill, fill, first},
                                 (void *[]){first, second, second}, 3));
    CHECK(cuGraphAddEmptyNode(&join, graph, (void *[]){first, second}, 2));
    NEED(cuGraphAddDependencies(graph, &fill, &first, 1) == 1);  // it is there
    size_t count = 8;
    CHECK(cuGraphGetNodes(graph, nodes, &count));
    NEED(count == 4 && nodes[0] == first && nodes[3] == join && nodes[2] == fill);
    count = 8;
    CHECK(cuGraphGetRootNodes(graph, nodes, &count));
    NEED(count == 1 && nodes[0] == fill && nodes[1] == NULL);
    count = 0;
    CHECK(cuGraphGetEdges(graph, NULL, NULL, &count));
    NEED(count == 5);
    CHECK(cuGraphGetEdges(graph, from, to, &count));
    NEED(is_edge(fill, first, from, to, 5) && is_edge(fill, second, from, to, 5));
    NEED(is_edge(first, join, from, to, 5) && is_edge(second, join, from, to, 5));
    NEED(is_edge(first, second, from, to, 5));
    count = 8;
    CHECK(cuGraphNodeGetDependentNodes(fill, nodes, &count));
    NEED(count == 2 && is_among(first, nodes, 2) && is_among(second, nodes, 2));
    count = 8;
    CHECK(cuGraphNodeGetDependencies(join, nodes, &count));
    NEED(count == 2 && is_among(first, nodes, 2) && is_among(second, nodes, 2));
    int type = -1;
    CHECK(cuGraphNodeGetType(fill, &type));
    NEED(type == 2);
    run(graph, 3);
    NEED(value(numbers) == 7);

    // What nodes hold can be asked for, and changed; executables made before do not change.
    struct kernel_node got;
    CHECK(cuGraphKernelNodeGetParams_v2(first, &got));
    NEED(got.function == increment && got.grid[0] == 4 && *(int *)got.parameters[1] == N);
    struct memset_node filled;
    CHECK(cuGraphMemsetNodeGetParams(fill, &filled));
    NEED(filled.value == 5 && filled.target == numbers);
    void *exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    filled.value = 40;
    CHECK(cuGraphMemsetNodeSetParams(fill, &filled));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(value(numbers) == 7);
    run(graph, 1);
    NEED(value(numbers) == 42);

    // An executable's nodes are changed, switched off, and taken from another graph.
    five.value = 100;
    CHECK(cuGraphExecMemsetNodeSetParams(exec, fill, &five, context));
    CHECK(cuGraphNodeSetEnabled(exec, second, 0));
    unsigned enabled = 9;
    CHECK(cuGraphNodeGetEnabled(exec, second, &enabled));
    NEED(enabled == 0);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(value(numbers) == 101);
    struct update update = {9, NULL, NULL};
    CHECK(cuGraphExecUpdate_v2(exec, graph, &update));
    NEED(update.result == 0);
    void *clone, *twin;
    CHECK(cuGraphClone(&clone, graph));
    CHECK(cuGraphNodeFindInClone(&twin, fill, clone));
    NEED(twin != fill);
    count = 8;
    CHECK(cuGraphGetNodes(clone, nodes, &count));
    NEED(count == 4 && nodes[2] == twin);
    count = 8;
    CHECK(cuGraphGetEdges(clone, from, to, &count));
    NEED(count == 5 && is_edge(twin, nodes[0], from, to, 5));
    CHECK(cuGraphKernelNodeGetParams_v2(nodes[0], &got));
    NEED(got.function == increment && *(uint64_t *)got.parameters[0] == numbers);
    run(clone, 1);
    NEED(value(numbers) == 42);
    CHECK(cuGraphDestroyNode(nodes[1]));
    OURS(cuGraphDestroyNode(nodes[1]) == 400);
    count = 8;
    CHECK(cuGraphGetNodes(clone, nodes, &count));
    NEED(count == 3);
    NEED(cuGraphExecUpdate_v2(exec, clone, &update) == 910 && update.result == 2);
    run(clone, 1);
    NEED(value(numbers) == 41);
    CHECK(cuGraphRemoveDependencies(graph, &fill, &first, 1));
    NEED(cuGraphRemoveDependencies(graph, &fill, &first, 1) == 1);

    // A graph within a graph.
    void *parent, *child, *inner;
    CHECK(cuGraphCreate(&parent, 0));
    CHECK(cuGraphAddChildGraphNode(&child, parent, NULL, 0, clone));
    CHECK(cuGraphAddKernelNode_v2(&first, parent, &child, 1, &got));
    CHECK(cuGraphChildGraphNodeGetGraph(child, &inner));
    count = 8;
    CHECK(cuGraphGetNodes(inner, nodes, &count));
    NEED(count == 3 && nodes[1] != twin);
    OURS(cuGraphDestroy(inner) == 1);
    run(parent, 2);
    NEED(value(numbers) == 42);
    CHECK(cuGraphDebugDotPrint(parent, "graph.dot", 0));
    CHECK(cuGraphDestroy(parent));
    CHECK(cuGraphDestroy(clone));
    CHECK(cuGraphDestroy(graph));
    OURS(cuGraphDestroy(graph) == 400);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuMemFree_v2(numbers));
}

// Memory of the host on either side, read again and written again at each launch.
static void host_memory(int pinned) {
    uint64_t numbers;
    int n = N, *in = malloc(BYTES), *out = malloc(BYTES), *given = in, *taken = out;
    void *graph, *exec, *up, *count, *down, *two[2];
    if (pinned) {
        CHECK(cuMemAllocHost_v2((void **)&in, BYTES));
        CHECK(cuMemAllocHost_v2((void **)&out, BYTES));
    }
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    CHECK(cuGraphCreate(&graph, 0));
    struct copy there = {.width = BYTES, .height = 1, .depth = 1}, back = there;
    there.source = (struct box){.kind = 1, .host = in};
    there.target = (struct box){.kind = 2, .device = numbers};
    back.source = (struct box){.kind = 2, .device = numbers};
    back.target = (struct box){.kind = 4, .device = (uint64_t)(uintptr_t)out};
    struct kernel_node kernel = counting(&numbers, &n, two);
    CHECK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &there, context));
    CHECK(cuGraphAddKernelNode_v2(&count, graph, &up, 1, &kernel));
    CHECK(cuGraphAddMemcpyNode(&down, graph, &count, 1, &back, context));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 0; round < 4; round++) {
        for (int at = 0; at < N; at++) in[at] = at * 3 + round;
        memset(out, 0, BYTES);
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuStreamSynchronize(stream));
        for (int at = 0; at < N; at++) NEED(out[at] == at * 3 + round + 1);
    }
    struct copy got;
    CHECK(cuGraphMemcpyNodeGetParams(up, &got));
    NEED(got.source.host == in && got.target.device == numbers);

    // What is switched off brings nothing back; other memory can take its place.
    CHECK(cuGraphNodeSetEnabled(exec, down, 0));
    memset(out, 0, BYTES);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(out[7] == 0);
    CHECK(cuGraphNodeSetEnabled(exec, down, 1));
    int *other = calloc(N, 4);
    there.source.host = other;
    CHECK(cuGraphExecMemcpyNodeSetParams(exec, up, &there, context));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    for (int at = 0; at < N; at++) NEED(out[at] == 1);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));

    // In place, without a word between the launches: each sees what the one before it wrote.
    CHECK(cuGraphCreate(&graph, 0));
    memset(out, 0, BYTES);
    there.source.host = out;
    CHECK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &there, context));
    CHECK(cuGraphAddKernelNode_v2(&count, graph, &up, 1, &kernel));
    CHECK(cuGraphAddMemcpyNode(&down, graph, &count, 1, &back, context));
    CHECK(cuGraphAddMemcpyNode(&up, graph, &down, 1, &there, context));
    CHECK(cuGraphAddKernelNode_v2(&count, graph, &up, 1, &kernel));
    CHECK(cuGraphAddMemcpyNode(&down, graph, &count, 1, &back, context));
    run(graph, 5);
    for (int at = 0; at < N; at++) NEED(out[at] == 10);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(numbers));
    if (pinned) {
        CHECK(cuMemFreeHost(in));
        CHECK(cuMemFreeHost(out));
    }
    free(other);
    free(given);
    free(taken);
}

// Rows that lie apart: the bytes between them stay as they are.
static void rectangles(void) {
    enum { WIDTH = 24, PITCH = 40, ROWS = 5 };
    uint64_t device;
    unsigned char in[PITCH * ROWS], out[PITCH * ROWS];
    void *graph, *up, *down;
    CHECK(cuMemAlloc_v2(&device, 64 * ROWS));
    for (size_t at = 0; at < sizeof in; at++) in[at] = (unsigned char)at;
    memset(out, 0xee, sizeof out);
    struct copy there = {.width = WIDTH, .height = ROWS, .depth = 1}, back = there;
    there.source = (struct box){.kind = 1, .host = in, .pitch = PITCH, .x = 8};
    there.target = (struct box){.kind = 2, .device = device, .pitch = 64};
    back.source = there.target;
    back.target = (struct box){.kind = 1, .host = out, .pitch = PITCH, .x = 4};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &there, context));
    CHECK(cuGraphAddMemcpyNode(&down, graph, &up, 1, &back, context));
    run(graph, 1);
    for (int row = 0; row < ROWS; row++) {
        for (int at = 0; at < PITCH; at++) {
            bool inside = at >= 4 && at < 4 + WIDTH;
            NEED(out[row * PITCH + at] == (inside ? in[row * PITCH + at + 4] : 0xee));
        }
    }
    back.target.host = in + 16;  // half of it in another node's memory, which is written here
    OURS(cuGraphAddMemcpyNode(&down, graph, &up, 1, &back, context) == 801);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(device));
}

static void arrays(void) {
    enum { WIDTH = 64, ROWS = 6 };
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } bytes = {WIDTH, ROWS, 1, 1};
    unsigned char in[WIDTH * ROWS], out[WIDTH * ROWS] = {0};
    void *array, *graph, *up, *down;
    CHECK(cuArrayCreate_v2(&array, &bytes));
    for (int at = 0; at < WIDTH * ROWS; at++) in[at] = (unsigned char)(at * 5);
    struct copy there = {.width = WIDTH - 8, .height = ROWS, .depth = 1}, back = there;
    there.source = (struct box){.kind = 1, .host = in, .pitch = WIDTH};
    there.target = (struct box){.kind = 3, .array = array, .x = 8};
    back.source = there.target;
    back.target = (struct box){.kind = 1, .host = out, .pitch = WIDTH};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &there, context));
    CHECK(cuGraphAddMemcpyNode(&down, graph, &up, 1, &back, context));
    run(graph, 1);
    for (int at = 0; at < WIDTH * ROWS; at++) {
        NEED(out[at] == (at % WIDTH < WIDTH - 8 ? in[at] : 0));
    }
    CHECK(cuGraphDestroy(graph));
    CHECK(cuArrayDestroy(array));
}

static void events_and_batches(void) {
    uint64_t word;
    void *graph, *record, *wait, *batch, *event, *other, *back;
    unsigned got = 0;
    CHECK(cuMemAlloc_v2(&word, 8));
    CHECK(cuMemsetD8_v2(word, 0, 8));
    CHECK(cuCtxSynchronize());  // the stream does not wait for the legacy one
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventCreate(&other, 0));
    struct operation operations[2] = {{.kind = 2, .address = word, .value = 77},
                                      {.kind = 1, .address = word, .value = 77, .flags = 1}};
    struct batch_node two = {.count = 2, .operations = operations}, told;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddBatchMemOpNode(&batch, graph, NULL, 0, &two));
    CHECK(cuGraphAddEventRecordNode(&record, graph, &batch, 1, event));
    CHECK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, other));
    CHECK(cuGraphEventRecordNodeGetEvent(record, &back));
    NEED(back == event);
    CHECK(cuGraphEventRecordNodeSetEvent(record, other));
    CHECK(cuGraphEventRecordNodeGetEvent(record, &back));
    NEED(back == other);
    CHECK(cuGraphBatchMemOpNodeGetParams(batch, &told));
    NEED(told.count == 2 && ((const struct operation *)told.operations)[0].value == 77);
    run(graph, 2);
    CHECK(cuEventSynchronize(other));
    CHECK(cuMemcpyDtoH_v2(&got, word, 4));
    NEED(got == 77);
    OURS(cuGraphAddEventRecordNode(&record, graph, NULL, 0, graph) == 1);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuEventDestroy_v2(other));
    CHECK(cuMemFree_v2(word));
}

// Memory of nodes counts as long as the graph can be launched.
static void memory(void) {
    enum { MIB = 1 << 20 };
    size_t all = left();
    void *graph, *allocate, *fill, *release, *exec, *twin;
    struct allocate_node wanted = {.type = 1, .location = {1, 0}, .size = 40 * MIB}, got;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&allocate, graph, NULL, 0, &wanted));
    NEED(wanted.address != 0);
    struct memset_node ones = {.target = wanted.address, .value = 1, .element = 1, .width = N,
                               .height = 1};
    CHECK(cuGraphAddMemsetNode(&fill, graph, &allocate, 1, &ones, context));
    CHECK(cuGraphAddMemFreeNode(&release, graph, &fill, 1, wanted.address));
    CHECK(cuGraphMemAllocNodeGetParams(allocate, &got));
    NEED(got.address == wanted.address && got.size == 40 * MIB);
    NEED(cuGraphClone(&twin, graph) == 801);
    NEED(cuGraphDestroyNode(release) == 801);
    OURS(left() == all);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OURS(left() == all - 40 * MIB);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    uint64_t block, used = 0;
    OURS(cuMemAlloc_v2(&block, 32 * MIB) == 2);
    CHECK(cuDeviceGetGraphMemAttribute(0, 2, &used));
    NEED(used >= 40 * MIB);
    CHECK(cuDeviceSetGraphMemAttribute(0, 1, &(uint64_t){0}));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuMemAlloc_v2(&block, 32 * MIB));
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 2);
    CHECK(cuMemFree_v2(block));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuDeviceGraphMemTrim(0));
    OURS(left() == all);

    // What the graph does not free is the program's to free, and then there again.
    CHECK(cuGraphCreate(&graph, 0));
    wanted.size = 8 * MIB;
    CHECK(cuGraphAddMemAllocNode(&allocate, graph, NULL, 0, &wanted));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int at = 0; at < 2; at++) {
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemsetD8_v2(wanted.address, 3, N));
        CHECK(cuCtxSynchronize());  // this stream's work is not in that stream's order
        if (at == 0) CHECK(cuMemFreeAsync(wanted.address, stream));
    }
    CHECK(cuGraphExecDestroy(exec));
    OURS(left() == all - 8 * MIB);
    CHECK(cuMemFree_v2(wanted.address));
    OURS(left() == all);
    CHECK(cuGraphDestroy(graph));
}

static int destroyed;
static void destroy(void *data) { destroyed += *(int *)data; }

static void objects(void) {
    void *object, *graph, *exec;
    int one = 1;
    CHECK(cuUserObjectCreate(&object, &one, destroy, 2, 1));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphRetainUserObject(graph, object, 1, 1));
    CHECK(cuUserObjectRelease(object, 1));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    NEED(destroyed == 0);
    CHECK(cuGraphExecDestroy(exec));
    NEED(destroyed == 1);
    // Of a graph within a graph.
    void *child, *node;
    CHECK(cuUserObjectCreate(&object, &one, destroy, 1, 1));
    CHECK(cuGraphCreate(&child, 0));
    CHECK(cuGraphRetainUserObject(child, object, 1, 1));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    CHECK(cuGraphDestroy(child));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    NEED(destroyed == 1);
    CHECK(cuGraphExecDestroy(exec));
    NEED(destroyed == 2);
}

static void conditions(void) {
    uint64_t numbers, handle;
    void *graph, *node, *inside, *two[2], *first;
    int n = N;
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, 1));
    struct node_params when = {.type = 13, .conditional = {.handle = handle, .size = 1}};
    struct memset_node zero = {.target = numbers, .element = 1, .width = BYTES, .height = 1};
    CHECK(cuGraphAddMemsetNode(&first, graph, NULL, 0, &zero, context));
    CHECK(cuGraphAddNode_v2(&node, graph, &first, NULL, 1, &when));
    struct kernel_node kernel = counting(&numbers, &n, two);
    CHECK(cuGraphAddKernelNode_v2(&inside, when.conditional.graphs[0], NULL, 0, &kernel));
    struct copy host = {.width = 4, .height = 1, .depth = 1};
    host.source = (struct box){.kind = 1, .host = &n};
    host.target = (struct box){.kind = 2, .device = numbers};
    OURS(cuGraphAddMemcpyNode(&inside, when.conditional.graphs[0], NULL, 0, &host, context) == 801);
    run(graph, 1);
    NEED(value(numbers) == 1);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(numbers));
}

static int launched(void *exec, uint64_t numbers) {
    CHECK(cuMemsetD8Async(numbers, 0, BYTES, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    return value(numbers);
}

// A graph that increments twice, the second time in a graph that has moved into it, and once more under a
// condition: as XLA builds a loop. `inner` and `kernel` are the nodes.
static void *nest(struct kernel_node *one, void **kernel, void **inner, void **body) {
    void *middle, *deep, *node;
    uint64_t handle;
    CHECK(cuGraphCreate(&middle, 0));
    CHECK(cuGraphCreate(&deep, 0));
    CHECK(cuGraphAddKernelNode_v2(kernel, deep, NULL, 0, one));
    CHECK(cuGraphAddKernelNode_v2(&node, middle, NULL, 0, one));
    struct node_params child = {.type = 4, .child = {deep, 1}};
    CHECK(cuGraphAddNode_v2(inner, middle, &node, NULL, 1, &child));
    CHECK(cuGraphConditionalHandleCreate(&handle, middle, context, 1, 1));
    struct node_params when = {.type = 13, .conditional = {.handle = handle, .size = 1}};
    CHECK(cuGraphAddNode_v2(&node, middle, inner, NULL, 1, &when));
    CHECK(cuGraphAddKernelNode_v2(body, when.conditional.graphs[0], NULL, 0, one));
    return middle;
}

// Graphs that move into others (CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE): they stay the program's to fill and to
// change, and end with the node.
static void moves(void) {
    uint64_t numbers, room;
    int n = N, none = 0, type = -1;
    void *graph, *node, *again, *kernel, *inner, *body, *found, *exec, *two[2], *off[2], *late;
    CHECK(cuMemAlloc_v2(&numbers, BYTES));
    struct kernel_node one = counting(&numbers, &n, two), nothing = counting(&numbers, &none, off);
    CHECK(cuGraphCreate(&graph, 0));
    void *middle = nest(&one, &kernel, &inner, &body);
    struct node_params child = {.type = 4, .child = {middle, 1}};
    CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &child));
    CHECK(cuGraphChildGraphNodeGetGraph(node, &found));
    NEED(found == middle);
    CHECK(cuGraphNodeGetType(inner, &type));
    NEED(type == 4);
    CHECK(cuGraphAddKernelNode_v2(&late, middle, &inner, 1, &one));  // it may still grow
    NEED(cuGraphDestroy(middle) != 0);
    NEED(cuGraphInstantiateWithFlags(&exec, middle, 0) != 0);
    NEED(cuGraphAddNode_v2(&again, graph, NULL, NULL, 0, &child) != 0);  // moved already
    child.child.ownership = 0;
    NEED(cuGraphAddNode_v2(&again, graph, NULL, NULL, 0, &child) != 0);
    child = (struct node_params){.type = 4, .child = {graph, 1}};
    OURS(cuGraphAddNode_v2(&again, middle, NULL, NULL, 0, &child) == 1);  // into itself
    child.child.ownership = 7;
    NEED(cuGraphAddNode_v2(&again, graph, NULL, NULL, 0, &child) != 0);
    size_t count = 0;
    CHECK(cuGraphGetNodes(graph, NULL, &count));
    NEED(count == 1);

    // Nodes however deep are changed in the executable of the whole, and whole graphs are exchanged.
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(launched(exec, numbers) == 4);
    CHECK(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &nothing));
    NEED(launched(exec, numbers) == 3);
    CHECK(cuGraphNodeSetEnabled(exec, late, 0));
    NEED(launched(exec, numbers) == 2);
    CHECK(cuGraphExecKernelNodeSetParams_v2(exec, kernel, &one));
    CHECK(cuGraphNodeSetEnabled(exec, late, 1));
    void *other = nest(&nothing, &kernel, &inner, &body), *whole;
    CHECK(cuGraphAddKernelNode_v2(&late, other, &inner, 1, &one));
    CHECK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    NEED(launched(exec, numbers) == 1);
    CHECK(cuGraphCreate(&whole, 0));
    child = (struct node_params){.type = 4, .child = {other, 1}};
    CHECK(cuGraphAddNode_v2(&again, whole, NULL, NULL, 0, &child));
    struct update update = {9, NULL, NULL};
    CHECK(cuGraphExecUpdate_v2(exec, whole, &update));
    NEED(update.result == 0 && launched(exec, numbers) == 1);
    CHECK(cuGraphDestroy(whole));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    OURS(cuGraphDestroy(middle) == 400);

    // Memory that a graph allocates and leaves goes with it into the other.
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&middle, 0));
    struct allocate_node take = {.type = 1, .location = {1, 0}, .size = BYTES};
    CHECK(cuGraphAddMemAllocNode(&inner, middle, NULL, 0, &take));
    room = take.address;
    struct memset_node five = {.target = room, .value = 5, .element = 4, .width = N, .height = 1};
    CHECK(cuGraphAddMemsetNode(&node, middle, &inner, 1, &five, context));
    child = (struct node_params){.type = 4, .child = {middle, 0}};
    NEED(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &child) == 801);  // no clone of it
    child.child.ownership = 1;
    CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &child));
    NEED(cuGraphClone(&found, graph) == 801);
    run(graph, 1);
    NEED(value(room) == 5);
    CHECK(cuMemFree_v2(room));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(numbers));
}

static void mistakes(void) {
    void *graph, *other, *node, *exec;
    uint64_t numbers = 0;
    int n = 0;
    struct kernel_node kernel = {.function = increment, .grid = {1, 1, 1}, .block = {2048, 1, 1},
                                 .parameters = (void *[]){&numbers, &n}};
    struct memset_node fill = {.target = 4096, .element = 3, .width = 1, .height = 1};
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&other, 0));
    NEED(cuGraphCreate(&node, 1) == 1);
    NEED(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel) == 1);
    NEED(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context) == 1);
    CHECK(cuGraphAddEmptyNode(&node, other, NULL, 0));
    void *empty = node;
    NEED(cuGraphAddEmptyNode(&node, graph, &empty, 1) == 1);  // of another graph
    NEED(cuGraphAddDependencies(other, &empty, &empty, 1) == 1);
    OURS(cuGraphLaunch(graph, stream) == 400);
    // What only the server can see surfaces when the graph becomes executable; natively at once.
    fill = (struct memset_node){.target = 4096, .element = 1, .width = 1, .height = 1};
    OURS(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context) == 0);
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 1);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuGraphDestroy(other));
    CHECK(cuCtxSynchronize());
}

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuCtxGetCurrent(&context));
    order();
    host_memory(0);
    host_memory(1);
    rectangles();
    arrays();
    events_and_batches();
    memory();
    objects();
    conditions();
    moves();
    mistakes();
    CHECK(cuCtxSynchronize());
    puts("results right");
    return 0;
}
