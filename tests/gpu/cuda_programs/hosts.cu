// Host functions, values that streams wait for, pinned memory under kernels, and tensor maps.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#define CHECK(call)                                                                               \
    do {                                                                                          \
        cudaError_t status = (call);                                                              \
        if (status != cudaSuccess) {                                                              \
            printf("line %d: %s\n", __LINE__, cudaGetErrorString(status));                        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { N = 1024 };

static int *device, *in, *out;

__global__ void increment(int *data, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) data[at] += 1;
}

static void CUDART_CB copy_and_double(void *) {
    usleep(2000);
    for (int at = 0; at < N; at++) in[at] = 2 * out[at];
}

static void CUDART_CB count(void *number) { ++*(int *)number; }

static void CUDART_CB call_cuda(void *result) { *(cudaError_t *)result = cudaMalloc(&result, 64); }

static void CUDART_CB note(cudaStream_t stream, cudaError_t status, void *seen) {
    *(cudaStream_t *)seen = status == cudaSuccess ? stream : NULL;
}

static void in_order(cudaStream_t stream) {
    CHECK(cudaMemset(device, 0, N * sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    for (int round = 0; round < 3; round++) {
        increment<<<4, 256, 0, stream>>>(device, N);
        CHECK(cudaMemcpyAsync(out, device, N * sizeof(int), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, copy_and_double, NULL));
        CHECK(cudaMemcpyAsync(device, in, N * sizeof(int), cudaMemcpyHostToDevice, stream));
    }
    CHECK(cudaMemcpyAsync(out, device, N * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT in_order %d %d\n", out[0], out[N - 1]);
}

static void many(cudaStream_t stream) {
    int calls = 0;
    CHECK(cudaMemset(device, 0, sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    auto begin = std::chrono::steady_clock::now();
    for (int at = 0; at < 500; at++) {
        CHECK(cudaLaunchHostFunc(stream, count, &calls));
        for (int more = 0; more < 5; more++) increment<<<1, 1, 0, stream>>>(device, 1);
    }
    CHECK(cudaStreamSynchronize(stream));
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    int sum = 0;
    CHECK(cudaMemcpy(&sum, device, sizeof sum, cudaMemcpyDeviceToHost));
    printf("RESULT many %d %d\n", calls, sum);
    printf("RESULT host_function_us %.1f\n", passed.count() * 1e6 / 500);
}

static void callbacks(cudaStream_t stream) {
    cudaStream_t seen = NULL;
    cudaError_t refused = cudaSuccess;
    CHECK(cudaStreamAddCallback(stream, note, &seen, 0));
    CHECK(cudaLaunchHostFunc(stream, call_cuda, &refused));
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT callback %d\n", seen == stream);
    printf("RESULT refused_in_callback %d\n", refused != cudaSuccess);
    cudaGetLastError();
}

static void captured(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int calls = 0, sum = 0;
    CHECK(cudaMemset(device, 0, sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    increment<<<1, 1, 0, stream>>>(device, 1);
    CHECK(cudaLaunchHostFunc(stream, count, &calls));
    increment<<<1, 1, 0, stream>>>(device, 1);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int at = 0; at < 4; at++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(&sum, device, sizeof sum, cudaMemcpyDeviceToHost));
    printf("RESULT captured %d %d\n", calls, sum);
}

static volatile int go;

static void CUDART_CB wait_to_go(void *) {
    for (int at = 0; at < 20000 && !go; at++) usleep(100);
}

// A launch under way calls its functions, though graph and executable have gone; and threads have
// streams of their own that end with them.
static void gone(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int calls = 0, last = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaLaunchHostFunc(stream, wait_to_go, NULL));
    CHECK(cudaLaunchHostFunc(stream, count, &calls));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaGraphExecDestroy(exec));
    printf("RESULT gone_before %d\n", calls);
    go = 1;
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT gone %d\n", calls);
    CHECK(cudaMemset(device, 0, 500 * sizeof(int)));
    for (int at = 0; at < 500; at++) {
        std::thread([at] {
            CHECK(cudaMemsetAsync(device + at, at % 100, sizeof(int), cudaStreamPerThread));
        }).join();
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&last, device + 499, sizeof last, cudaMemcpyDeviceToHost));
    printf("RESULT thread_streams %x\n", last);
}

static void CUDART_CB write_more(void *where) { *(int *)where += 1000; }

// One launch that no queue holds. The door must answer the functions while its caller is kept.
static void large_graph(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int calls = 0, *both;
    CHECK(cudaHostAlloc((void **)&both, 64, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(both, 0, 64);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int at = 0; at < 300; at++) {
        CHECK(cudaLaunchHostFunc(stream, at % 2 ? count : write_more,
                                 at % 2 ? (void *)&calls : (void *)both));
        increment<<<1, 1, 0, stream>>>(both, 1);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    auto begin = std::chrono::steady_clock::now();
    for (int at = 0; at < 2; at++) CHECK(cudaGraphLaunch(exec, stream));
    std::chrono::duration<double> launched = std::chrono::steady_clock::now() - begin;
    CHECK(cudaStreamSynchronize(stream));
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    printf("RESULT large_graph %d %d\n", calls, both[0]);
    // Natively, whether the driver keeps the caller: then the first is near the second.
    printf("RESULT large_graph_launch_us %.1f\n", launched.count() * 1e6);
    printf("RESULT large_graph_us %.1f\n", passed.count() * 1e6);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaFreeHost(both));
}

// Under its own address, as unified addressing allows.
static void pinned(cudaStream_t stream) {
    int *both;
    CHECK(cudaHostAlloc((void **)&both, 64, cudaHostAllocPortable));
    memset(both, 0, 64);
    CHECK(cudaMemsetAsync(both, 1, 16, stream));
    increment<<<1, 2, 0, stream>>>(both + 1, 2);
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT pinned %x %x %x %x %x\n", both[0], both[1], both[2], both[3], both[4]);
    CHECK(cudaLaunchHostFunc(stream, count, both));
    increment<<<1, 1, 0, stream>>>(both, 1);
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT behind_host_function %x\n", both[0]);
    CHECK(cudaFreeHost(both));
}

template <class Function> static Function driver(const char *name) {
    void *found = NULL;
    cudaDriverEntryPointQueryResult how;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how));
    return (Function)found;
}

static void values(cudaStream_t waiting) {
    auto wait = driver<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(
        "cuStreamWaitValue32");
    auto write = driver<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(
        "cuStreamWriteValue32");
    cudaStream_t writing;
    CHECK(cudaStreamCreateWithFlags(&writing, cudaStreamNonBlocking));
    CHECK(cudaMemset(device, 0, sizeof(int)));
    CHECK(cudaDeviceSynchronize());
    int waited = wait(waiting, (CUdeviceptr)device, 5, CU_STREAM_WAIT_VALUE_GEQ);
    int before = cudaStreamQuery(waiting);
    int written = write(writing, (CUdeviceptr)device, 6, 0);
    CHECK(cudaStreamSynchronize(waiting));
    printf("RESULT values %d %d %d\n", waited, before, written);
    // Which calls does the driver hold up while a stream waits? The door must know.
    waited = wait(waiting, (CUdeviceptr)device, 9, CU_STREAM_WAIT_VALUE_GEQ);
    void *memory;
    auto begin = std::chrono::steady_clock::now();
    CHECK(cudaMalloc(&memory, 8 << 20));
    CHECK(cudaHostAlloc(&memory, 8 << 20, 0));
    std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    printf("RESULT allocation_beside_wait_us %.1f\n", passed.count() * 1e6);
    write(writing, (CUdeviceptr)device, 9, 0);
    CHECK(cudaStreamSynchronize(waiting));
}

static void tensor_maps() {
    auto encode = driver<CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                      const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                      const cuuint32_t *, CUtensorMapInterleave,
                                      CUtensorMapSwizzle, CUtensorMapL2promotion,
                                      CUtensorMapFloatOOBfill)>("cuTensorMapEncodeTiled");
    alignas(128) static CUtensorMap map;
    cuuint64_t sizes[5] = {64, 8, 4, 2, 2}, strides[5] = {128, 1024, 4096, 8192, 0};
    cuuint32_t box[5] = {64, 8, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    for (unsigned rank = 1; rank <= 5; rank++) {
        int status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, device, sizes, strides,
                            box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                            CU_TENSOR_MAP_L2_PROMOTION_NONE,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        printf("RESULT tensor_map_%u %d\n", rank, status);
    }
}

int main() {
    setvbuf(stdout, NULL, _IOLBF, 0);  // for who ends it when it hangs
    cudaStream_t stream;
    CHECK(cudaMalloc(&device, 1 << 20));
    CHECK(cudaMallocHost(&in, N * sizeof(int)));
    CHECK(cudaMallocHost(&out, N * sizeof(int)));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    in_order(stream);
    in_order(NULL);
    many(stream);
    callbacks(stream);
    captured(stream);
    gone(stream);
    large_graph(stream);
    pinned(stream);
    values(stream);
    tensor_maps();
    printf("RESULT end 1\n");
    return 0;
}
