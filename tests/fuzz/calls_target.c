// Calls of a program whose worker answers what the input says: each reply's status and body.
//
// The library is started once; what calls make is ended again in each execution, as far as the
// worker's answers let it.
#include "input.h"
#include "core.h"
#include "graph/graph.h"
#include "wire/line.h"

static struct input sent;
static unsigned char out[1 << 20];  // the answer under way
static size_t out_start, out_end;

struct answer {
    uint32_t kind;
    int32_t status;
    uint64_t request;
    uint32_t body;
    int32_t failed_op;
    uint64_t bulk;
};

// The next answer: one that a request waits for, of a length that the input says.
static bool make_answer(void) {
    const struct gp_request *waits = gp_only_line->waiting;
    if (waits == NULL || sent.left == 0) return false;
    unsigned shape = take_byte(&sent);
    struct answer head = {.kind = 1, .request = waits->id};
    head.status = shape & 1 ? (int32_t)take_byte(&sent) * 10 : 0;
    uint16_t length = 0;
    if (shape & 2) {
        take_bytes(&sent, &length, 2);
    } else if (!waits->grows) {
        length = (uint16_t)waits->capacity;
    }
    if (!waits->grows && !(shape & 4) && length > waits->capacity) length = (uint16_t)waits->capacity;
    head.body = length;
    bool data = head.status == 0 || (shape & 8);
    head.bulk = data ? waits->bulk_size - waits->bulk_read : 0;
    if (sizeof head + head.body + head.bulk > sizeof out) return false;
    memcpy(out, &head, sizeof head);
    take_bytes(&sent, out + sizeof head, head.body);
    memset(out + sizeof head + head.body, 0x5a, head.bulk);
    out_start = 0;
    out_end = sizeof head + head.body + head.bulk;
    return true;
}

ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    (void)link;
    if (out_start == out_end && !make_answer()) return 0;
    size_t part = out_end - out_start < size ? out_end - out_start : size;
    memcpy(target, out + out_start, part);
    out_start += part;
    return (ssize_t)part;
}

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    (void)link;
    ssize_t all = 0;
    for (int at = 0; at < count; at++) {
        use_bytes(parts[at].iov_base, parts[at].iov_len);
        all += (ssize_t)parts[at].iov_len;
    }
    return all;
}

bool gp_tls_possible(void) { return false; }
bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake) {
    (void)link, (void)server_name, (void)fingerprint, (void)ticket, (void)handshake;
    return false;
}

// In place of link.c: one session, without an agent.
struct gp_link gp_links[GP_SERVERS_MAX];
int gp_agent_socket = -1;
struct gp_names gp_named[GP_DEVICES_MAX];
int gp_named_count;
int gp_connect(void) {
    gp_links[0] = (struct gp_link){.socket = 1 << 20};
    gp.server_count = 1;
    return GP_SUCCESS;
}
const char *gp_ask_agent(int wait_ms) { return (void)wait_ms, NULL; }
void gp_tell_agent(const char *what) { (void)what; }
bool gp_link_again(const struct gp_link *link, const uint8_t id[16], const uint8_t ticket[32],
                   struct gp_link *made) {
    (void)link, (void)id, (void)ticket, (void)made;
    return false;
}

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *), cuModuleUnload(void *);
int cuModuleGetFunction(void **, void *, const char *), cuModuleGetFunctionCount(unsigned *, void *);
int cuModuleEnumerateFunctions(void **, unsigned, void *);
int cuModuleGetGlobal_v2(uint64_t *, size_t *, void *, const char *);
int cuModuleLoadDataEx(void **, const void *, unsigned, int *, void **);
int cuFuncGetAttribute(int *, int, void *), cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);
int cuMemcpyDtoH_v2(void *, uint64_t, size_t), cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
int cuMemGetInfo_v2(size_t *, size_t *), cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *), cuStreamDestroy_v2(void *), cuCtxGetLimit(size_t *, int);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventDestroy_v2(void *);
int cuEventElapsedTime(float *, void *, void *), cuEventQuery(void *);
int cuLinkCreate_v2(unsigned, int *, void **, void **), cuLinkDestroy(void *);
int cuLinkAddData_v2(void *, int, void *, size_t, const char *, unsigned, int *, void **);
int cuLinkComplete(void *, void **, size_t *), cuCtxGetDevResource(void *, void *, int);
int cuDeviceGetDevResource(int, void *, int);
int cuDevSmResourceSplitByCount(void *, unsigned *, const void *, void *, unsigned, unsigned);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, void *, int, size_t);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuStreamGetCaptureInfo_v2(void *, int *, uint64_t *, void **, const void ***, size_t *);
int cuGraphGetNodes(void *, void **, size_t *), cuGraphDestroy(void *);
int cuGraphGetEdges(void *, void **, void **, size_t *), cuGraphInstantiateWithFlags(void **, void *, uint64_t);
int cuGraphExecDestroy(void *), cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *), cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuGraphExecUpdate_v2(void *, void *, void *);
int cuIpcGetMemHandle(void *, uint64_t), cuArrayCreate_v2(void **, const void *), cuArrayDestroy(void *);
int cuPointerGetAttribute(void *, int, uint64_t), cuDeviceGetGraphMemAttribute(int, int, void *);

