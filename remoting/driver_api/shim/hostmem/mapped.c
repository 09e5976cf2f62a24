// Memory of the host that kernels see: the writes of the program, and those of kernels.
//
// Writes to small pieces are found by comparison. Larger ones, of which NCCL has megabytes that it
// hardly ever touches, are always readable, but not writable between a launch and the first write
// after it, which thus is noticed. Their bytes lie in a file that is mapped twice, so that what
// kernels wrote can be filled in. System calls that write to closed pages fail, so new memory is open,
// and what the program has written before is opened again when a synchronisation ends.
#define _GNU_SOURCE
#include "mapped.h"
#include "managed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define TOUCHED (3ull << 62)  // in memory, or swapped: of an entry of /proc/self/pagemap
#define BLOCK ((size_t)16 << 10)
#define GROUP 64          // blocks
#define WANTED_TURNS 255
#define WANTED_MAX 4      // groups that a synchronisation opens
#define PIECE ((size_t)256 << 10)
#define LINE 64

struct gp_mapped *gp_mapped_list;
pthread_mutex_t gp_mapped_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t gp_push_lock = PTHREAD_MUTEX_INITIALIZER;
static int tracked_count, wanted_count;
static pid_t owner;

static size_t whole_pages(size_t size) { return (size + 4095) & ~(size_t)4095; }
static size_t blocks_of(const struct gp_mapped *of) { return (of->size + BLOCK - 1) / BLOCK; }

// --- what the program writes ----------------------------------------------------------------------

// With gp_mapped_lock held.
static struct gp_mapped *find_tracked(uint64_t address) {
    struct gp_mapped *at = gp_mapped_list;
    while (at != NULL && (!at->dirty || address - (uintptr_t)at->host >= at->size)) at = at->next;
    return at;
}

static void mark(struct gp_mapped *at, size_t first, size_t end) {
    memset(at->dirty + first, 1, end - first);
    if (first < at->low) at->low = first;
    if (end > at->high) at->high = end;
}

static bool open_blocks(struct gp_mapped *at, size_t first, size_t end, int how) {
    size_t from = first * BLOCK, to = end * BLOCK < at->size ? end * BLOCK : at->size;
    return mprotect(at->host + from, whole_pages(to - from), how) == 0;
}

// Closed memory stays readable, so every fault there is a write.
static bool repair(uint64_t address) {
    if (__atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0 || getpid() != owner) return false;
    bool opened = false;
    pthread_mutex_lock(&gp_mapped_lock);
    struct gp_mapped *at = find_tracked(address);
    if (at != NULL) {
        size_t block = (address - (uintptr_t)at->host) / BLOCK;
        mark(at, block, block + 1);
        opened = open_blocks(at, block, block + 1, PROT_READ | PROT_WRITE);
        if (!opened) {  // the kernel has no room for more pieces of different protection
            mark(at, 0, blocks_of(at));
            opened = open_blocks(at, 0, blocks_of(at), PROT_READ | PROT_WRITE);
        }
    }
    pthread_mutex_unlock(&gp_mapped_lock);
    return opened;
}

// Where the bytes of an answer go that are meant for the program's memory: the kernel writes to no
// protected page. note_filled follows once they are there.
static unsigned char *alias_of(void *target) {
    if (__atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0) return target;
    pthread_mutex_lock(&gp_mapped_lock);
    struct gp_mapped *at = find_tracked((uintptr_t)target);
    unsigned char *alias = at == NULL ? target : at->alias + ((unsigned char *)target - at->host);
    pthread_mutex_unlock(&gp_mapped_lock);
    return alias;
}

static void note_filled(const void *target, size_t size) {
    if (size == 0 || __atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0) return;
    pthread_mutex_lock(&gp_mapped_lock);
    struct gp_mapped *at = find_tracked((uintptr_t)target);
    if (at != NULL) {
        size_t from = (size_t)((const unsigned char *)target - at->host), end = from + size;
        mark(at, from / BLOCK, ((end < at->size ? end : at->size) + BLOCK - 1) / BLOCK);
    }
    pthread_mutex_unlock(&gp_mapped_lock);
}

