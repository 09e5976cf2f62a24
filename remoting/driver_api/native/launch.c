// The frequent records of one frame, issued without Python between them: launches, fills, small copies,
// events that are made, recorded, waited for and destroyed, graphs, host functions that no stream waits for;
// and waits that are over soon.
//
// The worker hands over the records of a frame. Those at its start that are of these kinds, and name
// functions, streams and events that it has told us of, are issued; everything else is left to it, what
// is malformed too. So this decides nothing, and the worker can do without it.
#include "launcher.h"

#include <stdlib.h>
#include <string.h>

#include "generated_layouts.h"
#include "generated_records.h"

#define ABI 7
#define ASKED 1        // in the flags of a record: somebody waits for its answer
#define COOPERATIVE 2  // in the flags of a launch
#define ATTRIBUTES_MAX 32
#define ATTRIBUTE_SIZE 72

// Of a launch, with its fields.
struct launch {
    struct head head;
    struct gp_launch_record fields;
};
_Static_assert(sizeof(struct launch) == 8 + sizeof(struct gp_launch_record), "as it travels");

static size_t place(const struct table *table, uint64_t id) {
    size_t at = (size_t)(id * 0x9e3779b97f4a7c15u >> 20) & (table->room - 1);
    while (table->entries[at].id != 0 && table->entries[at].id != id) {
        at = (at + 1) & (table->room - 1);
    }
    return at;
}

struct entry *find(const struct table *table, uint64_t id) {
    if (table->room == 0) return NULL;
    struct entry *entry = &table->entries[place(table, id)];
    return entry->id == id && id != 0 ? entry : NULL;
}

