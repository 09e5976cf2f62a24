// Graphs with both host nodes and copies of the host's memory.
// Argument: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu.
#include <unistd.h>

#include "graphs.h"

int cuGraphAddHostNode(void **, void *, void **, size_t, const void *);
int cuGraphExecHostNodeSetParams(void *, void *, const void *);

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

// A function sees what was copied before it and may change that, at each launch anew.
static int first_sum, second_sum;

static void add_up(void *sum) {
    *(int *)sum = 0;
    for (int at = 0; at < N; at++) *(int *)sum += out[at];
    out[0] = -1;  // nothing brings these bytes again
}

static void textbook(void) {
    void *graph;
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuMemcpyHtoDAsync_v2(numbers, in, BYTES, stream));
    count();
    CHECK(cuMemcpyDtoHAsync_v2(out, numbers, BYTES, stream));
    CHECK(cuLaunchHostFunc(stream, add_up, &first_sum));
    CHECK(cuStreamEndCapture(stream, &graph));
    void *exec = made(graph), *twin = made(graph);
    for (int round = 0; round < 5; round++) {
        fill(in, round);
        fire(round % 2 ? twin : exec);
        NEED(first_sum == N * (round + 1) && out[0] == -1 && out[1] == round + 1);
    }
    // One behind the other, without a wait; both executables, and one that has gone.
    for (int round = 0; round < 20; round++) CHECK(cuGraphLaunch(round % 3 ? twin : exec, stream));
    fill(in, 8);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamSynchronize(stream));
    NEED(first_sum == N * 9 && out[0] == -1);
    CHECK(cuGraphExecDestroy(twin));
}

// A function that waits for what the program does behind launches of a graph that takes nothing from the
// host: these may be under way all at once.
static volatile int go;

static void wait_to_go(void *unused) {
    (void)unused;
    while (!go) usleep(100);
}

static void behind_a_function(void) {
    void *graph;
    CHECK(cuMemsetD8Async(numbers, 0, BYTES, stream));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    count();
    CHECK(cuMemcpyDtoHAsync_v2(out, numbers, BYTES, stream));
    CHECK(cuLaunchHostFunc(stream, see, out + 1));
    CHECK(cuStreamEndCapture(stream, &graph));
    void *exec = made(graph);
    seen_count = 0;
    CHECK(cuLaunchHostFunc(stream, wait_to_go, NULL));
    for (int at = 0; at < 8; at++) CHECK(cuGraphLaunch(exec, stream));
    NEED(seen_count == 0);
    go = 1;
    CHECK(cuStreamSynchronize(stream));
    NEED(seen_count == 8);
    for (int at = 0; at < 8; at++) NEED(seen[at] == at + 1);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

// Two functions in a row, each with a copy of its own, and a copy behind them.
static int last[N];

static void in_a_row(void) {
    void *graph, *node;
    CHECK(cuGraphCreate(&graph, 0));
    node = up(graph, NULL, 0, in);
    node = down(graph, &node, 1, out);
    node = call(graph, &node, 1, add_up, &first_sum);
    node = kernel(graph, &node, 1);
    node = down(graph, &node, 1, out);
    node = call(graph, &node, 1, add_up, &second_sum);
    node = kernel(graph, &node, 1);
    down(graph, &node, 1, last);
    void *exec = made(graph);
    for (int round = 0; round < 3; round++) {
        fill(in, 2 * round);
        fire(exec);
        NEED(first_sum == N * 2 * round && second_sum == N * (2 * round + 1));
        NEED(out[0] == -1 && are(last, 2 * round + 2));
    }
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

// Branches: the function that comes first brings the bytes, the other does not bring them again.
static int branch_sums[2];

static void branches(void) {
    void *graph, *clone, *node, *outer, *inner;
    CHECK(cuGraphCreate(&graph, 0));
    node = up(graph, NULL, 0, in);
    node = down(graph, &node, 1, out);
    call(graph, &node, 1, add_up, &branch_sums[0]);
    call(graph, &node, 1, add_up, &branch_sums[1]);
    fill(in, 3);
    CHECK(cuGraphClone(&clone, graph));
    CHECK(cuGraphCreate(&outer, 0));  // and within another graph
    CHECK(cuGraphAddChildGraphNode(&inner, outer, NULL, 0, graph));
    CHECK(cuGraphDestroy(graph));
    void *graphs[] = {clone, outer};
    for (int at = 0; at < 2; at++) {
        void *exec = made(graphs[at]);
        CHECK(cuGraphDestroy(graphs[at]));
        for (int round = 0; round < 2; round++) {
            fire(exec);
            int both[2] = {branch_sums[0], branch_sums[1]};
            NEED((both[0] == 3 * N || both[1] == 3 * N) && out[0] == -1 && out[1] == 3);
            NEED((both[0] == 3 * N || both[0] == 3 * N - 4) && (both[1] == 3 * N || both[1] == 3 * N - 4));
        }
        CHECK(cuGraphExecDestroy(exec));
    }
}

// The copy in a graph within, the function outside; and the other way round.
static void nested(void) {
    for (int way = 0; way < 2; way++) {
        void *inner, *outer, *node;
        CHECK(cuGraphCreate(&inner, 0));
        CHECK(cuGraphCreate(&outer, 0));
        if (way == 0) {
            node = up(inner, NULL, 0, in);
            down(inner, &node, 1, out);
            CHECK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, inner));
            call(outer, &node, 1, add_up, &first_sum);
        } else {
            node = up(outer, NULL, 0, in);
            node = down(outer, &node, 1, out);
            call(inner, NULL, 0, add_up, &first_sum);
            CHECK(cuGraphAddChildGraphNode(&node, outer, &node, 1, inner));
        }
        CHECK(cuGraphDestroy(inner));
        void *exec = made(outer), *clone;
        CHECK(cuGraphClone(&clone, outer));
        CHECK(cuGraphDestroy(outer));
        void *twin = made(clone);
        CHECK(cuGraphDestroy(clone));
        for (int round = 1; round < 5; round++) {
            fill(in, round);
            fire(round % 2 ? exec : twin);
            NEED(first_sum == N * round && out[0] == -1 && out[1] == round);
        }
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphExecDestroy(twin));
    }
}