bool gp_mirror_of(const void *host, size_t size, uint64_t *seen) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED) == 0) return false;
    if (!gp_may_be_pinned((uintptr_t)host)) return false;
    bool found = false;
    pthread_mutex_lock(&gp_mapped_lock);
    for (struct gp_mapped *at = gp_mapped_list; at != NULL && !found; at = at->next) {
        uint64_t offset = (uintptr_t)host - (uintptr_t)at->host;
        found = offset < at->size && size <= at->size - offset &&
                (!gp_several || gp_reaches(at->ordinal));
        if (found) *seen = at->device + offset;
    }
    pthread_mutex_unlock(&gp_mapped_lock);
    return found;
}

bool gp_is_mirror(uint64_t address) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED) == 0) return false;
    bool found = false;
    pthread_mutex_lock(&gp_mapped_lock);
    for (const struct gp_mapped *at = gp_mapped_list; at != NULL && !found; at = at->next) {
        found = address - at->device < at->size;
    }
    pthread_mutex_unlock(&gp_mapped_lock);
    return found;
}

// What goes to the worker at a time: bytes, and a mask behind them unless all are new. gp_push_lock is
// held.
struct piece {
    uint64_t from, size;
    size_t mask, skipped;  // the mask's size; bytes at the start that stay here
    unsigned char bytes[PIECE + PIECE / 8 + 64];
};

static uint64_t find_change(const struct gp_mapped *at, uint64_t low, uint64_t end) {
    while (low < end) {
        size_t part = end - low < BLOCK ? end - low : BLOCK;
        if (memcmp(at->host + low, at->shadow + low, part) != 0) break;
        low += part;
    }
    while (low < end && at->host[low] == at->shadow[low]) low++;
    return low;
}

// Take over into the shadow what comes next between two offsets and is new; gp_mapped_lock is held.
static bool take_piece(struct gp_mapped *at, uint64_t from, uint64_t end, uint64_t gap,
                       struct piece *piece) {
    uint64_t low = find_change(at, from, end);
    if (low >= end) return false;
    if (end - low > PIECE) end = low + PIECE;
    // It goes on until so much is the same.
    uint64_t high = low + 1;
    for (uint64_t look = high; look < end && look - high < gap; look++) {
        if (at->host[look] != at->shadow[look]) high = look + 1;
    }
    // From a whole word on, if a mask must leave out what is not new. The program may write meanwhile.
    uint64_t start = low & ~(uint64_t)7;
    size_t size = high - start;
    memcpy(piece->bytes, at->host + start, size);
    size_t count = gp_find_new(piece->bytes, at->shadow + start, piece->bytes + size, size);
    memcpy(at->shadow + start, piece->bytes, size);
    // Of much that is nearly all new, some happens to be what was there.
    size_t lead = (piece->bytes[size] & ((1u << (low - start)) - 1)) == 0 ? low - start : 0;
    bool all = count == size - lead || (count >= BLOCK && count >= size - size / 16);
    piece->skipped = all ? lead : 0;
    piece->from = start + piece->skipped;
    piece->size = size - piece->skipped;
    piece->mask = all ? 0 : (size + 7) / 8;
    return true;
}

// Whether anything was new.
static bool push_part(struct gp_mapped *at, uint64_t from, uint64_t end) {
    static struct piece piece;
    bool any = false;
    // The more pieces there are, the farther apart they must lie, for each costs a system call.
    for (uint64_t gap = LINE;; gap = gap < PIECE ? gap * 2 : gap) {
        pthread_mutex_lock(&gp_mapped_lock);
        bool changed = take_piece(at, from, end, gap, &piece);
        pthread_mutex_unlock(&gp_mapped_lock);
        if (!changed) return any;
        any = true;
        GP_ROUTE(at->ordinal);
        const unsigned char *bytes = piece.bytes + piece.skipped;
        gp_post_map_write(at->id, piece.from, piece.size, piece.mask > 0, bytes,
                          piece.size + piece.mask);
        from = piece.from + piece.size;
    }
}

