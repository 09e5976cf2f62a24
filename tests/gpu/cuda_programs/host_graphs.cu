// Graphs whose host nodes read what the graph has copied to the host: by node, captured, cloned, updated,
// one within another, several executables at once, and launches one behind the other.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

static const int N = 1 << 20;

__global__ void add_to(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

// Adds all up, as the sample simpleCudaGraphs does.
__global__ void add_up(const int *x, int n, unsigned long long *sum) {
    unsigned long long own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i];
    atomicAdd(sum, own);
}

struct Seen {
    volatile unsigned long long *sum;  // copied by the graph before the function runs
    unsigned long long total;
    int calls;
};

// Takes the bytes away, which nothing but the next launch brings again.
static void CUDART_CB see(void *given) {
    Seen *seen = (Seen *)given;
    seen->total = seen->total * 3 + *seen->sum;
    seen->calls++;
    *seen->sum = 0xdead;
}

static int *device, *in;
static unsigned long long *sum_device, *sum;

static int captured(cudaStream_t stream, Seen *seen, int by, cudaGraph_t *graph) {
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMemcpyAsync(device, in, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(sum_device, 0, sizeof *sum_device, stream));
    add_to<<<N / 256, 256, 0, stream>>>(device, N, by);
    add_up<<<64, 256, 0, stream>>>(device, N, sum_device);
    CHECK(cudaMemcpyAsync(sum, sum_device, sizeof *sum, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaLaunchHostFunc(stream, see, seen));
    CHECK(cudaStreamEndCapture(stream, graph));
    return 0;
}

static void fill(int with) {
    for (int i = 0; i < N; i++) in[i] = with + i % 7;
}

static void say(const char *what, const Seen &seen) {
    printf("RESULT %s %d %llx %llx\n", what, seen.calls, seen.total, *sum);
}

// One capture; two executables of it, and one of a clone, in turns and one behind the other.
static int textbook(cudaStream_t stream, const char *what) {
    Seen seen = {sum, 0, 0};
    cudaGraph_t graph, clone;
    cudaGraphExec_t execs[3];
    if (captured(stream, &seen, 1, &graph)) return 1;
    CHECK(cudaGraphClone(&clone, graph));
    for (int at = 0; at < 3; at++) CHECK(cudaGraphInstantiate(&execs[at], at == 2 ? clone : graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(clone));
    for (int round = 0; round < 6; round++) {
        fill(round);
        CHECK(cudaGraphLaunch(execs[round % 3], stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    say(what, seen);
    auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < 60; round++) CHECK(cudaGraphLaunch(execs[round % 3], stream));
    CHECK(cudaStreamSynchronize(stream));
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    printf("RESULT %s_in_a_row %d %llx %llx\n", what, seen.calls, seen.total, *sum);
    printf("RESULT %s_launch_us %.1f\n", what, passed.count() * 1e6 / 60);
    for (int at = 0; at < 3; at++) CHECK(cudaGraphExecDestroy(execs[at]));
    return 0;
}

// The same work captured anew each time, for one executable.
static int updated(cudaStream_t stream) {
    Seen seen[2] = {{sum, 0, 0}, {sum, 0, 0}};
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    fill(3);
    for (int round = 0; round < 6; round++) {
        if (captured(stream, &seen[round % 2], round, &graph)) return 1;
        cudaGraphExecUpdateResultInfo info;
        if (exec == NULL) {
            CHECK(cudaGraphInstantiate(&exec, graph, 0));
        } else {
            CHECK(cudaGraphExecUpdate(exec, graph, &info));
        }
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    say("updated_even", seen[0]);
    say("updated_odd", seen[1]);
    CHECK(cudaGraphExecDestroy(exec));
    return 0;
}

// Node by node: functions in a row with copies of their own, one within a graph within; and what is
// changed in the executable.
static int by_node(cudaStream_t stream) {
    Seen seen[3] = {{sum, 0, 0}, {sum, 0, 0}, {sum, 0, 0}};
    cudaGraph_t graph, child;
    cudaGraphNode_t up, zero, add, first_down, first, within, last_down, last;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphCreate(&child, 0));
    CHECK(cudaGraphAddMemcpyNode1D(&up, graph, NULL, 0, device, in, N * sizeof(int), cudaMemcpyHostToDevice));
    cudaMemsetParams zeros = {};
    zeros.dst = sum_device;
    zeros.elementSize = 4;
    zeros.width = 2;
    zeros.height = 1;
    CHECK(cudaGraphAddMemsetNode(&zero, graph, &up, 1, &zeros));
    int n = N;
    void *words[] = {&device, &n, &sum_device};
    cudaKernelNodeParams adding = {};
    adding.func = (void *)add_up;
    adding.gridDim = dim3(64);
    adding.blockDim = dim3(256);
    adding.kernelParams = words;
    CHECK(cudaGraphAddKernelNode(&add, graph, &zero, 1, &adding));
    CHECK(cudaGraphAddMemcpyNode1D(&first_down, graph, &add, 1, sum, sum_device, 8, cudaMemcpyDeviceToHost));
    cudaHostNodeParams call = {};
    call.fn = see;
    call.userData = &seen[0];
    CHECK(cudaGraphAddHostNode(&first, graph, &first_down, 1, &call));
    // Within: add once more, copy, call.
    cudaGraphNode_t again, down, called;
    CHECK(cudaGraphAddKernelNode(&again, child, NULL, 0, &adding));
    CHECK(cudaGraphAddMemcpyNode1D(&down, child, &again, 1, sum, sum_device, 8, cudaMemcpyDeviceToHost));
    call.userData = &seen[1];
    CHECK(cudaGraphAddHostNode(&called, child, &down, 1, &call));
    CHECK(cudaGraphAddChildGraphNode(&within, graph, &first, 1, child));
    CHECK(cudaGraphAddMemcpyNode1D(&last_down, graph, &within, 1, sum, sum_device, 8, cudaMemcpyDeviceToHost));
    call.userData = &seen[0];
    CHECK(cudaGraphAddHostNode(&last, graph, &last_down, 1, &call));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    fill(2);
    for (int round = 0; round < 4; round++) {
        if (round == 2) {
            call.userData = &seen[2];
            CHECK(cudaGraphExecHostNodeSetParams(exec, first, &call));
        }
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
    }
    say("by_node_first", seen[0]);
    say("by_node_within", seen[1]);
    say("by_node_changed", seen[2]);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(child));
    return 0;
}

struct Bytes {
    const int *at;
    long long sum;
};

static void CUDART_CB add_bytes(void *given) {
    Bytes *bytes = (Bytes *)given;
    bytes->sum = 0;
    for (int i = 0; i < 8 * N; i++) bytes->sum += bytes->at[i];
}

// 32 MiB for a function to read, and a row of a rectangle.
static int large(cudaStream_t stream) {
    int *much, *out;
    CHECK(cudaMalloc((void **)&much, 8 * N * sizeof(int)));
    CHECK(cudaMallocHost((void **)&out, 8 * N * sizeof(int)));
    CHECK(cudaMemset(much, 0, 8 * N * sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    Bytes bytes = {out, 0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add_to<<<8 * N / 256, 256, 0, stream>>>(much, 8 * N, 5);
    CHECK(cudaMemcpyAsync(out, much, 7 * N * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpy2DAsync(out + 7 * N, 4096, much + 7 * N, 4096, 100, N * sizeof(int) / 4096,
                            cudaMemcpyDeviceToHost, stream));
    CHECK(cudaLaunchHostFunc(stream, add_bytes, &bytes));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        memset(out, 0, 8 * N * sizeof(int));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        printf("RESULT large_%d %lld\n", round, bytes.sum);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFreeHost(out));
    CHECK(cudaFree(much));
    return 0;
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&device, N * sizeof(int)));
    CHECK(cudaMalloc((void **)&sum_device, sizeof *sum_device));
    in = (int *)malloc(N * sizeof(int));
    sum = (unsigned long long *)calloc(1, sizeof *sum);
    if (textbook(stream, "pageable")) return 1;
    free(in);
    free(sum);
    CHECK(cudaMallocHost((void **)&in, N * sizeof(int)));
    CHECK(cudaMallocHost((void **)&sum, sizeof *sum));
    if (textbook(stream, "pinned") || updated(stream) || by_node(stream) || large(stream)) return 1;
    // Memory that kernels see as well has a mirror on the server, to which the copies go.
    CHECK(cudaFreeHost(sum));
    CHECK(cudaHostAlloc((void **)&sum, sizeof *sum, cudaHostAllocMapped));
    return textbook(stream, "mapped");
}
