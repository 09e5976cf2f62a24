// What the driver refuses at once, and what it keeps although nobody needs it: the corners of others' tests.
// Arguments: an image with the kernels of fake_cuda/kernels/test_kernels.cu, and a folder for files. Prints the
// same without the door.
#include <string.h>

#include "check.h"

typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
} Kernel;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    void *attributes;
    unsigned count;
} Config;
typedef struct {
    unsigned id, pad, value[16];
} Attribute;

int cuGraphCreate(void **, unsigned), cuGraphDestroy(void *), cuGraphGetNodes(void *, void **, size_t *);
int cuGraphGetRootNodes(void *, void **, size_t *), cuGraphGetEdges(void *, void **, void **, size_t *);
int cuGraphNodeGetDependencies(void *, void **, size_t *), cuGraphAddEmptyNode(void **, void *, void *, size_t);
int cuGraphNodeGetDependentNodes(void *, void **, size_t *);
int cuGraphAddKernelNode_v2(void **, void *, void *, size_t, const Kernel *);
int cuGraphKernelNodeGetParams_v2(void *, Kernel *), cuGraphKernelNodeSetParams_v2(void *, const Kernel *);
int cuGraphDebugDotPrint(void *, const char *, unsigned);
int cuDeviceGetP2PAttribute(int *, int, int, int);
int cuPointerSetAttribute(const void *, int, uint64_t), cuPointerGetAttribute(void *, int, uint64_t);
int cuLinkCreate_v2(unsigned, int *, void **, void **), cuLinkDestroy(void *);
int cuLinkAddFile_v2(void *, int, const char *, unsigned, int *, void **);
int cuLaunchKernelEx(const Config *, void *, void **, void **);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuStreamIsCapturing(void *, int *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *), cuEventDestroy_v2(void *);

static void graphs(void) {
    void *graph, *first, *second, *found[4], *others[4];
    size_t none = 0;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    CHECK(cuGraphAddEmptyNode(&second, graph, &first, 1));
    printf("no room for nodes: %d", cuGraphGetNodes(graph, found, &none));
    printf(" %d", cuGraphGetRootNodes(graph, found, &none));
    printf(" %d", cuGraphGetEdges(graph, found, others, &none));
    printf(" %d", cuGraphNodeGetDependencies(second, found, &none));
    printf(" %d\n", cuGraphNodeGetDependentNodes(first, found, &none));
    CHECK(cuGraphDestroy(graph));
}

static size_t dotted(void *graph, const char *folder, unsigned flags) {
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/graph.dot", folder);
    CHECK(cuGraphDebugDotPrint(graph, path, flags));
    FILE *file = fopen(path, "r");
    NEED(file != NULL);
    size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    return size;
}

// What a program was told of a node's parameters is there until the node ends.
static void told(void *function, const char *folder) {
    void *graph, *node;
    uint64_t memory, words[2] = {0};
    int n = 4;
    void *parameters[] = {&memory, &n};
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuGraphCreate(&graph, 0));
    Kernel given = {.function = function, .grid = {1, 1, 1}, .block = {4, 1, 1}, .parameters = parameters};
    CHECK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &given));
    Kernel before, after;
    CHECK(cuGraphKernelNodeGetParams_v2(node, &before));
    CHECK(cuGraphKernelNodeSetParams_v2(node, &given));
    before.parameters[0] = &words[0];
    before.parameters[1] = &n;
    CHECK(cuGraphKernelNodeSetParams_v2(node, &before));
    CHECK(cuGraphKernelNodeGetParams_v2(node, &after));
    uint64_t *address = after.parameters[0];
    printf("what was given is there: %d\n", *address == words[0] && *(int *)after.parameters[1] == n);
    printf("more when asked for: %d\n", dotted(graph, folder, 1) > dotted(graph, folder, 0));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemFree_v2(memory));
}

static void launches(void *function) {
    uint64_t memory;
    int n = 4;
    CHECK(cuMemAlloc_v2(&memory, 64));
    void *parameters[] = {&memory, &n};
    Attribute cluster = {.id = 4, .value = {0, 1, 1}};
    Config config = {.grid = {1, 1, 1}, .block = {4, 1, 1}, .attributes = &cluster, .count = 1};
    printf("no cluster: %d\n", cuLaunchKernelEx(&config, function, parameters, NULL) != 0);
    for (cluster.id = 14; cluster.id < 21; cluster.id += 1 + 4 * (cluster.id == 15)) {
        int unknown = cuLaunchKernelEx(&config, function, parameters, NULL) == 1;
        printf("attribute %d unknown: %d\n", (int)cluster.id, unknown);
    }
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(memory));
}

static void pointers(void) {
    uint64_t memory;
    int value;
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuPointerGetAttribute(&value, 6, memory));
    printf("waits: %d", value);
    CHECK(cuPointerSetAttribute(&(int){1}, 6, memory));
    CHECK(cuPointerGetAttribute(&value, 6, memory));
    printf(" %d", value);
    CHECK(cuPointerSetAttribute(&(int){0}, 6, memory));
    CHECK(cuPointerGetAttribute(&value, 6, memory));
    printf(" %d\n", value);
    CHECK(cuMemFree_v2(memory));
}

static void links(const char *folder) {
    char path[512];
    snprintf(path, sizeof path, "%s/empty.ptx", folder);
    FILE *file = fopen(path, "w");
    NEED(file != NULL);
    fclose(file);
    void *state;
    CHECK(cuLinkCreate_v2(0, NULL, NULL, &state));
    printf("an empty file: %d\n", cuLinkAddFile_v2(state, 1, path, 0, NULL, NULL));
    CHECK(cuLinkDestroy(state));
}

static void captures(void) {
    void *one, *other, *event, *graph;
    uint64_t memory;
    int status;
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuStreamCreate(&one, 0));
    CHECK(cuStreamBeginCapture_v2(one, 2));
    printf("the legacy stream: %d", cuStreamIsCapturing(NULL, &status));
    CHECK(cuMemsetD8Async(memory, 0, 64, one));
    CHECK(cuStreamEndCapture(one, &graph));
    CHECK(cuGraphDestroy(graph));
    printf(" %d\n", cuStreamIsCapturing(NULL, &status));
    CHECK(cuStreamDestroy_v2(one));
    CHECK(cuStreamCreate(&one, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuEventCreate(&event, 2));
    CHECK(cuStreamBeginCapture_v2(one, 2));
    CHECK(cuStreamIsCapturing(NULL, &status));
    printf("before: %d", cuStreamEndCapture(other, &graph));
    CHECK(cuEventRecord(event, one));
    CHECK(cuStreamWaitEvent(other, event, 0));
    CHECK(cuMemsetD8Async(memory, 0, 64, other));
    printf(", on the other stream: %d", cuStreamEndCapture(other, &graph));
    printf(", at the end: %d\n", cuStreamEndCapture(one, &graph));
    CHECK(cuStreamIsCapturing(one, &status));
    NEED(status == 0);
    CHECK(cuStreamSynchronize(one));
    CHECK(cuStreamSynchronize(other));
    CHECK(cuEventDestroy_v2(event));
    CHECK(cuStreamDestroy_v2(one));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuMemFree_v2(memory));
}

int main(int count, char **arguments) {
    NEED(count == 3);
    start(0);
    void *module, *function;
    int value;
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&function, module, "increment"));
    graphs();
    told(function, arguments[2]);
    launches(function);
    pointers();
    links(arguments[2]);
    captures();
    printf("a device beside itself: %d\n", cuDeviceGetP2PAttribute(&value, 1, 0, 0));
    puts("results right");
    return 0;
}