// Of an executable that is changed: functions, copies, what is left out, another graph.
static void changed(void) {
    void *graph, *nodes[3], *node;
    struct update update;
    int *elsewhere = calloc(N, 4);
    CHECK(cuGraphCreate(&graph, 0));
    nodes[0] = up(graph, NULL, 0, in);
    nodes[1] = down(graph, nodes, 1, out);
    nodes[2] = call(graph, nodes + 1, 1, add_up, &first_sum);
    down(graph, nodes + 2, 1, last);
    void *exec = made(graph);
    fill(in, 4);
    for (int round = 0; round < 300; round++) {
        CHECK(cuGraphExecHostNodeSetParams(exec, nodes[2], &(struct host_node){add_up, &second_sum}));
    }
    first_sum = second_sum = 0;
    fire(exec);
    NEED(first_sum == 0 && second_sum == 4 * N && out[0] == -1);
    struct copy copy = {.source = {.kind = 2, .device = numbers}, .target = {.kind = 1, .host = elsewhere},
                        .width = BYTES, .height = 1, .depth = 1};
    CHECK(cuGraphExecMemcpyNodeSetParams(exec, nodes[1], &copy, context));
    fill(in, 5);
    fire(exec);
    NEED(are(elsewhere, 5) && second_sum == 4 * (N - 1) - 1 && are(last, 5));
    CHECK(cuGraphNodeSetEnabled(exec, nodes[1], 0));
    fill(in, 6);
    fire(exec);
    NEED(are(elsewhere, 5) && are(last, 6));
    CHECK(cuGraphNodeSetEnabled(exec, nodes[1], 1));
    // A graph of the same form, twice; its nodes stand for these.
    void *next;
    CHECK(cuGraphCreate(&next, 0));
    node = up(next, NULL, 0, in);
    node = down(next, &node, 1, out);
    node = call(next, &node, 1, add_up, &first_sum);
    down(next, &node, 1, elsewhere);
    for (int round = 7; round < 9; round++) {
        CHECK(cuGraphExecUpdate_v2(exec, next, &update));
        fill(in, round);
        fire(exec);
        NEED(first_sum == round * N && out[0] == -1 && are(elsewhere, round) && are(last, 6));
    }
    void *other = made(next);  // which calls as it was built
    CHECK(cuGraphNodeSetEnabled(exec, nodes[1], 0));
    fill(in, 9);
    fire(exec);
    NEED(first_sum == 8 * (N - 1) - 1 && are(elsewhere, 9));
    fire(other);
    NEED(first_sum == 9 * N);
    CHECK(cuGraphExecDestroy(other));
    CHECK(cuGraphDestroy(next));
    // In the same form for CUDA, a copy comes behind the function.
    CHECK(cuGraphCreate(&next, 0));
    node = up(next, NULL, 0, in);
    void *beside = down(next, &node, 1, out);
    call(next, &node, 1, add_up, &first_sum);
    down(next, &beside, 1, elsewhere);
    NEED(cuGraphExecUpdate_v2(exec, next, &update) == 910);
    OURS(update.result == 6);
    CHECK(cuGraphDestroy(next));
    fire(exec);  // as before
    NEED(are(elsewhere, 9));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    free(elsewhere);
}

