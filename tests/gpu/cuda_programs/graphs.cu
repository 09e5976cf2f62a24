// CUDA graphs of every kind: by node, captured, changed, with the host's memory, memory of their
// own, conditions, and graphs within graphs.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"

__global__ void add_to(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

__global__ void countdown(int *x, cudaGraphConditionalHandle handle) {
    *x += 1;
    if (*x >= 10) cudaGraphSetConditional(handle, 0);
}

static const int N = 4096;

static long long sum(const int *x) {
    long long total = 0;
    for (int i = 0; i < N; i++) total += x[i];
    return total;
}

static cudaKernelNodeParams counting(void **parameters) {
    cudaKernelNodeParams made = {};
    made.func = (void *)add_to;
    made.gridDim = dim3(N / 256);
    made.blockDim = dim3(256);
    made.kernelParams = parameters;
    return made;
}

// Up, fill a part, count, down; then the same with other values, memory and nodes left out.
static int by_node(cudaStream_t stream, bool pinned) {
    int *device, *in = (int *)malloc(N * 4), *out = (int *)malloc(N * 4), n = N, by = 3;
    if (pinned) {
        CHECK(cudaMallocHost((void **)&in, N * 4));
        CHECK(cudaMallocHost((void **)&out, N * 4));
    }
    CHECK(cudaMalloc((void **)&device, N * 4));
    cudaGraph_t graph, clone;
    cudaGraphNode_t up, fill, count, down, twin;
    cudaGraphExec_t exec;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemcpyNode1D(&up, graph, NULL, 0, device, in, N * 4, cudaMemcpyHostToDevice));
    cudaMemsetParams zeros = {};
    zeros.dst = device;
    zeros.elementSize = 4;
    zeros.width = 100;
    zeros.height = 1;
    zeros.value = 7;
    CHECK(cudaGraphAddMemsetNode(&fill, graph, &up, 1, &zeros));
    void *parameters[] = {&device, &n, &by};
    cudaKernelNodeParams kernel = counting(parameters);
    CHECK(cudaGraphAddKernelNode(&count, graph, &fill, 1, &kernel));
    CHECK(cudaGraphAddMemcpyNode1D(&down, graph, &count, 1, out, device, N * 4,
                                   cudaMemcpyDeviceToHost));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    long long results[4];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) in[i] = i * round;
        memset(out, 0, N * 4);
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        results[round] = sum(out);
    }
    by = 10;
    CHECK(cudaGraphExecKernelNodeSetParams(exec, count, &kernel));
    CHECK(cudaGraphNodeSetEnabled(exec, fill, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    results[2] = sum(out);
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&twin, fill, clone));
    size_t nodes = 0, edges = 0;
    CHECK(cudaGraphGetNodes(clone, NULL, &nodes));
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphGetEdges(clone, NULL, NULL, NULL, &edges));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(exec, clone, &info));
#else
    CHECK(cudaGraphGetEdges(clone, NULL, NULL, &edges));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(exec, clone, &info));
#endif
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    results[3] = sum(out);
    printf("RESULT nodes_%s %lld %lld %lld %lld %zu %zu\n", pinned ? "pinned" : "pageable",
           results[0], results[1], results[2], results[3], nodes, edges);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(device));
    return 0;
}

