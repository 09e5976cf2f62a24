// Graphs that kernels launch: beside their own graph, behind it, found in memory, and their own once more.
#include "check.h"

enum { BESIDE, BEHIND };

__global__ void add(int *out, int by) { atomicAdd(out, by); }

__global__ void launch(cudaGraphExec_t graph, int where) {
    if (where == BESIDE) cudaGraphLaunch(graph, cudaStreamGraphFireAndForget);
    else cudaGraphLaunch(graph, cudaStreamGraphTailLaunch);
}

__global__ void launch_found(const cudaGraphExec_t *found) {
    cudaGraphLaunch(*found, cudaStreamGraphFireAndForget);
}

__global__ void again(int *out, int most) {
    if (atomicAdd(out, 1) + 1 < most)
        cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

static int result(const char *name, const int *out, cudaStream_t stream) {
    int found;
    CHECK(cudaMemcpyAsync(&found, out, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT %s %d\n", name, found);
    return 0;
}

template <class Work>
static int make(cudaGraphExec_t *made, cudaStream_t stream, unsigned flags, Work work) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(made, graph, flags));
    CHECK(cudaGraphDestroy(graph));
    if (flags) CHECK(cudaGraphUpload(*made, stream));
    return 0;
}

int main() {
    const unsigned for_kernels = cudaGraphInstantiateFlagDeviceLaunch;
    cudaStream_t stream;
    cudaGraphExec_t inner, own, outer, *found;
    int *out;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&out, 4));
    CHECK(cudaMalloc(&found, sizeof *found));
    CHECK(cudaMemset(out, 0, 4));
    if (make(&inner, stream, for_kernels, [&] {
            add<<<1, 32, 0, stream>>>(out, 1);
            add<<<1, 1, 0, stream>>>(out, 100);
        })) return 1;
    CHECK(cudaGraphLaunch(inner, stream));
    if (result("by_the_host", out, stream)) return 1;
    for (int where : {BESIDE, BEHIND}) {
        if (make(&outer, stream, 0, [&] { launch<<<1, 1, 0, stream>>>(inner, where); })) return 1;
        for (int at = 0; at < 3; at++) CHECK(cudaGraphLaunch(outer, stream));
        if (result(where == BESIDE ? "beside" : "behind", out, stream)) return 1;
        CHECK(cudaGraphExecDestroy(outer));
    }
    CHECK(cudaMemcpy(found, &inner, sizeof inner, cudaMemcpyHostToDevice));
    if (make(&outer, stream, 0, [&] { launch_found<<<1, 1, 0, stream>>>(found); })) return 1;
    CHECK(cudaGraphLaunch(outer, stream));
    if (result("found_in_memory", out, stream)) return 1;
    CHECK(cudaMemset(out, 0, 4));
    if (make(&own, stream, for_kernels, [&] { again<<<1, 1, 0, stream>>>(out, 10); })) return 1;
    CHECK(cudaGraphLaunch(own, stream));
    if (result("its_own", out, stream)) return 1;
    CHECK(cudaGraphExecDestroy(outer));
    CHECK(cudaGraphExecDestroy(inner));
    CHECK(cudaGraphExecDestroy(own));
    return 0;
}
