// Batches of copies of every direction, and of hints about managed memory.
#include "check.h"

struct location {
    int type, id;
};
struct attributes {
    int order;
    struct location source, target;
    unsigned flags;
};
struct operand {
    int type;
    union {
        struct {
            const void *at;
            size_t row, layer;
            struct location hint;
        } pointer;
        struct {
            void *array;
            size_t x, y, z;
        } array;
    };
};
struct operation {
    struct operand source, target;
    size_t width, height, depth;
    int order;
    unsigned flags;
};
struct descriptor {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

int cuMemcpyBatchAsync(uint64_t *, uint64_t *, size_t *, size_t, struct attributes *, size_t *,
                       size_t, size_t *, void *);
int cuMemcpyBatchAsync_v2(uint64_t *, uint64_t *, size_t *, size_t, struct attributes *, size_t *,
                          size_t, void *);
int cuMemcpyBatchAsync_v2_ptsz(uint64_t *, uint64_t *, size_t *, size_t, struct attributes *,
                               size_t *, size_t, void *);
int cuMemcpy3DBatchAsync(size_t, struct operation *, size_t *, unsigned long long, void *);
int cuMemcpy3DBatchAsync_v2(size_t, struct operation *, unsigned long long, void *);
int cuMemPrefetchBatchAsync(uint64_t *, size_t *, size_t, struct location *, size_t *, size_t,
                            unsigned long long, void *);
int cuMemDiscardBatchAsync(uint64_t *, size_t *, size_t, unsigned long long, void *);
int cuMemDiscardAndPrefetchBatchAsync(uint64_t *, size_t *, size_t, struct location *, size_t *,
                                      size_t, unsigned long long, void *);
int cuMemAllocManaged(uint64_t *, size_t, unsigned), cuMemAllocHost_v2(void **, size_t);
int cuMemFreeHost(void *), cuArray3DCreate_v2(void **, const struct descriptor *);
int cuArrayDestroy(void *);

#define SIZE 100000
#define FLOAT 0x20

static void pointers(void *stream) {
    uint64_t one, two;
    unsigned char *plain = malloc(SIZE), *back = calloc(1, SIZE);
    void *pinned;
    CHECK(cuMemAlloc_v2(&one, SIZE));
    CHECK(cuMemAlloc_v2(&two, SIZE));
    CHECK(cuMemAllocHost_v2(&pinned, SIZE));
    for (int at = 0; at < SIZE; at++) plain[at] = (unsigned char)(at * 5);
    memset(pinned, 3, SIZE);
    struct attributes how[2] = {{.order = 2}, {.order = 1}};
    size_t first[2] = {0, 1}, failed = 9;
    uint64_t in_to[2] = {one, two}, in_from[2] = {(uintptr_t)plain, (uintptr_t)pinned};
    size_t sizes[2] = {SIZE, SIZE};
    CHECK(cuMemcpyBatchAsync(in_to, in_from, sizes, 2, how, first, 2, &failed, stream));
    NEED(failed == SIZE_MAX);
    memset(plain, 0, SIZE);  // it was to be read during the call
    uint64_t between_to[2] = {two, one + 10}, between_from[2] = {one, two + 50000};
    size_t between[2] = {500, 1000};
    CHECK(cuMemcpyBatchAsync_v2(between_to, between_from, between, 2, how, first, 2, stream));
    uint64_t out_to[2] = {(uintptr_t)back, (uintptr_t)pinned}, out_from[2] = {one, two};
    CHECK(cuMemcpyBatchAsync_v2_ptsz(out_to, out_from, sizes, 2, how, first, 1, stream));
    CHECK(cuStreamSynchronize(stream));
    const unsigned char *seen = pinned;
    printf("copied %d %d %d %d, %d %d %d\n", back[9], back[10], back[1009], back[1010], seen[0],
           seen[499], seen[500]);
    first[1] = 0;
    printf("refused %d", cuMemcpyBatchAsync_v2(in_to, in_from, sizes, 2, how, first, 2, stream));
    first[1] = 1, how[1].order = 0;
    printf(" %d", cuMemcpyBatchAsync_v2(in_to, in_from, sizes, 2, how, first, 2, stream));
    how[1].order = 1;
    printf(" %d", cuMemcpyBatchAsync_v2(in_to, in_from, sizes, 2, how, first, 2, NULL));
    printf(" %d", cuMemcpyBatchAsync_v2(in_to, in_from, sizes, 2, NULL, first, 2, stream));
    printf(" %d\n", cuMemcpyBatchAsync_v2(in_to, in_from, sizes, 0, how, first, 0, stream));
    CHECK(cuMemcpyBatchAsync_v2_ptsz(in_to, in_from, sizes, 2, how, first, 2, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(one));
    CHECK(cuMemFree_v2(two));
    CHECK(cuMemFreeHost(pinned));
    free(plain), free(back);
}

static void boxes(void *stream) {
    struct descriptor wanted = {40, 30, 4, FLOAT, 2, 0};
    void *one, *two;
    uint64_t flat;
    size_t failed = 9;
    float *values = malloc(40 * 30 * 4 * 8), *found = calloc(40 * 30 * 4, 8);
    for (int at = 0; at < 40 * 30 * 4 * 2; at++) values[at] = (float)at;
    CHECK(cuArray3DCreate_v2(&one, &wanted));
    CHECK(cuArray3DCreate_v2(&two, &wanted));
    CHECK(cuMemAlloc_v2(&flat, 64 * 30 * 4 * 8));
    struct operation in[2] = {
        {{1, {.pointer = {.at = values}}}, {2, {.array = {.array = one}}}, 40, 30, 4, 3, 0},
        {{1, {.pointer = {.at = values, .row = 320, .layer = 30}}},
         {1, {.pointer = {.at = (void *)(uintptr_t)flat, .row = 512}}}, 320, 30, 4, 2, 0}};
    CHECK(cuMemcpy3DBatchAsync(2, in, &failed, 0, stream));
    NEED(failed == SIZE_MAX);
    struct operation within = {{2, {.array = {one, 5, 6, 1}}}, {2, {.array = {two, 1, 2, 3}}},
                               10, 8, 1, 1, 0};
    CHECK(cuMemcpy3DBatchAsync_v2(1, &within, 0, stream));
    struct operation out[2] = {
        {{2, {.array = {two, 1, 2, 3}}}, {1, {.pointer = {.at = found, .row = 20, .layer = 9}}},
         10, 8, 1, 1, 0},
        {{1, {.pointer = {.at = (void *)(uintptr_t)(flat + 512), .row = 512, .layer = 30}}},
         {1, {.pointer = {.at = found + 1000}}}, 320, 2, 1, 2, 0}};
    CHECK(cuMemcpy3DBatchAsync(2, out, NULL, 0, stream));
    CHECK(cuStreamSynchronize(stream));
    printf("boxes %.0f %.0f %.0f %.0f, %.0f %.0f\n", found[0], found[1], found[40], found[19],
           found[1000], found[1000 + 159]);
    within.target.type = 3;
    out[0].width = 0;
    printf("refused %d", cuMemcpy3DBatchAsync_v2(1, &within, 0, stream));
    int status = cuMemcpy3DBatchAsync(2, out, &failed, 0, stream);
    printf(" %d at %zu", status, failed);
    in[1].source.pointer.row = 300;
    status = cuMemcpy3DBatchAsync(2, in, &failed, 0, stream);
    printf(" %d at %zu", status, failed);
    printf(" %d", cuMemcpy3DBatchAsync_v2(1, in, 1, stream));
    printf(" %d\n", cuMemcpy3DBatchAsync_v2(1, in, 0, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuArrayDestroy(one));
    CHECK(cuArrayDestroy(two));
    CHECK(cuMemFree_v2(flat));
    free(values), free(found);
}

static void hints(void *stream) {
    uint64_t ranges[2], plain;
    size_t sizes[2] = {4096, 200000}, first[2] = {0, 1};
    struct location where[2] = {{1, 0}, {2, 0}};
    CHECK(cuMemAlloc_v2(&plain, SIZE));
    CHECK(cuMemAllocManaged(&ranges[0], 4096, 1));
    CHECK(cuMemAllocManaged(&ranges[1], 200000, 1));
    CHECK(cuMemPrefetchBatchAsync(ranges, sizes, 2, where, first, 2, 0, stream));
    CHECK(cuMemDiscardBatchAsync(ranges, sizes, 2, 0, stream));
    CHECK(cuMemDiscardAndPrefetchBatchAsync(ranges, sizes, 2, where, first, 1, 0, stream));
    first[0] = 1;
    printf("refused %d", cuMemPrefetchBatchAsync(ranges, sizes, 2, where, first, 2, 0, stream));
    printf(" %d", cuMemDiscardBatchAsync(ranges, sizes, 2, 1, stream));
    printf(" %d", cuMemDiscardBatchAsync(&plain, sizes, 1, 0, stream));
    printf(" %d\n", cuMemDiscardBatchAsync(ranges, sizes, 2, 0, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(ranges[0]));
    CHECK(cuMemFree_v2(ranges[1]));
    CHECK(cuMemFree_v2(plain));
}

int main(void) {
    void *stream;
    start(0);
    CHECK(cuStreamCreate(&stream, 1));
    pointers(stream);
    boxes(stream);
    hints(stream);
    return 0;
}
