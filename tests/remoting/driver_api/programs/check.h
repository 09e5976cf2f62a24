// What the programs that check the door share.
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
// What the door promises beyond CUDA: how much a partition of 64 MiB holds, what it leaves out, and errors
// where CUDA's behaviour is undefined, as for handles that have ended. Not asked of the driver itself.
#define OURS(condition)                                                                            \
    do {                                                                                           \
        if (getenv("GPUPOOL_AGENT") != NULL) NEED(condition);                                      \
    } while (0)
#define CHECK(call)                                                                                \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "line %d: %s returned %d\n", __LINE__, #call, code_);                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuCtxSynchronize(void), cuDeviceGetAttribute(int *, int, int), cuDeviceGetCount(int *);
int cuMemGetInfo_v2(size_t *, size_t *), cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);
int cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *), cuStreamDestroy_v2(void *);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t), cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuMemcpy(uint64_t, uint64_t, size_t), cuMemsetD8_v2(uint64_t, unsigned char, size_t);
int cuMemAllocAsync(uint64_t *, size_t, void *), cuMemFreeAsync(uint64_t, void *);
int cuModuleLoad(void **, const char *), cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *), cuModuleUnload(void *);
int cuModuleGetGlobal_v2(uint64_t *, size_t *, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

static inline void start(int device) {
    void *context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
}

static inline size_t left(void) {
    size_t free, total;
    CHECK(cuMemGetInfo_v2(&free, &total));
    return free;
}

static inline void launch(void *function, unsigned threads, void **parameters, void *stream) {
    CHECK(cuLaunchKernel(function, (threads + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters,
                         NULL));
}

#endif