static const char IMAGE[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n";

static void use_module(unsigned which) {
    char info[64], errors[64];
    int options[] = {3, 4, 5, 6};
    void *values[] = {info, (void *)sizeof info, errors, (void *)sizeof errors};
    void *module = NULL, *function = NULL, *listed[4];
    unsigned count;
    int status = which & 1 ? cuModuleLoadDataEx(&module, IMAGE, 4, options, values)
                           : cuModuleLoadData(&module, IMAGE);
    if (status != GP_SUCCESS) return;
    uint64_t address;
    size_t size;
    int value;
    cuModuleGetFunctionCount(&count, module);
    cuModuleEnumerateFunctions(listed, 4, module);
    if (cuModuleGetFunction(&function, module, "k") == GP_SUCCESS) {
        cuFuncGetAttribute(&value, 0, function);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, function, 64, 0);
    }
    cuModuleGetGlobal_v2(&address, &size, module, "g");
    cuModuleUnload(module);
}

static void use_memory(void) {
    uint64_t address = 0;
    unsigned char bytes[256] = {0}, handle[64];
    size_t left, total;
    if (cuMemAlloc_v2(&address, 4096) == GP_SUCCESS) {
        cuMemcpyHtoD_v2(address, bytes, sizeof bytes);
        if (cuMemcpyDtoH_v2(bytes, address, sizeof bytes) == GP_SUCCESS) use_bytes(bytes, sizeof bytes);
        cuPointerGetAttribute(&total, 2, address);
        if (cuIpcGetMemHandle(handle, address) == GP_SUCCESS) use_bytes(handle, sizeof handle);
        cuMemFree_v2(address);
    }
    if (cuMemGetInfo_v2(&left, &total) == GP_SUCCESS) use_bytes(&left, sizeof left);
    if (cuCtxGetLimit(&left, 2) == GP_SUCCESS) use_bytes(&left, sizeof left);
    if (cuDeviceGetGraphMemAttribute(0, 0, &left) == GP_SUCCESS) use_bytes(&left, sizeof left);
}

static void use_events(void) {
    void *stream = NULL, *one = NULL, *other = NULL;
    float passed;
    if (cuStreamCreate(&stream, 1) != GP_SUCCESS) return;
    if (cuEventCreate(&one, 0) == GP_SUCCESS && cuEventCreate(&other, 0) == GP_SUCCESS) {
        cuEventRecord(one, stream);
        cuEventRecord(other, stream);
        cuEventQuery(other);
        cuEventElapsedTime(&passed, one, other);
    }
    cuStreamSynchronize(stream);
    if (one != NULL) cuEventDestroy_v2(one);
    if (other != NULL) cuEventDestroy_v2(other);
    cuStreamDestroy_v2(stream);
}

static void use_linker(void) {
    void *state = NULL, *cubin = NULL;
    size_t size = 0;
    char info[64], errors[64];
    int options[] = {3, 4, 5, 6};
    void *values[] = {info, (void *)sizeof info, errors, (void *)sizeof errors};
    if (cuLinkCreate_v2(4, options, values, &state) != GP_SUCCESS) return;
    cuLinkAddData_v2(state, 1, (void *)(uintptr_t)IMAGE, sizeof IMAGE, "a", 0, NULL, NULL);
    if (cuLinkComplete(state, &cubin, &size) == GP_SUCCESS && cubin != NULL) use_bytes(cubin, size);
    cuLinkDestroy(state);
}

static void use_resources(void) {
    unsigned char input[256] = {0}, groups[8][256], rest[256];
    unsigned count = 8;
    if (cuDeviceGetDevResource(0, input, 1) != GP_SUCCESS) return;
    cuDevSmResourceSplitByCount(groups, &count, input, rest, 0, 8);
    count = 8;
    cuDevSmResourceSplitByCount(NULL, &count, input, rest, 0, 8);
}

