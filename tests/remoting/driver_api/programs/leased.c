// A program of the CUDA driver's interface for a real lease: it computes, or waits for a kernel
// that takes a minute and says with what error that ended.
// Arguments: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu; "compute" or "wait".
#include "check.h"

int cuDeviceTotalMem_v2(size_t *, int);

enum { N = 1 << 20 };
static char image[1 << 20];

static void compute(void *module) {
    static int numbers[N], back[N];
    int n = N;
    uint64_t data;
    void *increment, *parameters[] = {&data, &n};
    for (int at = 0; at < N; at++) numbers[at] = at * 7;
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&data, sizeof numbers));
    CHECK(cuMemcpyHtoD_v2(data, numbers, sizeof numbers));
    for (int round = 0; round < 3; round++) {
        CHECK(cuLaunchKernel(increment, N / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    }
    CHECK(cuMemcpyDtoH_v2(back, data, sizeof back));
    for (int at = 0; at < N; at++) {
        if (back[at] != numbers[at] + 3) exit(1);
    }
    size_t left, total, whole;
    CHECK(cuMemGetInfo_v2(&left, &total));
    CHECK(cuDeviceTotalMem_v2(&whole, 0));
    printf("results right, %zu MiB of %zu\n", total >> 20, whole >> 20);
}

static int wait_long(void *module) {
    void *sleep_us;
    long long microseconds = 60000000;
    void *parameters[] = {&microseconds};
    CHECK(cuModuleGetFunction(&sleep_us, module, "sleep_us"));
    CHECK(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    printf("waiting\n");
    fflush(stdout);
    int code = cuCtxSynchronize();
    printf("error %d, then %d\n", code, cuCtxSynchronize());
    return code != 0;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL || fread(image, 1, sizeof image - 1, file) == 0) return 2;
    void *context, *module;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, image));
    if (strcmp(arguments[2], "wait") == 0) return wait_long(module);
    compute(module);
    return 0;
}