// A graph within takes none of that away, and brings none.
static void children(void) {
    void *inner, *plain, *outer, *node, *of;
    CHECK(cuGraphCreate(&inner, 0));
    node = down(inner, NULL, 0, out);
    CHECK(cuGraphCreate(&plain, 0));
    kernel(plain, NULL, 0);
    CHECK(cuGraphCreate(&outer, 0));
    CHECK(cuGraphAddChildGraphNode(&of, outer, NULL, 0, inner));
    CHECK(cuGraphAddChildGraphNode(&node, outer, &of, 1, plain));
    call(outer, &node, 1, add_up, &first_sum);
    void *exec = made(outer);
    CHECK(cuGraphExecChildGraphNodeSetParams(exec, node, plain));
    fire(exec);
    OURS(cuGraphExecChildGraphNodeSetParams(exec, of, inner) == 910);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(outer));
    CHECK(cuGraphDestroy(inner));
    CHECK(cuGraphDestroy(plain));
}

// Many rows, in pieces of their own, and many bytes, in pinned memory.
static int *rows, pitch_sum;
enum { ROWS = 60, PITCH = 700, LARGE = 6 << 20 };
static unsigned char *large;

static void add_rows(void *unused) {
    (void)unused;
    pitch_sum = 0;
    for (int row = 0; row < ROWS; row++) pitch_sum += rows[row * PITCH] + rows[row * PITCH + N - 1];
    for (int at = 0; at < LARGE; at += 4096) pitch_sum += large[at];
}

static void pieces(void) {
    void *graph, *node, *pinned;
    uint64_t device, much;
    CHECK(cuMemAlloc_v2(&device, ROWS * BYTES));
    CHECK(cuMemAlloc_v2(&much, LARGE));
    CHECK(cuMemAllocHost_v2(&pinned, LARGE));
    CHECK(cuMemsetD8_v2(device, 1, ROWS * BYTES));
    CHECK(cuMemsetD8_v2(much, 2, LARGE));
    CHECK(cuCtxSynchronize());
    large = pinned;
    rows = calloc(ROWS * PITCH, 4);
    CHECK(cuGraphCreate(&graph, 0));
    struct copy copy = {.source = {.kind = 2, .device = device, .pitch = BYTES},
                        .target = {.kind = 1, .host = rows, .pitch = PITCH * 4},
                        .width = BYTES, .height = ROWS, .depth = 1};
    CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context));
    struct copy whole = {.source = {.kind = 2, .device = much}, .target = {.kind = 1, .host = large},
                         .width = LARGE, .height = 1, .depth = 1};
    CHECK(cuGraphAddMemcpyNode(&node, graph, &node, 1, &whole, context));
    call(graph, &node, 1, add_rows, NULL);
    void *exec = made(graph);
    for (int round = 0; round < 2; round++) {
        memset(large, 0, LARGE);
        memset(rows, 0, ROWS * PITCH * 4);
        rows[N] = 77;
        fire(exec);
        NEED(pitch_sum == ROWS * 2 * 0x01010101 + 2 * (LARGE / 4096) && rows[N] == 77);
    }
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFreeHost(pinned));
    CHECK(cuMemFree_v2(much));
    CHECK(cuMemFree_v2(device));
    free(rows);
}

// More pieces than can be asked for before a launch; and what a function may write is not copied from as it
// was before the launch.
static void refused(void) {
    void *graph, *exec, *outer, *node;
    enum { MANY = 5000 };
    unsigned char *tall = malloc(8 * MANY);
    struct copy copy = {.source = {.kind = 2, .device = numbers, .pitch = 4},
                        .target = {.kind = 1, .host = tall, .pitch = 8},
                        .width = 4, .height = N, .depth = 1};
    CHECK(cuGraphCreate(&graph, 0));
    for (int at = 0; at < MANY / N; at++) {
        CHECK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context));
        call(graph, &node, 1, see, &n);
    }
    OURS(cuGraphInstantiateWithFlags(&exec, graph, 0) == 801);
    CHECK(cuGraphDestroy(graph));
    free(tall);
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