static void use_graph(void) {
    void *stream = NULL, *graph = NULL, *executable = NULL, *nodes[16], *from[16], *to[16];
    const void **front = NULL;
    size_t count = 16, edges = 16, ahead = 0;
    uint64_t id;
    int capturing;
    if (cuStreamCreate(&stream, 1) != GP_SUCCESS) return;
    if (cuStreamBeginCapture_v2(stream, 0) == GP_SUCCESS) {
        cuMemsetD8Async(0x7f0000000000, 1, 16, stream);
        cuStreamGetCaptureInfo_v2(stream, &capturing, &id, &graph, &front, &ahead);
        graph = NULL;
        cuStreamEndCapture(stream, &graph);
    }
    if (graph != NULL) {
        if (cuGraphGetNodes(graph, nodes, &count) == GP_SUCCESS) use_bytes(nodes, 8 * (count < 16 ? count : 16));
        cuGraphGetEdges(graph, from, to, &edges);
        if (cuGraphInstantiateWithFlags(&executable, graph, 0) == GP_SUCCESS) cuGraphExecDestroy(executable);
        cuGraphDestroy(graph);
    }
    cuStreamDestroy_v2(stream);
}

static void call(void *unused) { (void)unused; }

// A capture with a copy to the host and a host function, whose nodes the worker tells.
static void use_host_graph(void) {
    static unsigned char target[64];
    void *stream = NULL, *graph = NULL, *executable = NULL;
    uint64_t result[3];
    if (cuStreamCreate(&stream, 1) != GP_SUCCESS) return;
    if (cuStreamBeginCapture_v2(stream, 0) == GP_SUCCESS) {
        cuMemcpyDtoHAsync_v2(target, 0x7f0000000000, sizeof target, stream);
        cuLaunchHostFunc(stream, call, NULL);
        cuStreamEndCapture(stream, &graph);
    }
    if (graph != NULL) {
        struct gp_staged_list *staged = &GP_GRAPH_OF(graph)->staged;
        for (unsigned at = 0; at < staged->count; at++) staged->items[at].slot->id = at + 1;
        int status = cuGraphInstantiateWithFlags(&executable, graph, 0);
        unsigned within = 0;
        for (const struct gp_graph *at = GP_GRAPH_OF(graph); at->count > 0; within++) {
            const struct gp_node *node = GP_NODE_OF(at->nodes[0]);
            if (node->child_count == 0) break;
            at = GP_GRAPH_OF(node->children[0]);
        }
        if (within >= GP_WITHIN_MAX) abort();
        if (status == GP_SUCCESS) {
            cuGraphExecUpdate_v2(executable, graph, result);
            cuGraphExecDestroy(executable);
        }
        cuGraphDestroy(graph);
    }
    cuStreamDestroy_v2(stream);
}

static void start(void) {
    static unsigned char hello[20000];
    // Two replies: the head of a snapshot of one device, whose bytes are zeros but for its memory, and
    // how many records the worker knows.
    uint32_t head[4] = {GP_PROTOCOL, 13000, 1, 0};
    size_t device = 256 + 16 + 12 + 4 + 8 + 16 + 8 + GP_SERVER_DEVICES_MAX + 5 * GP_ATTRIBUTES_MAX;
    size_t size = sizeof head + device + 8, at = 0;
    hello[at++] = 2;
    memcpy(hello + at, &(uint16_t){(uint16_t)size}, 2);
    memcpy(hello + at + 2, head, sizeof head);
    memset(hello + at + 2 + sizeof head + 288, 1, 8);
    at += 2 + size;
    hello[at++] = 2;
    memcpy(hello + at, &(uint16_t){sizeof(uint64_t)}, 2);
    memcpy(hello + at + 2, &(uint64_t){255}, sizeof(uint64_t));
    sent = (struct input){hello, at + 2 + sizeof(uint64_t)};
    void *context;
    if (cuInit(0) != GP_SUCCESS) abort();
    if (cuDevicePrimaryCtxRetain(&context, 0) != GP_SUCCESS) abort();
    if (cuCtxSetCurrent(context) != GP_SUCCESS) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static int prepared;
    if (!prepared++) start();
    gp_reached[0] = true;
    gp_servers_left = 1;
    gp_only_line->waiting = NULL;
    gp_only_line->read_start = gp_only_line->read_end = 0;
    gp_only_line->open_buffer->used = 16;
    out_start = out_end = 0;
    sent = (struct input){bytes, size};
    unsigned which = take_byte(&sent);
    switch (which >> 1 & 7) {
        case 0: case 1: use_module(which); break;
        case 2: use_memory(); break;
        case 3: use_events(); break;
        case 4: use_linker(); break;
        case 5: use_resources(); break;
        case 7: use_host_graph(); break;
        default: use_graph(); break;
    }
    return 0;
}