bool keep_entry(struct table *table, struct entry entry) {
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

// The entries behind it move up, so that each is still found from its own place on.
void forget_entry(struct table *table, uint64_t id) {
    struct entry *found = find(table, id);
    if (found == NULL) return;
    size_t mask = table->room - 1, hole = (size_t)(found - table->entries), at = hole;
    table->entries[hole].id = 0;
    table->used--;
    for (at = (at + 1) & mask; table->entries[at].id != 0; at = (at + 1) & mask) {
        size_t home = (size_t)(table->entries[at].id * 0x9e3779b97f4a7c15u >> 20) & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        table->entries[hole] = table->entries[at];
        table->entries[at].id = 0;
        hole = at;
    }
}

EXPORT int gpupool_launcher_abi(void) { return ABI; }

EXPORT struct launcher *gpupool_launcher_new(void *const *called) {
    struct launcher *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    memcpy(&made->driver, called, sizeof made->driver);
    made->connection = -1;
    made->plain = true;
    return made;
}

EXPORT int gpupool_launcher_function(struct launcher *launcher, uint64_t id, uint64_t handle,
                                     unsigned char *bytes, void **pointers, uint32_t length, int kernel) {
    return keep_entry(&launcher->functions, (struct entry){.id = id, .handle = handle, .bytes = bytes,
                                                    .pointers = pointers, .length = length,
                                                    .kernel = kernel != 0});
}

// The table of a kind of objects, as client_state.py names it; NULL for kinds that no record here names.
static struct table *table_of(struct launcher *launcher, int kind) {
    switch (kind) {
        case 's': return &launcher->streams;
        case 'e': return &launcher->events;
        case 'x': return &launcher->executables;
        case 'n': return &launcher->nodes;
        case 'c': return &launcher->contexts;
        default: return NULL;
    }
}

EXPORT int gpupool_launcher_keep(struct launcher *launcher, int kind, uint64_t id, uint64_t handle) {
    struct table *table = table_of(launcher, kind);
    return table != NULL && keep_entry(table, (struct entry){.id = id, .handle = handle});
}

EXPORT void gpupool_launcher_end(struct launcher *launcher, int kind, uint64_t id) {
    struct table *table = table_of(launcher, kind);
    if (table != NULL) forget_entry(table, id);
}

EXPORT void gpupool_launcher_select(struct launcher *launcher, uint64_t device, int plain) {
    launcher->device = device;
    launcher->plain = plain != 0;
}

EXPORT void gpupool_launcher_share(struct launcher *launcher, struct shared *shared, int connection) {
    launcher->shared = shared;
    launcher->connection = connection;
}

EXPORT void gpupool_launcher_gate(struct launcher *launcher, struct gate *gates) {
    launcher->gates = gates;
}

EXPORT void gpupool_launcher_tell(struct launcher *launcher, struct turns *turns) {
    launcher->turns = turns;
}

bool get(const struct table *table, uint64_t id, void **handle) {
    const struct entry *entry = find(table, id);
    if (entry == NULL) return false;
    *handle = (void *)(uintptr_t)entry->handle;
    return true;
}

static bool issue_launch(const struct launcher *launcher, const unsigned char *at, struct head head,
                         int *status) {
    const struct driver *driver = &launcher->driver;
    struct gp_launch_record fields;
    uint64_t count = 0;
    size_t used = sizeof fields;
    if (head.size - sizeof head < sizeof fields) return false;
    memcpy(&fields, at, sizeof fields);
    if (head.op == GP_LAUNCH_EX) {
        if (head.size - sizeof head < sizeof fields + 8) return false;
        memcpy(&count, at + sizeof fields, 8);
        if (count == 0 || count > ATTRIBUTES_MAX || driver->launch_ex == NULL) return false;
        used += 8 + count * ATTRIBUTE_SIZE;
    }
    if (head.flags == COOPERATIVE && (head.op != GP_LAUNCH || driver->launch_together == NULL)) return false;
    const struct entry *function = find(&launcher->functions, fields.function);
    void *stream;
    if (function == NULL || !get(&launcher->streams, fields.stream, &stream)) return false;
    if (used > head.size - sizeof head) return false;
    if (fields.bytes != function->length || fields.bytes > head.size - sizeof head - used) return false;
    memcpy(function->bytes, at + used, fields.bytes);
    void *handle = (void *)(uintptr_t)function->handle;
    const uint32_t *grid = fields.grid, *block = fields.block;
    if (count > 0) {
        uint64_t attributes[ATTRIBUTES_MAX * ATTRIBUTE_SIZE / 8];
        memcpy(attributes, at + sizeof fields + 8, count * ATTRIBUTE_SIZE);
        struct config config = {.shared = fields.shared, .stream = stream, .attributes = attributes,
                                .count = (uint32_t)count};
        memcpy(config.grid, grid, sizeof config.grid);
        memcpy(config.block, block, sizeof config.block);
        *status = driver->launch_ex(&config, handle, function->pointers, NULL);
    } else if (head.flags == COOPERATIVE) {
        *status = driver->launch_together(handle, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                          fields.shared, stream, function->pointers);
    } else {
        *status = driver->launch(handle, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                 fields.shared, stream, function->pointers, NULL);
    }
    return true;
}

static bool issue_other(struct launcher *launcher, const unsigned char *at, struct head head,
                        int *status) {
    const struct driver *driver = &launcher->driver;
    uint64_t word[4] = {0};
    size_t size = head.size - sizeof head;
    memcpy(word, at, size < sizeof word ? size : sizeof word);
    void *stream, *event;
    switch (head.op) {
        case GP_RECORD_EVENT:
            if (size < 24 || word[2] != 0 || driver->record == NULL) return false;
            if (!get(&launcher->events, word[0], &event)) return false;
            if (!get(&launcher->streams, word[1], &stream)) return false;
            *status = driver->record(event, stream);
            return true;
        case GP_WAIT_EVENT:
            if (size < 24 || word[2] > UINT32_MAX || driver->wait == NULL) return false;
            if (!get(&launcher->streams, word[0], &stream)) return false;
            if (!get(&launcher->events, word[1], &event)) return false;
            *status = driver->wait(stream, event, (unsigned)word[2]);
            return true;
        case GP_COPY_IN:  // with its bytes in the record, and not behind the frame
            if (size < 24 || word[1] == 0 || word[1] > size - 24 || driver->copy_in == NULL) return false;
            if (!get(&launcher->streams, word[2], &stream)) return false;
            *status = driver->copy_in(word[0], at + 24, word[1], stream);
            return true;
        case GP_CALL_cuMemcpyDtoDAsync_v2:
            if (size < 32 || driver->copy == NULL) return false;
            if (!get(&launcher->streams, word[3], &stream)) return false;
            *status = driver->copy(word[0], word[1], word[2], stream);
            return true;
        case GP_CALL_cuMemsetD8Async:
            if (size < 32 || word[1] > UINT8_MAX || driver->fill8 == NULL) return false;
            if (!get(&launcher->streams, word[3], &stream)) return false;
            *status = driver->fill8(word[0], (unsigned char)word[1], word[2], stream);
            return true;
        case GP_CALL_cuMemsetD32Async:
            if (size < 32 || word[1] > UINT32_MAX || driver->fill32 == NULL) return false;
            if (!get(&launcher->streams, word[3], &stream)) return false;
            *status = driver->fill32(word[0], (unsigned)word[1], word[2], stream);
            return true;
        case GP_CALL_cuEventCreate:
        case GP_CALL_cuEventDestroy_v2: return issue_event(launcher, at, head, status);
        case GP_GRAPH_SET:
        case GP_GRAPH_LAUNCH: return issue_graph(launcher, at, head, status);
        case GP_DOWNLOAD: return issue_download(launcher, at, head, status);
        case GP_HOST_CALL: return issue_host_call(launcher, at, head, status);
        default: return false;
    }
}

// Whether the lease has the turn on the current device. Others read the count now and then.
static inline bool may_pass(const struct launcher *launcher) {
    if (launcher->gates == NULL) return true;
    struct gate *gate = &launcher->gates[launcher->device];
    if (__atomic_load_n(&gate->closed, __ATOMIC_ACQUIRE) != 0) return false;
    __atomic_store_n(&gate->passed, gate->passed + 1, __ATOMIC_RELAXED);
    return true;
}

// Issue what lies at `at`, and so on; return where the first record lies that was not issued, or whose
// call failed with outcome->status; or what is behind one that waited, and is over. `alone`: no other
// frame has come.
EXPORT size_t gpupool_launcher_run(struct launcher *launcher, const unsigned char *frame,
                                   size_t at, size_t end, int alone, struct outcome *outcome) {
    *outcome = (struct outcome){0};
    while (end - at >= sizeof(struct head)) {
        struct head head;
        memcpy(&head, frame + at, sizeof head);
        if (head.size & 7 || head.size > end - at || head.size < sizeof head) break;
        const unsigned char *fields = frame + at + sizeof head;
        if (head.flags == ASKED) {
            bool last = alone && head.size == end - at;
            if (!wait_soon(launcher, fields, head, last, outcome)) break;
            outcome->issued++;
            return at + head.size;
        }
        if (!may_pass(launcher)) break;
        bool launches = head.op == GP_LAUNCH || head.op == GP_LAUNCH_EX;
        if (head.flags != 0 && !(launches && head.flags == COOPERATIVE)) break;
        bool issued = launches ? issue_launch(launcher, fields, head, &outcome->status)
                               : issue_other(launcher, fields, head, &outcome->status);
        if (!issued) break;
        outcome->issued++;
        if (outcome->status != 0) break;
        at += head.size;
    }
    return at;
}
