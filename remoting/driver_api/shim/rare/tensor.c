// Tensor maps: 128 bytes that the server's driver makes of a description, and kernels read.
#include "core.h"

#include <stdlib.h>

#define RANK_MAX 5
#define MAP_SIZE 128
#define HEAD 8  // words of every description, before those of its kind

enum { TILED, IM2COL, REPLACE, IM2COL_WIDE };  // as queries.py in the worker counts them

// Maps that the driver has made, by their descriptions: the same description gives the same bytes, and a
// program that trains describes the same tensors at each step. A place is used again by whatever comes
// to it next.
#define KEPT_COUNT 1024
#define WORDS_MAX (HEAD + 2 + 5 * RANK_MAX)

struct kept {
    int server, place, count;  // 0: none
    uint64_t words[WORDS_MAX];
    unsigned char map[MAP_SIZE];
};

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept;

static size_t place_of(const uint64_t *words, int count) {
    uint64_t hash = (uint64_t)count;
    for (int at = 0; at < count; at++) hash = (hash ^ words[at]) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
    return (size_t)(hash >> 32) % KEPT_COUNT;
}

static bool find_kept(void *map, const struct kept *wanted, size_t at) {
    pthread_mutex_lock(&kept_lock);
    const struct kept *found = kept == NULL ? NULL : &kept[at];
    bool same = found != NULL && found->count == wanted->count && found->server == wanted->server &&
                found->place == wanted->place &&
                memcmp(found->words, wanted->words, sizeof found->words) == 0;
    if (same) memcpy(map, found->map, MAP_SIZE);
    pthread_mutex_unlock(&kept_lock);
    return same;
}

static void keep(const struct kept *made, size_t at) {
    pthread_mutex_lock(&kept_lock);
    if (kept == NULL) kept = calloc(KEPT_COUNT, sizeof *kept);
    if (kept != NULL) kept[at] = *made;
    pthread_mutex_unlock(&kept_lock);
}

static int encode(void *map, const uint64_t *words, int count) {
    GP_CHECK(gp_ready());
    if (map == NULL || ((uintptr_t)map & 63) != 0) return GP_INVALID_VALUE;
    struct kept made = {.server = gp_here(), .place = gp_place(), .count = count};
    memcpy(made.words, words, (size_t)count * sizeof *words);
    size_t at = place_of(words, count);
    if (find_kept(map, &made, at)) return GP_SUCCESS;
    struct gp_request request = {.body = map, .capacity = MAP_SIZE};
    GP_CHECK(gp_exchange_tensor_map(&request, words, (size_t)count * sizeof *words));
    memcpy(made.map, map, MAP_SIZE);
    keep(&made, at);
    return GP_SUCCESS;
}

static void describe(uint64_t words[HEAD], int kind, int type, unsigned rank, const void *address,
                     int interleave, int swizzle, int promotion, int fill) {
    const uint64_t head[HEAD] = {(uint64_t)kind,       (uint64_t)type,    rank,
                                 (uint64_t)(uintptr_t)address,            (uint64_t)interleave,
                                 (uint64_t)swizzle,    (uint64_t)promotion, (uint64_t)fill};
    memcpy(words, head, sizeof head);
}

// Sizes and strides of all dimensions, of which the first has no stride.
static void shape(uint64_t words[2 * RANK_MAX], unsigned rank, const uint64_t *sizes,
                  const uint64_t *strides) {
    for (unsigned at = 0; at < rank; at++) {
        words[at] = sizes[at];
        words[RANK_MAX + at] = at + 1 < rank ? strides[at] : 0;
    }
}

GP_EXPORT int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address,
                                     const uint64_t *sizes, const uint64_t *strides,
                                     const uint32_t *box, const uint32_t *steps, int interleave,
                                     int swizzle, int promotion, int fill) {
    if (rank == 0 || rank > RANK_MAX || !sizes || (rank > 1 && !strides) || !box || !steps) {
        return GP_INVALID_VALUE;
    }
    uint64_t words[HEAD + 4 * RANK_MAX] = {0}, *own = words + HEAD;
    describe(words, TILED, type, rank, address, interleave, swizzle, promotion, fill);
    shape(own, rank, sizes, strides);
    for (unsigned at = 0; at < rank; at++) {
        own[2 * RANK_MAX + at] = box[at];
        own[3 * RANK_MAX + at] = steps[at];
    }
    return encode(map, words, HEAD + 4 * RANK_MAX);
}

GP_EXPORT int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, void *address,
                                      const uint64_t *sizes, const uint64_t *strides,
                                      const int *lower, const int *upper, unsigned channels,
                                      unsigned pixels, const uint32_t *steps, int interleave,
                                      int swizzle, int promotion, int fill) {
    if (rank < 3 || rank > RANK_MAX || !sizes || !strides || !lower || !upper || !steps) {
        return GP_INVALID_VALUE;
    }
    uint64_t words[HEAD + 2 + 5 * RANK_MAX] = {0}, *own = words + HEAD + 2;
    describe(words, IM2COL, type, rank, address, interleave, swizzle, promotion, fill);
    words[HEAD] = channels;
    words[HEAD + 1] = pixels;
    shape(own, rank, sizes, strides);
    for (unsigned at = 0; at < rank; at++) {
        own[2 * RANK_MAX + at] = at + 2 < rank ? (uint64_t)(int64_t)lower[at] : 0;
        own[3 * RANK_MAX + at] = at + 2 < rank ? (uint64_t)(int64_t)upper[at] : 0;
        own[4 * RANK_MAX + at] = steps[at];
    }
    return encode(map, words, HEAD + 2 + 5 * RANK_MAX);
}

GP_EXPORT int cuTensorMapEncodeIm2colWide(void *map, int type, unsigned rank, void *address,
                                          const uint64_t *sizes, const uint64_t *strides,
                                          int lower, int upper, unsigned channels, unsigned pixels,
                                          const uint32_t *steps, int interleave, int mode,
                                          int swizzle, int promotion, int fill) {
    if (rank < 3 || rank > RANK_MAX || !sizes || !strides || !steps) return GP_INVALID_VALUE;
    uint64_t words[HEAD + 5 + 3 * RANK_MAX] = {0}, *own = words + HEAD + 5;
    describe(words, IM2COL_WIDE, type, rank, address, interleave, swizzle, promotion, fill);
    words[HEAD] = channels;
    words[HEAD + 1] = pixels;
    words[HEAD + 2] = (uint64_t)mode;
    words[HEAD + 3] = (uint64_t)(int64_t)lower;
    words[HEAD + 4] = (uint64_t)(int64_t)upper;
    shape(own, rank, sizes, strides);
    for (unsigned at = 0; at < rank; at++) own[2 * RANK_MAX + at] = steps[at];
    return encode(map, words, HEAD + 5 + 3 * RANK_MAX);
}

GP_EXPORT int cuTensorMapReplaceAddress(void *map, void *address) {
    GP_CHECK(gp_ready());
    if (map == NULL) return GP_INVALID_VALUE;
    uint64_t words[2 + MAP_SIZE / 8] = {REPLACE, (uint64_t)(uintptr_t)address};
    memcpy(words + 2, map, MAP_SIZE);
    return encode(map, words, 2 + MAP_SIZE / 8);
}