static int captured(cudaStream_t stream) {
    int *device, *host;
    CHECK(cudaMalloc((void **)&device, N * 4));
    CHECK(cudaMallocHost((void **)&host, N * 4));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemcpyAsync(device, host, N * 4, cudaMemcpyHostToDevice, stream));
    add_to<<<N / 256, 256, 0, stream>>>(device, N, 1);
    CHECK(cudaMemcpyAsync(host, device, N * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < N; i++) host[i] = 0;
    for (int round = 0; round < 20; round++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    size_t count = 3;
    cudaGraphNode_t nodes[3];
    CHECK(cudaGraphGetNodes(graph, nodes, &count));
    int kernels = 0;
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        CHECK(cudaGraphNodeGetType(nodes[i], &type));
        if (type != cudaGraphNodeTypeKernel) continue;
        cudaKernelNodeParams kernel;
        CHECK(cudaGraphKernelNodeGetParams(nodes[i], &kernel));
        kernels += *(int *)kernel.kernelParams[1] == N && kernel.func == (void *)add_to;
    }
    printf("RESULT captured %lld %zu %d\n", sum(host), count, kernels);
    // The same graph within another one.
    cudaGraph_t outer;
    cudaGraphNode_t child;
    cudaGraphExec_t both;
    CHECK(cudaGraphCreate(&outer, 0));
    CHECK(cudaGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
    CHECK(cudaGraphInstantiate(&both, outer, 0));
    CHECK(cudaGraphLaunch(both, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT child %lld\n", sum(host));
    CHECK(cudaGraphExecDestroy(both));
    CHECK(cudaGraphExecDestroy(exec));
    return 0;
}

static int memory(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t free_before, free_between, total;
    unsigned long long reserved = 0;
    int *inside, *device, value = 0;
    CHECK(cudaMalloc((void **)&device, 4));
    CHECK(cudaMemGetInfo(&free_before, &total));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMallocAsync((void **)&inside, 256 << 20, stream));
    CHECK(cudaMemsetAsync(inside, 1, 256 << 20, stream));
    CHECK(cudaMemcpyAsync(device, inside + 1000, 4, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaFreeAsync(inside, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; round++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemGetInfo(&free_between, &total));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    CHECK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    printf("RESULT memory %x %d %d\n", value, reserved >= 256u << 20,
           free_before - free_between >= 256u << 20);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    printf("RESULT trimmed %llu\n", reserved);
    return 0;
}

static int conditional(cudaStream_t stream) {
    int *device, value = 0;
    CHECK(cudaMalloc((void **)&device, 4));
    CHECK(cudaMemset(device, 0, 4));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t loop, body;
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams wanted = {};
    wanted.type = cudaGraphNodeTypeConditional;
    wanted.conditional.handle = handle;
    wanted.conditional.type = cudaGraphCondTypeWhile;
    wanted.conditional.size = 1;
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddNode(&loop, graph, NULL, NULL, 0, &wanted));
#else
    CHECK(cudaGraphAddNode(&loop, graph, NULL, 0, &wanted));
#endif
    cudaKernelNodeParams kernel = {};
    void *parameters[] = {&device, &handle};
    kernel.func = (void *)countdown;
    kernel.gridDim = kernel.blockDim = dim3(1);
    kernel.kernelParams = parameters;
    CHECK(cudaGraphAddKernelNode(&body, wanted.conditional.phGraph_out[0], NULL, 0, &kernel));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(&value, device, 4, cudaMemcpyDeviceToHost));
    printf("RESULT while %d\n", value);
    return 0;
}

// Memory operations in a graph, for which the runtime has no words.
static int batch(cudaStream_t stream) {
    unsigned *word, value = 0;
    cudaGraph_t graph;
    cudaGraphNode_t node, record;
    cudaGraphExec_t exec;
    cudaEvent_t event;
    CUcontext context;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    auto current = (decltype(&cuCtxGetCurrent))dlsym(driver, "cuCtxGetCurrent");
    auto add = (decltype(&cuGraphAddBatchMemOpNode))dlsym(driver, "cuGraphAddBatchMemOpNode");
    if (!current || !add || current(&context)) return 1;
    CHECK(cudaMalloc((void **)&word, 8));
    CHECK(cudaMemset(word, 0, 8));
    CHECK(cudaDeviceSynchronize());  // the stream of the graph does not wait for the default one
    CUstreamBatchMemOpParams operations[2] = {};
    operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = (CUdeviceptr)word;
    operations[0].writeValue.value = 77;
    operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[1].waitValue.address = (CUdeviceptr)word;
    operations[1].waitValue.value = 77;
    operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    CUDA_BATCH_MEM_OP_NODE_PARAMS two = {};
    two.ctx = context;
    two.count = 2;
    two.paramArray = operations;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaEventCreate(&event));
    int status = add((CUgraphNode *)&node, (CUgraph)graph, NULL, 0, &two);
    if (status) {
        printf("cuGraphAddBatchMemOpNode: %d\n", status);
        return 1;
    }
    CHECK(cudaGraphAddEventRecordNode(&record, graph, &node, 1, event));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));  // the event is recorded only when the graph gets there
    CHECK(cudaEventSynchronize(event));
    CHECK(cudaMemcpy(&value, word, 4, cudaMemcpyDeviceToHost));
    printf("RESULT batch %u\n", value);
    return 0;
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (by_node(stream, false) || by_node(stream, true) || captured(stream)) return 1;
    if (memory(stream) || conditional(stream) || batch(stream)) return 1;
    CHECK(cudaDeviceSynchronize());
    return 0;
}
