// The linker behind the door. Argument: PTX with the kernels of fake_cuda/kernels/test_kernels.cu.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
int cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
int cuLinkCreate_v2(unsigned, int *, void **, void **);
int cuLinkAddData_v2(void *, int, void *, size_t, const char *, unsigned, int *, void **);
int cuLinkAddFile_v2(void *, int, const char *, unsigned, int *, void **);
int cuLinkComplete(void *, void **, size_t *), cuLinkDestroy(void *);

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK(call) NEED((call) == 0)

int main(int count, char **words) {
    int options[] = {0, 5, 6, 7}, number = 41, n = 1;
    char log[16] = "not empty", text[] = ".version 8.0\n";
    void *values[] = {(void *)64, log, (void *)sizeof log, (void *)3};
    void *context, *state, *image, *module, *kernel;
    size_t size = 0;
    uint64_t where;
    NEED(count == 2);
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuLinkCreate_v2(4, options, values, &state));
    NEED(log[0] == '\0');
    NEED(cuLinkAddFile_v2(state, 1, "/no/such/file", 0, NULL, NULL) == 301);
    NEED(cuLinkAddData_v2(state, 99, text, sizeof text, "x", 0, NULL, NULL) == 1);
    NEED(cuLinkComplete(state, &image, &size) != 0);  // of nothing
    CHECK(cuLinkAddFile_v2(state, 1, words[1], 0, NULL, NULL));
    // The server's driver says what it cannot link: here a cubin behind PTX.
    NEED(cuLinkAddData_v2(state, 0, text, sizeof text, "cubin", 0, NULL, NULL) == 801);
    CHECK(cuLinkComplete(state, &image, &size));
    NEED(size > 1000);
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLinkDestroy(state));
    NEED(cuLinkDestroy(state) == 400);
    CHECK(cuModuleGetFunction(&kernel, module, "increment"));
    CHECK(cuMemAlloc_v2(&where, sizeof number));
    CHECK(cuMemcpyHtoD_v2(where, &number, sizeof number));
    CHECK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){&where, &n}, NULL));
    CHECK(cuMemcpyDtoH_v2(&number, where, sizeof number));
    NEED(number == 42);
    puts("results right");
    return 0;
}