// What is set in an executable has the limits of what it is made of.
static void too_wide(void) {
    enum { TALL = 12000, PART = 52 << 20, PARTS = 5 };
    void *graph, *nodes[PARTS], *exec;
    unsigned char *tall = calloc(TALL, 16), *much = calloc(PARTS, PART);
    uint64_t device;
    CHECK(cuMemAlloc_v2(&device, PART));
    CHECK(cuGraphCreate(&graph, 0));
    for (int at = 0; at < PARTS; at++) {
        nodes[at] = down(graph, at ? nodes + at - 1 : NULL, at > 0, at ? last : out);
    }
    call(graph, nodes + PARTS - 1, 1, see, &n);
    exec = made(graph);
    struct copy copy = {.source = {.kind = 2, .device = device, .pitch = 16, .height = TALL},
                        .target = {.kind = 1, .host = tall, .pitch = 16, .height = TALL},
                        .width = 8, .height = TALL, .depth = 1};
    // CUDA's documentation: neither what is set nor what was there may have more than one dimension.
    NEED(cuGraphExecMemcpyNodeSetParams(exec, nodes[0], &copy, context) == 1);
    struct copy part = {.source = {.kind = 2, .device = device}, .width = PART, .height = 1, .depth = 1};
    for (int at = 0; at < PARTS; at++) {
        part.target = (struct box){.kind = 1, .host = much + (size_t)at * PART};
        int status = cuGraphExecMemcpyNodeSetParams(exec, nodes[at], &part, context);
        NEED(status == 0 || at == PARTS - 1);
        if (at == PARTS - 1) OURS(status == 801);
        if (status == 0) CHECK(cuGraphNodeSetEnabled(exec, nodes[at], 0));
    }
    CHECK(cuMemsetD8Async(numbers, 1, BYTES, stream));
    seen_count = 0;
    fire(exec);  // with what the last one had
    NEED(seen_count == 1);
    OURS(are(last, 0x01010101));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(device));
    free(much);
    free(tall);
}

// Memory of the worker that stood for a graph's is not another's before all of it was brought back.
static void one_after_the_other(void) {
    enum { ROUNDS = 260, LARGE_SLOT = 4 << 20 };
    static int outs[20][N];
    void *pinned, *graph, *exec;
    for (int round = 0; round < 20; round++) {
        for (int way = 0; way < 2; way++) {
            CHECK(cuGraphCreate(&graph, 0));
            if (way == 0) CHECK(cuMemsetD8Async(numbers, (unsigned char)round, BYTES, stream));
            if (way == 1) fill(in, -1);
            way == 0 ? down(graph, NULL, 0, outs[round]) : up(graph, NULL, 0, in);
            exec = made(graph);
            CHECK(cuGraphLaunch(exec, stream));
            CHECK(cuGraphExecDestroy(exec));
            CHECK(cuGraphDestroy(graph));
        }
    }
    CHECK(cuStreamSynchronize(stream));
    for (int round = 0; round < 20; round++) NEED(are(outs[round], round * 0x01010101));
    // Slots of pinned memory are as large as it is: all of these would be more than there may be.
    CHECK(cuMemAllocHost_v2(&pinned, LARGE_SLOT));
    int *words = pinned;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(cuMemsetD8Async(numbers, (unsigned char)(round % 100), BYTES, stream));
        CHECK(cuGraphCreate(&graph, 0));
        down(graph, NULL, 0, words + round * N);
        exec = made(graph);
        CHECK(cuGraphLaunch(exec, stream));
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphDestroy(graph));
    }
    CHECK(cuStreamSynchronize(stream));
    for (int round = 0; round < ROUNDS; round++) NEED(are(words + round * N, round % 100 * 0x01010101));
    CHECK(cuMemFreeHost(pinned));
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
    textbook();
    in_a_row();
    branches();
    nested();
    changed();
    children();
    pieces();
    behind_a_function();
    refused();
    too_wide();
    one_after_the_other();
    puts("results right");
    return 0;
}
