// Plain launches of one frame, issued without Python between them.
//
// The worker hands over the records of a frame. Those at its start that are plain launches of
// functions and streams that it has told us of are launched; everything else is left to it, what
// is malformed too. So this decides nothing, and the worker can do without it.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "generated_layouts.h"
#include "generated_records.h"

#define EXPORT __attribute__((visibility("default")))
#define ABI 1

typedef int launch_kernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **parameters, void **extra);

// The head of a record, as the shim's wire/send.c writes it, and the fields of a launch.
struct launch {
    uint16_t op, flags;
    uint32_t size;
    struct gp_launch_record fields;
};
_Static_assert(sizeof(struct launch) == 8 + sizeof(struct gp_launch_record), "as it travels");

struct entry {
    uint64_t id;  // 0: free
    uint64_t handle;
    unsigned char *bytes;  // of the parameters
    void **pointers;
    uint32_t length;
};

// Open addressing; a power of two, at most half full. Nothing is ever taken out: a stream that
// ended is marked instead, and numbers are never used again.
struct table {
    struct entry *entries;
    size_t room, used;
};

struct launcher {
    launch_kernel *launch;
    struct table functions, streams;
};

static size_t place(const struct table *table, uint64_t id) {
    size_t at = (size_t)(id * 0x9e3779b97f4a7c15u >> 20) & (table->room - 1);
    while (table->entries[at].id != 0 && table->entries[at].id != id) {
        at = (at + 1) & (table->room - 1);
    }
    return at;
}

static struct entry *find(const struct table *table, uint64_t id) {
    if (table->room == 0) return NULL;
    struct entry *entry = &table->entries[place(table, id)];
    return entry->id == id && id != 0 ? entry : NULL;
}

static bool put(struct table *table, struct entry entry) {
    if (entry.id == 0) return false;
    if (2 * (table->used + 1) > table->room) {
        struct table grown = {NULL, table->room ? table->room * 2 : 256, 0};
        grown.entries = calloc(grown.room, sizeof *grown.entries);
        if (grown.entries == NULL) return false;
        for (size_t at = 0; at < table->room; at++) {
            if (table->entries[at].id == 0) continue;
            grown.entries[place(&grown, table->entries[at].id)] = table->entries[at];
            grown.used++;
        }
        free(table->entries);
        *table = grown;
    }
    struct entry *slot = &table->entries[place(table, entry.id)];
    table->used += slot->id == 0;
    *slot = entry;
    return true;
}

EXPORT int gpupool_launcher_abi(void) { return ABI; }

EXPORT struct launcher *gpupool_launcher_new(void *launch) {
    struct launcher *made = calloc(1, sizeof *made);
    if (made != NULL) memcpy(&made->launch, &launch, sizeof launch);
    return made;
}

EXPORT int gpupool_launcher_function(struct launcher *launcher, uint64_t id, uint64_t handle,
                                     unsigned char *bytes, void **pointers, uint32_t length) {
    return put(&launcher->functions, (struct entry){id, handle, bytes, pointers, length});
}

EXPORT int gpupool_launcher_stream(struct launcher *launcher, uint64_t id, uint64_t handle) {
    return put(&launcher->streams, (struct entry){.id = id, .handle = handle, .length = 1});
}

EXPORT void gpupool_launcher_end_stream(struct launcher *launcher, uint64_t id) {
    struct entry *entry = find(&launcher->streams, id);
    if (entry != NULL) entry->length = 0;
}

// Launch what lies at `at`, and so on; return where the first record lies that was not launched,
// or whose launch failed with outcome[0]; outcome[1] launches were made.
EXPORT size_t gpupool_launcher_run(const struct launcher *launcher, const unsigned char *frame,
                                   size_t at, size_t end, int outcome[2]) {
    outcome[0] = outcome[1] = 0;
    while (end - at >= sizeof(struct launch)) {
        struct launch head;
        memcpy(&head, frame + at, sizeof head);
        if (head.op != GP_LAUNCH || head.flags != 0 || head.size & 7) break;
        if (head.size > end - at || head.size < sizeof head) break;
        const struct gp_launch_record *fields = &head.fields;
        const struct entry *function = find(&launcher->functions, fields->function);
        const struct entry *stream = find(&launcher->streams, fields->stream);
        if (function == NULL || stream == NULL || stream->length == 0) break;
        if (fields->bytes != function->length || fields->bytes > head.size - sizeof head) break;
        memcpy(function->bytes, frame + at + sizeof head, fields->bytes);
        const uint32_t *grid = fields->grid, *block = fields->block;
        outcome[0] = launcher->launch((void *)(uintptr_t)function->handle, grid[0], grid[1], grid[2],
                                      block[0], block[1], block[2], fields->shared,
                                      (void *)(uintptr_t)stream->handle, function->pointers, NULL);
        outcome[1]++;
        if (outcome[0] != 0) break;
        at += head.size;
    }
    return at;
}
