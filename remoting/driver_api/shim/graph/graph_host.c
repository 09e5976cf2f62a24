// The host's memory in graphs. A node that copies it names pinned memory of the worker instead, a
// slot. What the node reads goes there before each launch; what it writes comes from there before
// a synchronisation that covers the launch ends. Nodes of one graph that name the same memory
// share a slot, so that they see each other's bytes. A program may not write what a launch under way
// reads, with CUDA as here, so a slot may be filled while an earlier launch still runs.
#include "graph.h"

#include <stdlib.h>

#define WHOLE_MAX (4u << 20)  // pinned allocations up to this size become slots as a whole
#define INLINE_MAX 4096       // bytes that travel within a record
#define SLOT_MAX (256ull << 20)

static uint64_t span(const struct gp_staged *one) {
    return (one->depth - 1) * one->slice + (one->height - 1) * one->pitch + one->width;
}

void gp_drop_slot(struct gp_slot *slot) {
    if (__atomic_sub_fetch(&slot->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    GP_ROUTE(slot->device);
    if (gp_ready() == GP_SUCCESS) gp_post_slot_free(slot->id);
    free(slot);
}

static struct gp_slot *take_slot(struct gp_slot *slot) {
    __atomic_add_fetch(&slot->references, 1, __ATOMIC_ACQ_REL);
    return slot;
}

static bool overlaps(const struct gp_staged *one, uint64_t start, uint64_t size) {
    return one->address < start + size && start < one->address + span(one);
}

static int make_slot(uint64_t start, uint64_t size, struct gp_slot **made) {
    struct gp_range range;
    uint64_t last = start + size;
    if (gp_find_range(start, &range) && range.kind == GP_HOST_MEMORY && range.size <= WHOLE_MAX &&
        last <= range.start + range.size) {
        start = range.start;
        size = range.size;
    }
    if (size > SLOT_MAX) return GP_OUT_OF_MEMORY;
    struct gp_slot *slot = calloc(1, sizeof *slot);
    if (slot == NULL) return GP_OUT_OF_MEMORY;
    *slot = (struct gp_slot){gp_new_id(), start, size, 1, gp_current_device()};
    *made = slot;
    return gp_post_slot_make(slot->id, size);
}

// Find memory of the worker for the host's side of a copy; the entry holds a reference to it.
int gp_stage(struct gp_handle *of, const struct gp_box *box, const struct gp_copy_3d *copy, bool out,
             struct gp_staged *staged) {
    struct gp_graph *graph = GP_GRAPH_OF(of);
    if (graph->conditional) return GP_NOT_SUPPORTED;  // it may not run, and would bring old bytes
    if (box->host == NULL || box->level != 0) return GP_INVALID_VALUE;
    size_t pitch = box->pitch ? box->pitch : copy->width + box->x;
    size_t rows = box->height ? box->height : copy->height + box->y;
    if (pitch < copy->width + box->x || copy->height * copy->depth > GP_ROWS_MAX) {
        return GP_INVALID_VALUE;
    }
    *staged = (struct gp_staged){.address = (uint64_t)(uintptr_t)box->host +
                                            box->z * pitch * rows + box->y * pitch + box->x,
                                 .pitch = pitch, .slice = pitch * rows, .width = copy->width,
                                 .height = copy->height, .depth = copy->depth, .out = out};
    uint64_t start = staged->address, size = span(staged);
    pthread_mutex_lock(&gp_graph_lock);
    int status = GP_SUCCESS;
    for (unsigned at = 0; at < graph->staged.count && staged->slot == NULL; at++) {
        const struct gp_staged *one = &graph->staged.items[at];
        if (start >= one->slot->start && start + size <= one->slot->start + one->slot->size) {
            staged->slot = take_slot(one->slot);
        } else if (overlaps(one, start, size) && (out || one->out)) {
            status = GP_NOT_SUPPORTED;  // two slots could not show each other's bytes
        }
    }
    if (staged->slot != NULL) {
        status = GP_SUCCESS;
    } else if (status == GP_SUCCESS) {
        status = make_slot(start, size, &staged->slot);
    }
    pthread_mutex_unlock(&gp_graph_lock);
    return status;
}

// --- lists of entries -----------------------------------------------------------------------------

int gp_keep_staged(struct gp_staged_list *list, const struct gp_staged *staged) {
    void *grown = gp_grown(list->items, &list->room, list->count, sizeof *list->items);
    if (grown == NULL) return GP_OUT_OF_MEMORY;
    list->items = grown;
    struct gp_staged *kept = &list->items[list->count++];
    *kept = *staged;
    if (kept->serial == 0) kept->serial = gp_new_id();
    return GP_SUCCESS;
}

// Tell an executable's entries the nodes that have become known since it was made.
void gp_match_staged(struct gp_staged_list *list, struct gp_handle *graph) {
    const struct gp_staged_list *known = &GP_GRAPH_OF(graph)->staged;
    for (unsigned at = 0; at < list->count; at++) {
        struct gp_staged *one = &list->items[at];
        for (unsigned other = 0; one->node == NULL && other < known->count; other++) {
            if (known->items[other].serial == one->serial) one->node = known->items[other].node;
        }
    }
}

// Append all entries, with references of their own; as those of node unless it is NULL.
int gp_copy_staged(struct gp_staged_list *to, const struct gp_staged_list *from,
                   struct gp_handle *node) {
    for (unsigned at = 0; at < from->count; at++) {
        struct gp_staged one = from->items[at];
        if (node != NULL) one.node = node;
        GP_CHECK(gp_keep_staged(to, &one));
        take_slot(one.slot);
    }
    return GP_SUCCESS;
}

// Take out the entries of a node, or all when it is NULL, and then the list itself.
void gp_forget_staged(struct gp_staged_list *list, struct gp_handle *node) {
    unsigned kept = 0;
    for (unsigned at = 0; at < list->count; at++) {
        if (node != NULL && list->items[at].node != node) {
            list->items[kept++] = list->items[at];
        } else {
            gp_drop_slot(list->items[at].slot);
        }
    }
    list->count = kept;
    if (node != NULL) return;
    free(list->items);
    *list = (struct gp_staged_list){0};
}

// --- launches -------------------------------------------------------------------------------------

// A copy as pieces that lie together: what(at, offset in the slot, size) for each.
struct pieces {
    size_t size, rows, slices;
};

static struct pieces pieces_of(const struct gp_staged *one) {
    bool whole = one->pitch == one->width || one->height == 1;
    size_t plane = one->width * one->height;
    if (whole && (one->depth == 1 || one->slice == plane)) {
        return (struct pieces){plane * one->depth, 1, 1};
    }
    if (whole) return (struct pieces){plane, 1, one->depth};
    return (struct pieces){one->width, one->height, one->depth};
}

static uint64_t piece_at(const struct gp_staged *one, size_t row, size_t slice) {
    return one->address + slice * one->slice + row * one->pitch;
}

static int send_piece(const struct gp_slot *slot, uint64_t address, size_t size) {
    uint64_t offset = address - slot->start;
    const void *bytes = (const void *)(uintptr_t)address;
    if (size > INLINE_MAX) return gp_post_slot_write(slot->id, offset, size, bytes, size);
    unsigned char *at = gp_open_slot_write(slot->id, offset, size);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, bytes, size);
    gp_close();
    return GP_SUCCESS;
}

bool gp_staged_is_mapped(const struct gp_staged_list *list) {
    uint64_t seen;
    bool found = false;
    for (unsigned at = 0; at < list->count && !found; at++) {
        const struct gp_staged *one = &list->items[at];
        found = gp_mirror_of((const void *)(uintptr_t)one->address, span(one), &seen);
    }
    return found;
}

// Whether anything is copied from the host's memory.
bool gp_staged_reads(const struct gp_staged_list *list) {
    bool found = false;
    for (unsigned at = 0; at < list->count; at++) found |= !list->items[at].out && !list->items[at].disabled;
    return found;
}

int gp_send_staged(const struct gp_staged_list *list) {
    for (unsigned at = 0; at < list->count; at++) {
        const struct gp_staged *one = &list->items[at];
        if (one->out || one->disabled) continue;
        // What the GPU still writes there has to be here before it goes there.
        const void *start = (const void *)(uintptr_t)one->address;
        GP_CHECK(gp_drain(start, span(one)));
        struct pieces pieces = pieces_of(one);
        for (size_t slice = 0; slice < pieces.slices; slice++) {
            for (size_t row = 0; row < pieces.rows; row++) {
                GP_CHECK(send_piece(one->slot, piece_at(one, row, slice), pieces.size));
            }
        }
    }
    return GP_SUCCESS;
}

#define PIECES_AT_ONCE 4096
#define EARLY_SIZE_MAX (256ull << 20)  // half of what may rest in the worker's memory

// What copies with host nodes behind them bring. All of their pieces have to be known before a launch, so
// there is a limit.
struct early_sum {
    size_t count, size;
};

static void add_early(struct early_sum *sum, const struct gp_staged *one) {
    struct pieces pieces = pieces_of(one);
    sum->count += pieces.rows * pieces.slices;
    sum->size += pieces.size * pieces.rows * pieces.slices;
}

static int check_early(const struct early_sum *sum) {
    return sum->count > PIECES_AT_ONCE || sum->size > EARLY_SIZE_MAX ? GP_NOT_SUPPORTED : GP_SUCCESS;
}

// Note which copies to the host have host nodes behind them.
int gp_mark_early(struct gp_staged_list *list, const struct gp_early_list *early) {
    struct early_sum sum = {0};
    for (unsigned at = 0; at < early->count; at++) {
        unsigned entry = early->items[at].entry;
        if (entry >= list->count) return GP_UNKNOWN;
        list->items[entry].early = entry + 1;
    }
    for (unsigned at = 0; at < list->count; at++) {
        if (list->items[at].early) add_early(&sum, &list->items[at]);
    }
    return check_early(&sum);
}

static bool in_rows(const struct gp_staged *one) {
    struct pieces pieces = pieces_of(one);
    return pieces.rows * pieces.slices > 1;
}

// Check what a node of an executable is to copy from now on: CUDA wants one dimension of it, and of what was
// there. The worker's refusal would come behind launches that count on it.
int gp_check_staged(const struct gp_staged_list *list, const struct gp_handle *node,
                    const struct gp_packed *packed) {
    struct early_sum sum = {0};
    bool rows = false, early = false;
    for (unsigned at = 0; at < list->count; at++) {
        const struct gp_staged *one = &list->items[at];
        if (one->node != node) {
            if (one->early) add_early(&sum, one);
            continue;
        }
        rows |= in_rows(one);
        early |= one->early > 0;
    }
    for (unsigned at = 0; at < packed->staged_count; at++) {
        const struct gp_staged *one = &packed->staged[at];
        rows |= in_rows(one);
        if (early && one->out) add_early(&sum, one);
    }
    return rows ? GP_INVALID_VALUE : check_early(&sum);
}

// What the worker is told of copies to the host: for each piece, where it lies in its slot, and the number of
// the download; and of the early ones, which copy it is of.
struct asked {
    uint64_t *words;
    size_t count;
    uint64_t exec, stream;
    bool early;
};

static int tell(struct asked *asked) {
    size_t size = asked->count * (asked->early ? 40 : 32);
    unsigned char *at = asked->early ? gp_open_slot_early(asked->exec, asked->count)
                                     : gp_open_slot_read(asked->exec, asked->stream, asked->count);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, asked->words, size);
    gp_close();
    asked->count = 0;
    return GP_SUCCESS;
}

