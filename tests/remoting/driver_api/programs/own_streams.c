// Calls of a program that was compiled for a default stream of each thread wait for that stream alone.
// Argument: an image with the kernels of fake_cuda/kernels/test_kernels.cu.
#include <pthread.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuCtxGetCurrent(void **);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned), cuStreamQuery(void *);
int cuMemcpyHtoD_v2_ptds(uint64_t, const void *, size_t), cuMemcpyDtoH_v2_ptds(void *, uint64_t, size_t);
int cuMemcpyDtoD_v2_ptds(uint64_t, uint64_t, size_t), cuMemsetD32_v2_ptds(uint64_t, unsigned, size_t);
int cuMemcpy_ptds(uint64_t, uint64_t, size_t), cuStreamSynchronize_ptsz(void *);

enum { COUNT = 1 << 18, BYTES = COUNT * 4, NOT_READY = 600 };

static void *context, *wait_for_flag;
static volatile int *flag;
static pthread_barrier_t started;

static void *run_on(void *unused) {
    void *parameters[] = {&flag};
    CHECK(cuCtxSetCurrent(context));
    launch(wait_for_flag, 1, parameters, (void *)2);  // CU_STREAM_PER_THREAD
    NEED(cuStreamQuery((void *)2) == NOT_READY);
    pthread_barrier_wait(&started);
    CHECK(cuStreamSynchronize_ptsz(NULL));
    return unused;
}

int main(int words, char **word) {
    static int numbers[COUNT], back[COUNT];
    void *module;
    uint64_t one, other, seen;
    pthread_t thread;
    NEED(words == 2);
    start(0);
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&wait_for_flag, module, "wait_for_flag"));
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 2));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, (void *)flag, 0));
    CHECK(cuMemAlloc_v2(&one, BYTES));
    CHECK(cuMemAlloc_v2(&other, BYTES));
    for (int at = 0; at < COUNT; at++) numbers[at] = at;
    pthread_barrier_init(&started, NULL, 2);
    NEED(pthread_create(&thread, NULL, run_on, NULL) == 0);
    pthread_barrier_wait(&started);
    CHECK(cuMemcpyHtoD_v2_ptds(one, numbers, BYTES));
    CHECK(cuMemsetD32_v2_ptds(one, 7, 10));
    CHECK(cuMemcpyDtoD_v2_ptds(other, one, BYTES));
    CHECK(cuMemcpy_ptds(other + 40, one, 4));
    CHECK(cuMemcpyDtoH_v2_ptds(back, other, BYTES));
    NEED(back[0] == 7 && back[9] == 7 && back[10] == 7 && back[11] == 11 && back[COUNT - 1] == COUNT - 1);
    CHECK(cuStreamSynchronize_ptsz(NULL));
    *flag = 1;
    CHECK(cuCtxSynchronize());
    pthread_join(thread, NULL);
    puts("results right");
    return 0;
}