// A program that writes somewhere does so again, perhaps by a system call.
static void want(struct gp_mapped *at, size_t group, bool changed) {
    pthread_mutex_lock(&gp_mapped_lock);
    int before = at->wanted[group] > 0;
    at->wanted[group] = changed ? WANTED_TURNS : (unsigned char)(at->wanted[group] - before);
    __atomic_fetch_add(&wanted_count, (at->wanted[group] > 0) - before, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&gp_mapped_lock);
}

void gp_open_wanted(void) {
    if (__atomic_load_n(&wanted_count, __ATOMIC_RELAXED) == 0) return;
    int left = WANTED_MAX;
    pthread_mutex_lock(&gp_mapped_lock);
    for (struct gp_mapped *at = gp_mapped_list; at != NULL; at = at->next) {
        size_t blocks = at->dirty == NULL ? 0 : blocks_of(at);
        for (size_t first = 0; first < blocks && left > 0; first += GROUP) {
            size_t end = first + GROUP < blocks ? first + GROUP : blocks;
            if (at->wanted[first / GROUP] == 0) continue;
            left--;
            // Open already, as they were left by the last synchronisation.
            if (memchr(at->dirty + first, 0, end - first) == NULL) continue;
            if (open_blocks(at, first, end, PROT_READ | PROT_WRITE)) mark(at, first, end);
        }
    }
    pthread_mutex_unlock(&gp_mapped_lock);
}

static void push_tracked(struct gp_mapped *at) {
    pthread_mutex_lock(&gp_mapped_lock);
    size_t low = at->low, high = at->high;
    // Closed before it is compared: what is written from now on is another turn.
    bool closed = low < high && open_blocks(at, low, high, PROT_READ);
    if (low < high) memcpy(at->sent + low, at->dirty + low, high - low);
    if (closed) {
        memset(at->dirty + low, 0, high - low);
        at->low = blocks_of(at);
        at->high = 0;
    }
    pthread_mutex_unlock(&gp_mapped_lock);
    if (closed) gp_catch_faults();
    for (size_t block = low; block < high;) {
        size_t group = block / GROUP, next = (group + 1) * GROUP < high ? (group + 1) * GROUP : high;
        bool open = false, changed = false;
        for (; block < next; block++) {
            uint64_t end = (block + 1) * BLOCK;
            if (!at->sent[block]) continue;
            open = true;
            changed |= push_part(at, block * BLOCK, end < at->size ? end : at->size);
        }
        if (open) want(at, group, changed);
    }
}

bool gp_is_touched(const unsigned char *start, size_t size) {
    static int file = -1;
    static pid_t of;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    uint64_t entries[GP_CHUNK / 4096 + 1], first = (uintptr_t)start / 4096, end = (uintptr_t)start + size;
    size_t bytes = ((end + 4095) / 4096 - first) * sizeof *entries;
    if (bytes > sizeof entries) return true;
    pthread_mutex_lock(&lock);
    if (of != getpid()) {
        if (of != 0 && file >= 0) close(file);  // that of the process which forked
        file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        of = getpid();
    }
    bool known = file >= 0 && pread(file, entries, bytes, (off_t)(first * 8)) == (ssize_t)bytes;
    pthread_mutex_unlock(&lock);
    bool touched = !known;
    for (size_t at = 0; at < bytes / sizeof *entries && !touched; at++) touched = entries[at] & TOUCHED;
    return touched;
}

// Of a large pool, a program uses little at a time.
static void push_untracked(struct gp_mapped *at) {
    bool whole = !at->own || at->size < 2 * GP_CHUNK;
    if (whole) push_part(at, 0, at->size);
    for (uint64_t from = 0; !whole && from < at->size; from += GP_CHUNK) {
        uint64_t size = at->size - from < GP_CHUNK ? at->size - from : GP_CHUNK;
        if (gp_is_touched(at->host + from, size)) push_part(at, from, from + size);
    }
}

