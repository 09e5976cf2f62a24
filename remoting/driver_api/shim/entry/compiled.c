// What NVRTC has compiled in this process: it asks the driver before it compiles the same again.
//
// cuDNN compiles its attention anew for each length of a sequence, from one source. Where the driver
// keeps nothing, each token of a generated text costs a compilation.
#define _GNU_SOURCE
#include "compiled.h"
#include "core.h"
#include "hash.h"

#include <stdlib.h>

#define KEPT_MAX 256
#define BYTES_MAX ((size_t)64 << 20)

struct search {
    uint8_t key[32];
};

struct kept {
    uint8_t key[32];
    void *bytes;
    uint32_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept ring[KEPT_MAX];  // the oldest is the first to go
static unsigned next, oldest;       // counters, which wrap with the ring
static size_t bytes_kept;

// A search for machine code names the options of the assembler alone: the same code with other ones, such
// as --use_fast_math, would be found for it. So what it finds is of the text (PTX) that the same thread has
// searched for just before, and of the same input.
enum { BINARY = 1, TEXT = 2 };
static __thread struct {
    bool valid;
    uint8_t input[32], key[32];
} text;

static int open_search(struct search **made, uint32_t kind, const void *input, uint32_t size,
                       const char *options, const char *host, const char *build,
                       uint32_t architecture, uint64_t flags) {
    const char *words[] = {options, host, build};
    struct {
        uint64_t head[4];
        uint8_t input[32], text[32], words[3][32];
    } all = {.head = {kind, size, architecture, flags}};
    bool preceded = text.valid;
    text.valid = false;
    if (made == NULL || input == NULL) return GP_INVALID_VALUE;
    gp_sha256(input, size, all.input);
    for (int at = 0; at < 3; at++) {
        if (words[at] == NULL) return GP_INVALID_VALUE;
        gp_sha256((const uint8_t *)words[at], strlen(words[at]), all.words[at]);
    }
    if (kind != TEXT) {
        preceded = preceded && memcmp(text.input, all.input, sizeof text.input) == 0;
        if (kind != BINARY || !preceded) return GP_NOT_SUPPORTED;
        memcpy(all.text, text.key, sizeof all.text);
    }
    struct search *search = malloc(sizeof *search);
    if (search == NULL) return GP_OUT_OF_MEMORY;
    gp_sha256((const uint8_t *)&all, sizeof all, search->key);
    if (kind == TEXT) {
        memcpy(text.input, all.input, sizeof text.input);
        memcpy(text.key, search->key, sizeof text.key);
        text.valid = true;
    }
    *made = search;
    return GP_SUCCESS;
}

static int close_search(struct search *search) {
    free(search);
    return GP_SUCCESS;
}

static struct kept *find(const struct search *search) {
    for (unsigned at = oldest; at != next; at++) {
        struct kept *one = &ring[at % KEPT_MAX];
        if (memcmp(one->key, search->key, sizeof one->key) == 0) return one;
    }
    return NULL;
}

// A copy, which release gets; another thread may have the kept one dropped meanwhile.
static int look_for(const struct search *search, uint64_t unused, void **bytes, uint32_t *size) {
    (void)unused;
    if (search == NULL || bytes == NULL || size == NULL) return GP_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct kept *found = find(search);
    void *copy = found == NULL ? NULL : malloc(found->size + (size_t)1);
    if (copy != NULL) {
        memcpy(copy, found->bytes, found->size);
        *bytes = copy;
        *size = found->size;
    }
    pthread_mutex_unlock(&lock);
    return copy == NULL ? GP_NOT_FOUND : GP_SUCCESS;
}

static void drop_oldest(void) {
    struct kept *gone = &ring[oldest++ % KEPT_MAX];
    bytes_kept -= gone->size;
    free(gone->bytes);
}

static int keep(const struct search *search, uint64_t unused, const void *bytes, uint32_t size) {
    (void)unused;
    if (search == NULL || bytes == NULL || size > BYTES_MAX) return GP_INVALID_VALUE;
    void *copy = malloc(size + (size_t)1);
    if (copy == NULL) return GP_OUT_OF_MEMORY;
    memcpy(copy, bytes, size);
    pthread_mutex_lock(&lock);
    bool known = find(search) != NULL;
    if (!known) {
        while (next - oldest == KEPT_MAX || bytes_kept + size > BYTES_MAX) drop_oldest();
        struct kept *made = &ring[next++ % KEPT_MAX];
        memcpy(made->key, search->key, sizeof made->key);
        made->bytes = copy;
        made->size = size;
        bytes_kept += size;
    }
    pthread_mutex_unlock(&lock);
    if (known) free(copy);
    return GP_SUCCESS;
}

static int refuse(void) { return GP_NOT_SUPPORTED; }

static void release(void *bytes) { free(bytes); }

// The first word is the table's size. The other functions were never seen to be called.
const gp_slot gp_compiled_table[GP_COMPILED_SLOTS] = {
    [0] = (gp_slot)(uintptr_t)sizeof gp_compiled_table,
    [1] = (gp_slot)open_search, [2] = (gp_slot)close_search, [3] = (gp_slot)look_for,
    [4] = (gp_slot)keep, [5] = (gp_slot)refuse, [6] = (gp_slot)release,
    [7 ... GP_COMPILED_SLOTS - 1] = (gp_slot)refuse,
};