static int ask_for(struct asked *asked, const struct gp_staged *one) {
    struct pieces pieces = pieces_of(one);
    for (size_t piece = 0; piece < pieces.rows * pieces.slices; piece++) {
        if (asked->count == PIECES_AT_ONCE) return GP_NOT_SUPPORTED;  // of early ones, see check_early
        uint64_t address = piece_at(one, piece % pieces.rows, piece / pieces.rows);
        void *target = (void *)(uintptr_t)address;
        uint64_t id = gp_expect_download(target, pieces.size, asked->stream);
        if (id == 0) {
            // The worker has no room for more, so those before them are waited for.
            if (!asked->early) GP_CHECK(tell(asked));
            GP_CHECK(gp_synchronize(GP_DRAIN, 0));
            id = gp_expect_download(target, pieces.size, asked->stream);
        }
        if (id == 0) return GP_OUT_OF_MEMORY;
        uint64_t words[5] = {one->slot->id, address - one->slot->start, pieces.size, id, one->early - 1};
        size_t each = asked->early ? 5 : 4;
        memcpy(asked->words + asked->count * each, words, each * 8);
        if (++asked->count == PIECES_AT_ONCE && !asked->early) GP_CHECK(tell(asked));
    }
    return GP_SUCCESS;
}

// Say before a launch which bytes host nodes need, and behind it which others are to come back; without
// any, that slots were in use. Bytes that could not be asked for in front come behind as well.
int gp_expect_staged(const struct gp_staged_list *list, uint64_t stream, struct gp_handle *exec, bool early) {
    struct asked asked = {malloc(PIECES_AT_ONCE * 40), 0, exec->id, stream, early};
    if (asked.words == NULL) return GP_OUT_OF_MEMORY;
    int status = GP_SUCCESS;
    for (unsigned at = 0; at < list->count && status == GP_SUCCESS; at++) {
        const struct gp_staged *one = &list->items[at];
        if (one->out && !one->disabled && (one->early > 0) == early) status = ask_for(&asked, one);
    }
    int told = tell(&asked);
    free(asked.words);
    return status == GP_SUCCESS ? told : status;
}