void gp_push_mapped(void) {
    static __thread bool pushing;
    if (pushing) return;
    pushing = true;
    gp_managed_release();
    pthread_mutex_lock(&gp_push_lock);
    for (struct gp_mapped *at = gp_mapped_list; at != NULL; at = at->next) {
        if (at->dirty != NULL) {
            push_tracked(at);
        } else if (!at->shared) {
            push_untracked(at);
        }
    }
    pthread_mutex_unlock(&gp_push_lock);
    pushing = false;
}

// Memory that another thread has freed meanwhile is not found any more.
static void take_over(uint64_t id, uint64_t offset, const unsigned char *bytes,
                      const unsigned char *mask, size_t size) {
    pthread_mutex_lock(&gp_mapped_lock);
    for (struct gp_mapped *at = gp_mapped_list; at != NULL; at = at->next) {
        if (at->id != id || at->shared || size > at->size || offset > at->size - size) continue;
        unsigned char *target = (at->alias != NULL ? at->alias : at->host) + offset;
        if (mask != NULL) {
            gp_merge(target, bytes, mask, size);
            gp_merge(at->shadow + offset, bytes, mask, size);
        } else {
            memcpy(target, bytes, size);
            memcpy(at->shadow + offset, bytes, size);
        }
    }
    pthread_mutex_unlock(&gp_mapped_lock);
}

// --- the list -------------------------------------------------------------------------------------

bool gp_track(struct gp_mapped *made, unsigned char *alias) {
    made->alias = alias;
    made->dirty = calloc(blocks_of(made), 1);
    made->sent = calloc(blocks_of(made), 1);
    made->wanted = calloc(blocks_of(made) / GROUP + 1, 1);
    made->low = blocks_of(made);
    if (made->dirty == NULL || made->sent == NULL || made->wanted == NULL) return false;
    mark(made, 0, blocks_of(made));
    return true;
}

void gp_mapped_enter(struct gp_mapped *made) {
    pthread_mutex_lock(&gp_mapped_lock);
    made->next = gp_mapped_list;
    gp_mapped_list = made;
    pthread_mutex_unlock(&gp_mapped_lock);
    __atomic_fetch_add(&gp_mapped_count, 1, __ATOMIC_RELAXED);
    if (made->dirty == NULL) return;
    owner = getpid();
    __atomic_fetch_add(&tracked_count, 1, __ATOMIC_RELAXED);
}

struct gp_mapped *gp_mapped_take(const void *host) {
    pthread_mutex_lock(&gp_push_lock);
    pthread_mutex_lock(&gp_mapped_lock);
    struct gp_mapped **at = &gp_mapped_list;
    while (*at != NULL && (*at)->host != host) at = &(*at)->next;
    struct gp_mapped *found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&gp_mapped_lock);
    pthread_mutex_unlock(&gp_push_lock);
    if (found == NULL) return NULL;
    __atomic_fetch_sub(&gp_mapped_count, 1, __ATOMIC_RELAXED);
    if (found->dirty == NULL) return found;
    __atomic_fetch_sub(&tracked_count, 1, __ATOMIC_RELAXED);
    for (size_t block = 0; block < blocks_of(found); block += GROUP) {
        if (found->wanted[block / GROUP]) __atomic_fetch_sub(&wanted_count, 1, __ATOMIC_RELAXED);
    }
    return found;
}

void gp_mapped_discard(struct gp_mapped *of) {
    if (of->alias != NULL) munmap(of->alias, of->size);
    free(of->dirty);
    free(of->sent);
    free(of->wanted);
    free(of->shadow);
    free(of);
}

GP_AT_LOAD register_hooks(void) {
    gp_hooks.push_mapped = gp_push_mapped;
    gp_hooks.mapped_arrived = take_over;
    gp_hooks.mapped_alias = alias_of;
    gp_hooks.mapped_filled = note_filled;
    gp_hooks.mapped_fault = repair;
}
