// Host functions of graphs that come and go, more of them than there may be at a time. Argument: how
// many rounds of 3,500.
#include <unistd.h>

#include "check.h"

int cuLaunchHostFunc(void *, void (*)(void *), void *), cuStreamQuery(void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphCreate(void **, unsigned), cuGraphClone(void **, void *);
int cuGraphAddChildGraphNode(void **, void *, void **, size_t, void *);
int cuGraphAddHostNode(void **, void *, void **, size_t, const void *);
int cuGraphGetNodes(void *, void **, size_t *), cuGraphDestroyNode(void *);
int cuGraphHostNodeSetParams(void *, const void *);
int cuGraphExecHostNodeSetParams(void *, void *, const void *);
int cuGraphExecUpdate_v2(void *, void *, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);

enum { MANY = 3500 };

struct host_node {
    void (*function)(void *);
    void *data;
};

static void *stream;
static volatile int go;

static void count(void *number) { ++*(int *)number; }

static void wait(void *unused) {
    (void)unused;
    while (!go) usleep(100);
}

static void *captured(int calls, void (*function)(void *), void *data) {
    void *graph;
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    for (int at = 0; at < calls; at++) CHECK(cuLaunchHostFunc(stream, function, data));
    CHECK(cuStreamEndCapture(stream, &graph));
    return graph;
}

// An executable of a graph that is gone.
static void *executable(void *graph) {
    void *exec;
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return exec;
}

static void run(void *exec, int times) {
    for (int at = 0; at < times; at++) CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(exec));
}

static void round_and_round(int rounds) {
    int calls = 0;
    for (int round = 0; round < rounds; round++) {
        CHECK(cuGraphExecDestroy(executable(captured(MANY, count, &calls))));
        run(executable(captured(3, count, &calls)), 1);
    }
    NEED(calls == 3 * rounds);
}

// What a launch under way calls stays, though the graph and the executable have gone.
static void in_flight(void) {
    int calls = 0, others = 0;
    void *graph;
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuLaunchHostFunc(stream, wait, NULL));
    CHECK(cuLaunchHostFunc(stream, count, &calls));
    CHECK(cuStreamEndCapture(stream, &graph));
    void *exec = executable(graph);
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphCreate(&graph, 0));
    for (int at = 0; at < 300; at++) {  // what could take its places
        void *node;
        CHECK(cuGraphAddHostNode(&node, graph, NULL, 0, &(struct host_node){count, &others}));
    }
    CHECK(cuGraphDestroy(graph));
    NEED(calls == 0);
    go = 1;
    CHECK(cuStreamSynchronize(stream));
    NEED(calls == 2 && others == 0);
}

// A function of a graph within a graph, and of a clone.
static void within(void) {
    int calls = 0;
    void *child = captured(1, count, &calls), *graph, *node, *clone;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    CHECK(cuGraphAddChildGraphNode(&node, graph, &node, 1, child));
    CHECK(cuGraphDestroy(child));
    CHECK(cuGraphClone(&clone, graph));
    run(executable(graph), 2);
    NEED(calls == 4);
    run(executable(clone), 3);
    NEED(calls == 10);
}

// Functions that take the place of others, in graphs and executables, as often as one likes.
static void replaced(int times) {
    int first = 0, second = 0, third = 0;
    struct host_node one = {count, &second}, other = {count, &third};
    void *graph = captured(2, count, &first), *nodes[2], *exec, *node;
    size_t found = 2;
    uint64_t update[3];
    CHECK(cuGraphGetNodes(graph, nodes, &found));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int at = 0; at < times; at++) {
        CHECK(cuGraphExecHostNodeSetParams(exec, nodes[0], &one));
        CHECK(cuGraphHostNodeSetParams(nodes[1], &other));
        CHECK(cuGraphAddHostNode(&node, graph, NULL, 0, &other));
        CHECK(cuGraphDestroyNode(node));
    }
    CHECK(cuGraphLaunch(exec, stream));  // as the executable was made, but for its first node
    CHECK(cuStreamSynchronize(stream));
    NEED(first == 1 && second == 1 && third == 0);
    for (int at = 0; at < 3; at++) {
        void *fresh = captured(2, count, at == 2 ? &third : &second);
        CHECK(cuGraphExecUpdate_v2(exec, fresh, update));
        CHECK(cuGraphDestroy(fresh));
    }
    run(exec, 1);
    NEED(first == 1 && second == 1 && third == 2);
    run(executable(graph), 1);  // which calls one of each
    NEED(first == 2 && second == 1 && third == 3);
}

int main(int words, char **word) {
    NEED(words == 2);
    start(0);
    CHECK(cuStreamCreate(&stream, 1));
    round_and_round(atoi(word[1]));
    in_flight();
    within();
    replaced(atoi(word[1]) * 100);
    puts("results right");
    return 0;
}
