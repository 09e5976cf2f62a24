// Calls with a stream of another device than the current one, as cuFFT makes them on several GPUs.
#include "check.h"

#include <unistd.h>

int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *), cuMemAllocHost_v2(void **, size_t);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuStreamQuery(void *);
int cuPointerGetAttribute(void *, int, uint64_t);

struct copy2d {
    size_t source_x, source_y;
    int source_kind;
    const void *source_host;
    uint64_t source;
    void *source_array;
    size_t source_pitch, target_x, target_y;
    int target_kind;
    void *target_host;
    uint64_t target;
    void *target_array;
    size_t target_pitch, width, height;
};
int cuMemcpy2DAsync_v2(const struct copy2d *, void *);

#define SMALL ((size_t)100)
#define LARGE ((size_t)3 << 20)
#define ORDINAL 9  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

static void rest(void *unused) {
    (void)unused;
    usleep(20000);
}

static void copies(uint64_t memory, void *stream, void *pinned, unsigned char *bytes) {
    unsigned char first = 7;
    for (size_t size = SMALL; size <= LARGE; size += LARGE - SMALL, first++) {
        memset(bytes, first, size);
        CHECK(cuMemcpyHtoDAsync_v2(memory, bytes, size, stream));
        memset(bytes, 0, size);
        CHECK(cuMemcpyDtoHAsync_v2(bytes, memory, size, stream));
        NEED(bytes[0] == first && bytes[size - 1] == first);
        CHECK(cuMemsetD8Async(memory, first + 20, size, stream));
        CHECK(cuMemcpyDtoHAsync_v2(pinned, memory, size, stream));
        CHECK(cuLaunchHostFunc(stream, rest, NULL));
        CHECK(cuStreamSynchronize(stream));
        NEED(cuStreamQuery(stream) == 0);
        const unsigned char *found = pinned;
        NEED(found[0] == first + 20 && found[size - 1] == first + 20);
    }
}

static void boxes(uint64_t memory, void *stream, unsigned char *bytes) {
    struct copy2d copy = {.source_kind = 1, .source_host = bytes, .source_pitch = 32, .width = 16,
                          .height = 8, .target_kind = 2, .target = memory, .target_pitch = 64};
    for (int at = 0; at < 256; at++) bytes[at] = (unsigned char)at;
    CHECK(cuMemcpy2DAsync_v2(&copy, stream));
    struct copy2d back = {.source_kind = 2, .source = memory, .source_pitch = 64, .width = 16,
                          .height = 8, .target_kind = 1, .target_host = bytes + 256, .target_pitch = 16};
    CHECK(cuMemcpy2DAsync_v2(&back, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(bytes[256] == 0 && bytes[256 + 17] == 33 && bytes[256 + 127] == 239);
}

int main(void) {
    void *contexts[2], *streams[2], *pinned;
    uint64_t memory[2], made;
    unsigned char *bytes = malloc(LARGE);
    CHECK(cuInit(0));
    for (int at = 0; at < 2; at++) {
        CHECK(cuDevicePrimaryCtxRetain(&contexts[at], at));
        CHECK(cuCtxSetCurrent(contexts[at]));
        CHECK(cuStreamCreate(&streams[at], 1));
        CHECK(cuMemAlloc_v2(&memory[at], LARGE));
    }
    CHECK(cuMemAllocHost_v2(&pinned, LARGE));
    for (int current = 0; current < 2; current++) {
        CHECK(cuCtxSetCurrent(contexts[current]));
        for (int at = 0; at < 2; at++) {
            copies(memory[at], streams[!current], pinned, bytes);
            boxes(memory[at], streams[!current], bytes);
        }
        int ordinal = -1;
        CHECK(cuMemAllocAsync(&made, LARGE, streams[!current]));
        CHECK(cuMemsetD8Async(made, 5, LARGE, streams[!current]));
        CHECK(cuPointerGetAttribute(&ordinal, ORDINAL, made));
        CHECK(cuMemFreeAsync(made, streams[!current]));
        CHECK(cuStreamSynchronize(streams[!current]));
        printf("current %d: memory of device %d\n", current, ordinal);
    }
    CHECK(cuCtxSynchronize());
    return 0;
}
