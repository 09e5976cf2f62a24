// Two threads of one program: what one waits for must not delay the other, on whose work it depends.
// Arguments: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu; "two" for that. Then
// a launch that fails: with CUDA_LAUNCH_BLOCKING it says so itself.
#include "check.h"

#include <pthread.h>
#include <unistd.h>

int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *);

enum { LARGE = 24 << 20 };
static char image[1 << 20], bytes[LARGE];
static void *context, *wait_for_flag;
static uint64_t flag, spare, target;
static volatile int *pinned;
static volatile bool passed;
static pthread_barrier_t started;

static void *waiting(void *unused) {
    (void)unused;
    uint64_t another;
    void *parameters[] = {&flag};
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuLaunchKernel(wait_for_flag, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    pthread_barrier_wait(&started);
    CHECK(cuMemFree_v2(spare));
    CHECK(cuMemcpyHtoDAsync_v2(target, bytes, LARGE, NULL));
    passed = true;
    // Waits for the kernel twice over: for the copy, and for the memory that was freed.
    CHECK(cuMemcpyHtoD_v2(target, bytes, LARGE));
    CHECK(cuMemAlloc_v2(&another, LARGE));
    return NULL;
}

static int two_threads(void) {
    pthread_t thread;
    void *stream;
    uint64_t other;
    CHECK(cuStreamCreate(&stream, 1));  // independent of the legacy stream
    CHECK(cuMemHostAlloc((void **)&pinned, 4, 2));
    CHECK(cuMemHostGetDevicePointer_v2(&flag, (void *)pinned, 0));
    CHECK(cuMemAlloc_v2(&spare, LARGE));
    CHECK(cuMemAlloc_v2(&target, LARGE));
    CHECK(cuMemAlloc_v2(&other, 4));
    pthread_barrier_init(&started, NULL, 2);
    pthread_create(&thread, NULL, waiting, NULL);
    pthread_barrier_wait(&started);
    // CUDA may wait in the calls that the other thread makes first. Behind the door they return.
    for (int turn = 0; turn < 100 && !passed; turn++) usleep(1000);
    *pinned = 1;
    CHECK(cuMemsetD32Async(other, 1, 1, stream));
    CHECK(cuStreamSynchronize(stream));
    pthread_join(thread, NULL);
    void *event;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(event, NULL));
    CHECK(cuEventSynchronize(event));
    for (int at = 0; at < 1000; at++) CHECK(cuEventQuery(event));
    return 0;
}

int main(int count, char **arguments) {
    CHECK(cuInit(0));
    FILE *file = count == 3 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0) return 2;
    void *module, *out_of_bounds, *parameters[] = {&flag};
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&wait_for_flag, module, "wait_for_flag"));
    CHECK(cuModuleGetFunction(&out_of_bounds, module, "out_of_bounds"));
    if (strcmp(arguments[2], "two") == 0 && two_threads() != 0) return 1;
    int code = cuLaunchKernel(out_of_bounds, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    printf("launched: %d, then %d\n", code, cuCtxSynchronize());
    return 0;
}
