// Pinned memory of the host: allocation, registration, and what kernels see of it.
//
// The worker holds a mirror, which kernels use. What the program writes here goes there before
// the next launch; what kernels wrote comes back before a synchronisation ends. Programs keep
// addresses of such memory in structures on the GPU, where nobody can translate them, so the mirror
// lies at the same address as the memory itself wherever that is free in both processes.
//
// Writes to small pieces are found by comparison. Larger ones, of which NCCL has megabytes that it
// hardly ever touches, are always readable, but not writable between a launch and the first write
// after it, which thus is noticed. Their bytes lie in a file that is mapped twice, so that what
// kernels wrote can be filled in. System calls that write to closed pages fail, so new memory is open,
// and what the program has written before is opened again when a synchronisation ends.
#define _GNU_SOURCE
#include "ipc.h"
#include "managed.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define MAPPABLE 2                    // CU_MEMHOSTALLOC_DEVICEMAP
#define SAME_ADDRESS 0x40000000u      // in the flags of a range: mapped, and needs no translation
// Mirrors are made when memory is, of pieces up to this size, so much and so many of them; all others
// when a call names their address.
#define EAGER_MAX ((size_t)8 << 20)
#define EAGER_TOTAL_MAX ((size_t)64 << 20)
#define EAGER_COUNT_MAX 256
#define TRACKED_MIN ((size_t)16 << 10)
#define BLOCK ((size_t)16 << 10)
#define GROUP 64          // blocks
#define WANTED_TURNS 255
#define WANTED_MAX 4      // groups that a synchronisation opens
#define PIECE ((size_t)256 << 10)
#define LINE 64
#define ATTEMPTS 4

// Addresses from 2 to 8 TiB, which Linux gives to nobody who asks for none in particular, and where
// no server of a lease has the memory of its devices (slices.py); from a start by chance on, so that
// addresses differ from process to process.
#define ROOM_START ((uint64_t)2 << 40)
#define ROOM_END ((uint64_t)8 << 40)
#define ROOM_UNIT ((uint64_t)1 << 30)

struct mapped {
    struct mapped *next;
    uint64_t id, device, size;
    int ordinal;  // of a device of the server whose kernels see it
    bool eager;
    bool shared;                   // with other workers, and never compared with what is here
    unsigned char *host, *shadow;  // shadow: what both sides have
    // Of memory whose writes are tracked; NULL otherwise.
    unsigned char *alias;  // the same bytes, always open
    unsigned char *dirty;  // by block: it is open to the program, or was written by an answer
    unsigned char *sent;   // those of the push under way
    size_t low, high;      // dirty blocks are between these
    unsigned char *wanted; // by group of blocks: how many more synchronisations open it
};

int gp_mapped_count;
static int tracked_count, eager_count, wanted_count;
static size_t eager_size;
static pid_t owner;
static struct mapped *mapped;
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t push_lock = PTHREAD_MUTEX_INITIALIZER;  // taken before mapped_lock

static size_t whole_pages(size_t size) { return (size + 4095) & ~(size_t)4095; }
static size_t blocks_of(const struct mapped *of) { return (of->size + BLOCK - 1) / BLOCK; }

// --- addresses ------------------------------------------------------------------------------------

static void *map_at(uint64_t address, size_t size, int file) {
    void *wanted = (void *)(uintptr_t)address;
    int how = (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_FIXED_NOREPLACE;
    void *got = mmap(wanted, size, PROT_READ | PROT_WRITE, how, file, 0);
    if (got == wanted) return got;
    if (got != MAP_FAILED) munmap(got, size);  // a kernel before 4.17 takes it as a wish
    return NULL;
}

// Map memory, or a file, at an address that the worker probably has free; else anywhere.
static void *take_room(size_t size, int file) {
    static uint64_t next;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    void *made = NULL;
    pthread_mutex_lock(&lock);
    if (next == 0) {
        uint64_t chance = 0;
        if (getrandom(&chance, sizeof chance, GRND_NONBLOCK) < 0) chance = (uint64_t)getpid();
        next = ROOM_START + chance % ((ROOM_END - ROOM_START) / 2 / ROOM_UNIT) * ROOM_UNIT;
    }
    for (int attempt = 0; attempt < ATTEMPTS && made == NULL && size < ROOM_UNIT * 64; attempt++) {
        if (next + size > ROOM_END) next = ROOM_START;
        made = map_at(next, size, file);
        next += made != NULL ? whole_pages(size) : ROOM_UNIT;
    }
    pthread_mutex_unlock(&lock);
    if (made != NULL) return made;
    int how = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    made = mmap(NULL, size, PROT_READ | PROT_WRITE, how, file, 0);
    return made == MAP_FAILED ? NULL : made;
}

// --- what the program writes ----------------------------------------------------------------------

// With mapped_lock held.
static struct mapped *find_tracked(uint64_t address) {
    struct mapped *at = mapped;
    while (at != NULL && (!at->dirty || address - (uintptr_t)at->host >= at->size)) at = at->next;
    return at;
}

static void mark(struct mapped *at, size_t first, size_t end) {
    memset(at->dirty + first, 1, end - first);
    if (first < at->low) at->low = first;
    if (end > at->high) at->high = end;
}

static bool open_blocks(struct mapped *at, size_t first, size_t end, int how) {
    size_t from = first * BLOCK, to = end * BLOCK < at->size ? end * BLOCK : at->size;
    return mprotect(at->host + from, whole_pages(to - from), how) == 0;
}

// Such memory is always readable: whatever faults there is a write.
bool gp_mapped_fault(uint64_t address) {
    if (__atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0 || getpid() != owner) return false;
    bool opened = false;
    pthread_mutex_lock(&mapped_lock);
    struct mapped *at = find_tracked(address);
    if (at != NULL) {
        size_t block = (address - (uintptr_t)at->host) / BLOCK;
        mark(at, block, block + 1);
        opened = open_blocks(at, block, block + 1, PROT_READ | PROT_WRITE);
        if (!opened) {  // the kernel has no room for more pieces of different protection
            mark(at, 0, blocks_of(at));
            opened = open_blocks(at, 0, blocks_of(at), PROT_READ | PROT_WRITE);
        }
    }
    pthread_mutex_unlock(&mapped_lock);
    return opened;
}

// Where the bytes of an answer go that are meant for the program's memory: the kernel writes to no
// protected page. gp_mapped_filled follows once they are there.
unsigned char *gp_mapped_alias(void *target) {
    if (__atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0) return target;
    pthread_mutex_lock(&mapped_lock);
    struct mapped *at = find_tracked((uintptr_t)target);
    unsigned char *alias = at == NULL ? target : at->alias + ((unsigned char *)target - at->host);
    pthread_mutex_unlock(&mapped_lock);
    return alias;
}

void gp_mapped_filled(const void *target, size_t size) {
    if (size == 0 || __atomic_load_n(&tracked_count, __ATOMIC_RELAXED) == 0) return;
    pthread_mutex_lock(&mapped_lock);
    struct mapped *at = find_tracked((uintptr_t)target);
    if (at != NULL) {
        size_t from = (size_t)((const unsigned char *)target - at->host), end = from + size;
        mark(at, from / BLOCK, ((end < at->size ? end : at->size) + BLOCK - 1) / BLOCK);
    }
    pthread_mutex_unlock(&mapped_lock);
}

bool gp_mirror_of(const void *host, size_t size, uint64_t *seen) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED) == 0) return false;
    if (!gp_may_be_pinned((uintptr_t)host)) return false;
    bool found = false;
    pthread_mutex_lock(&mapped_lock);
    for (struct mapped *at = mapped; at != NULL && !found; at = at->next) {
        uint64_t offset = (uintptr_t)host - (uintptr_t)at->host;
        found = offset < at->size && size <= at->size - offset &&
                (!gp_several || gp_reaches(at->ordinal));
        if (found) *seen = at->device + offset;
    }
    pthread_mutex_unlock(&mapped_lock);
    return found;
}

// What goes to the worker at a time: bytes, and a mask behind them unless all are new. push_lock is
// held.
struct piece {
    uint64_t from, size;
    size_t mask, skipped;  // the mask's size; bytes at the start that stay here
    unsigned char bytes[PIECE + PIECE / 8 + 64];
};

static uint64_t find_change(const struct mapped *at, uint64_t low, uint64_t end) {
    while (low < end) {
        size_t part = end - low < BLOCK ? end - low : BLOCK;
        if (memcmp(at->host + low, at->shadow + low, part) != 0) break;
        low += part;
    }
    while (low < end && at->host[low] == at->shadow[low]) low++;
    return low;
}

// Take over into the shadow what comes next between two offsets and is new; mapped_lock is held.
static bool take_piece(struct mapped *at, uint64_t from, uint64_t end, uint64_t gap,
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
static bool push_part(struct mapped *at, uint64_t from, uint64_t end) {
    static struct piece piece;
    bool any = false;
    // The more pieces there are, the farther apart they must lie, for each costs a system call.
    for (uint64_t gap = LINE;; gap *= 2) {
        pthread_mutex_lock(&mapped_lock);
        bool changed = take_piece(at, from, end, gap, &piece);
        pthread_mutex_unlock(&mapped_lock);
        if (!changed) return any;
        any = true;
        uint64_t values[4] = {at->id, piece.from, piece.size, piece.mask > 0};
        GP_ROUTE(at->ordinal);
        const unsigned char *bytes = piece.bytes + piece.skipped;
        gp_post_bulk(GP_MAP_WRITE, values, 4, bytes, piece.size + piece.mask);
        from = piece.from + piece.size;
    }
}

// A program that writes somewhere does so again, perhaps by a system call.
static void want(struct mapped *at, size_t group, bool changed) {
    pthread_mutex_lock(&mapped_lock);
    int before = at->wanted[group] > 0;
    at->wanted[group] = changed ? WANTED_TURNS : (unsigned char)(at->wanted[group] - before);
    __atomic_fetch_add(&wanted_count, (at->wanted[group] > 0) - before, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mapped_lock);
}

void gp_open_wanted(void) {
    if (__atomic_load_n(&wanted_count, __ATOMIC_RELAXED) == 0) return;
    int left = WANTED_MAX;
    pthread_mutex_lock(&mapped_lock);
    for (struct mapped *at = mapped; at != NULL; at = at->next) {
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
    pthread_mutex_unlock(&mapped_lock);
}

static void push_tracked(struct mapped *at) {
    pthread_mutex_lock(&mapped_lock);
    size_t low = at->low, high = at->high;
    // Closed before it is compared: what is written from now on is another turn.
    bool closed = low < high && open_blocks(at, low, high, PROT_READ);
    if (low < high) memcpy(at->sent + low, at->dirty + low, high - low);
    if (closed) {
        memset(at->dirty + low, 0, high - low);
        at->low = blocks_of(at);
        at->high = 0;
    }
    pthread_mutex_unlock(&mapped_lock);
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

void gp_push_mapped(void) {
    static __thread bool pushing;
    if (pushing) return;
    pushing = true;
    gp_managed_release();
    pthread_mutex_lock(&push_lock);
    for (struct mapped *at = mapped; at != NULL; at = at->next) {
        if (at->dirty != NULL) {
            push_tracked(at);
        } else if (!at->shared) {
            push_part(at, 0, at->size);
        }
    }
    pthread_mutex_unlock(&push_lock);
    pushing = false;
}

// Memory that another thread has freed meanwhile is not found any more.
void gp_mapped_arrived(uint64_t id, uint64_t offset, const unsigned char *bytes,
                       const unsigned char *mask, size_t size) {
    pthread_mutex_lock(&mapped_lock);
    for (struct mapped *at = mapped; at != NULL; at = at->next) {
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
    pthread_mutex_unlock(&mapped_lock);
}

// --- mirrors --------------------------------------------------------------------------------------

static void discard(struct mapped *of) {
    if (of->alias != NULL) munmap(of->alias, of->size);
    free(of->dirty);
    free(of->sent);
    free(of->wanted);
    free(of->shadow);
    free(of);
}

static struct mapped *new_mapped(void *host, uint64_t size) {
    struct mapped *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    int ordinal = gp_current_device();
    *made = (struct mapped){.id = gp_new_id(), .size = size, .ordinal = ordinal, .host = host};
    made->shadow = calloc(1, size);
    if (made->shadow != NULL) return made;
    free(made);
    return NULL;
}

// Have the worker make the mirror, at the same address if that is free there.
static int ask(struct mapped *made, bool zeros) {
    uint64_t values[3] = {made->id, made->size, (uint64_t)(uintptr_t)made->host};
    struct gp_request request = {.body = &made->device, .capacity = sizeof made->device};
    if (!zeros) memcpy(made->shadow, made->host, made->size);
    return gp_exchange(&request, GP_MAP_HOST, values, 3, NULL, 0, made->shadow,
                       zeros ? 0 : made->size);
}

static void give_back(const struct mapped *of) {
    uint64_t values[1] = {of->id};
    GP_ROUTE(of->ordinal);
    gp_call(GP_MAP_FREE, values, 1, NULL, 0);
}

static void count_eager(const struct mapped *of, int change) {
    if (!of->eager) return;
    __atomic_fetch_add(&eager_count, change, __ATOMIC_RELAXED);
    __atomic_fetch_add(&eager_size, change > 0 ? of->size : -of->size, __ATOMIC_RELAXED);
}

// With push_lock held.
static void enter(struct mapped *made) {
    if (made->device != (uint64_t)(uintptr_t)made->host) {
        gp_add_range((struct gp_range){made->device, made->size, GP_DEVICE_MEMORY, made->ordinal,
                                       0, 0, NULL});
    }
    pthread_mutex_lock(&mapped_lock);
    made->next = mapped;
    mapped = made;
    pthread_mutex_unlock(&mapped_lock);
    __atomic_fetch_add(&gp_mapped_count, 1, __ATOMIC_RELAXED);
    count_eager(made, 1);
    if (made->dirty != NULL) __atomic_fetch_add(&tracked_count, 1, __ATOMIC_RELAXED);
}

static int map_range(const struct gp_range *range, uint64_t *device) {
    pthread_mutex_lock(&push_lock);
    struct mapped *at = mapped;
    while (at != NULL && (at->host != (unsigned char *)(uintptr_t)range->start ||
                          (gp_several && !gp_reaches(at->ordinal)))) {
        at = at->next;
    }
    int status = GP_SUCCESS;
    if (at == NULL) {
        at = new_mapped((void *)(uintptr_t)range->start, range->size);
        status = at == NULL ? GP_OUT_OF_MEMORY : ask(at, false);
        if (status == GP_SUCCESS) {
            enter(at);
        } else if (at != NULL) {
            discard(at);
        }
    }
    if (status == GP_SUCCESS) *device = at->device;
    pthread_mutex_unlock(&push_lock);
    return status;
}

static struct mapped *take_mapped(const struct gp_range *range) {
    pthread_mutex_lock(&push_lock);
    pthread_mutex_lock(&mapped_lock);
    struct mapped **at = &mapped;
    while (*at != NULL && (*at)->host != (unsigned char *)(uintptr_t)range->start) at = &(*at)->next;
    struct mapped *found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&mapped_lock);
    pthread_mutex_unlock(&push_lock);
    return found;
}

// On all servers whose kernels see it.
static void unmap_range(const struct gp_range *range) {
    for (struct mapped *found; (found = take_mapped(range)) != NULL; discard(found)) {
        __atomic_fetch_sub(&gp_mapped_count, 1, __ATOMIC_RELAXED);
        count_eager(found, -1);
        if (found->dirty != NULL) __atomic_fetch_sub(&tracked_count, 1, __ATOMIC_RELAXED);
        for (size_t at = 0; found->dirty != NULL && at < blocks_of(found); at += GROUP) {
            if (found->wanted[at / GROUP]) __atomic_fetch_sub(&wanted_count, 1, __ATOMIC_RELAXED);
        }
        struct gp_range gone;
        if (found->device != range->start) gp_remove_range(found->device, &gone);
        give_back(found);
    }
}

// --- allocation -----------------------------------------------------------------------------------

// Memory for which the kernel tells of writes; NULL if that cannot be had.
static struct mapped *new_tracked(size_t size) {
    int file = memfd_create("gpupool-pinned", MFD_CLOEXEC);
    if (file < 0) return NULL;
    void *host = NULL, *alias = MAP_FAILED;
    if (ftruncate(file, (off_t)whole_pages(size)) == 0) host = take_room(size, file);
    if (host != NULL) alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    struct mapped *made = alias == MAP_FAILED ? NULL : new_mapped(host, size);
    if (made == NULL) {
        if (alias != MAP_FAILED) munmap(alias, size);
        if (host != NULL) munmap(host, size);
        return NULL;
    }
    made->alias = alias;
    made->dirty = calloc(blocks_of(made), 1);
    made->sent = calloc(blocks_of(made), 1);
    made->wanted = calloc(blocks_of(made) / GROUP + 1, 1);
    made->low = blocks_of(made);
    if (made->dirty != NULL && made->sent != NULL && made->wanted != NULL) {
        mark(made, 0, blocks_of(made));
        // A fork has no part in CUDA's memory.
        madvise(host, size, MADV_DONTFORK);
        madvise(alias, size, MADV_DONTFORK);
        return made;
    }
    munmap(host, size);
    discard(made);
    return NULL;
}

static struct mapped *new_eager(size_t size) {
    // Several servers may each have a mirror of it, and tell one another's changes by comparison.
    if (size > TRACKED_MIN && !gp_several) return new_tracked(size);
    void *host = take_room(size, -1);
    struct mapped *made = host == NULL ? NULL : new_mapped(host, size);
    if (made == NULL && host != NULL) munmap(host, size);
    return made;
}

static bool is_for_eager(size_t size, unsigned flags) {
    if (!(flags & MAPPABLE) || size > EAGER_MAX) return false;
    if (__atomic_load_n(&eager_count, __ATOMIC_RELAXED) >= EAGER_COUNT_MAX) return false;
    return __atomic_load_n(&eager_size, __ATOMIC_RELAXED) + size <= EAGER_TOTAL_MAX;
}

// Memory that the GPU sees from the start, at its own address; NULL: as memory that it does not.
static void *allocate_eagerly(size_t size) {
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) gp_host_gate(GP_ALLOCATE, 0);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        struct mapped *made = new_eager(size);
        if (made == NULL) return NULL;
        void *host = made->host;
        bool mirrored = ask(made, true) == GP_SUCCESS;
        if (mirrored && made->device == (uint64_t)(uintptr_t)host) {
            made->eager = true;
            owner = getpid();
            gp_catch_faults();
            pthread_mutex_lock(&push_lock);
            enter(made);
            pthread_mutex_unlock(&push_lock);
            return host;
        }
        if (mirrored) give_back(made);  // somewhere else, where the worker had other things
        discard(made);
        munmap(host, size);
        if (!mirrored) return NULL;
    }
    return NULL;
}

GP_EXPORT int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    GP_ENTER();
    if (address == NULL || size == 0 || size > SIZE_MAX / 2) return GP_INVALID_VALUE;
    int device = gp_current_device();
    void *made = NULL;
    unsigned seen = 0;
    if (is_for_eager(size, flags)) made = allocate_eagerly(size);
    if (made != NULL) seen = SAME_ADDRESS;
    if (made == NULL) made = take_room(size, -1);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    struct gp_range range = {(uint64_t)(uintptr_t)made, size, GP_HOST_MEMORY, device,
                             flags | seen, 0, made};
    int status = gp_add_range(range);
    if (status != GP_SUCCESS) {
        unmap_range(&range);
        munmap(made, size);
        return status;
    }
    gp_own(range.start);
    *address = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemAllocHost_v2(void **address, size_t size) {
    return cuMemHostAlloc(address, size, 0);
}

GP_EXPORT int cuMemFreeHost(void *address) {
    GP_CHECK(gp_ready());
    if (address == NULL) return GP_SUCCESS;
    struct gp_range range;
    GP_CHECK(gp_remove_range((uint64_t)(uintptr_t)address, &range));
    if (range.kind != GP_HOST_MEMORY || range.detail == NULL) {
        gp_add_range(range);
        return GP_INVALID_VALUE;
    }
    gp_drain(address, range.size);
    unmap_range(&range);
    munmap(address, range.size);
    return GP_SUCCESS;
}

// Whether this is memory in which NCCL's kernels of several processes, or of several GPUs, wait for
// each other: files that it maps in all of them. No mirror is as fast as that, but on their server
// they can have the same memory, whose contents are nobody else's affair; `key` says which it is.
static bool is_shared_by_nccl(const void *address, uint64_t key[GP_TOKEN_WORDS]) {
    static const char prefix[] = " /dev/shm/nccl-";
    bool found = false;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && !found && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end, offset, inode;
        unsigned major, minor;
        const char *name = strstr(line, prefix);
        if (name == NULL || sscanf(line, "%lx-%lx %*s %lx %x:%x %lu", &start, &end, &offset, &major,
                                   &minor, &inode) != 6) {
            continue;
        }
        found = (uintptr_t)address >= start && (uintptr_t)address < end;
        if (!found) continue;
        char drawn[8] = {0};
        memcpy(drawn, name + sizeof prefix - 1, strnlen(name + sizeof prefix - 1, 6));
        key[0] = (uint64_t)major << 32 | minor;
        key[1] = inode;
        key[2] = offset + ((uintptr_t)address - start);
        memcpy(&key[3], drawn, sizeof drawn);
    }
    if (maps != NULL) fclose(maps);
    return found;
}

// Have the worker make memory that it shares with others of the lease on its server.
static int map_shared(void *address, size_t size, const uint64_t key[GP_TOKEN_WORDS],
                      unsigned *seen) {
    struct mapped *made = calloc(1, sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    int ordinal = gp_current_device();
    *made = (struct mapped){.id = gp_new_id(), .size = size, .ordinal = ordinal, .host = address,
                            .shared = true};
    uint64_t values[3 + GP_TOKEN_WORDS] = {made->id, size, (uint64_t)(uintptr_t)address};
    memcpy(values + 3, key, GP_TOKEN_WORDS * sizeof *key);
    int status = gp_call(GP_MAP_SHARED, values, 3 + GP_TOKEN_WORDS, &made->device,
                         sizeof made->device);
    if (status != GP_SUCCESS) {
        gp_say("the server has no memory in which NCCL's kernels could wait for each other: error %d",
               status);
        free(made);
        return status;
    }
    *seen = made->device == (uint64_t)(uintptr_t)address ? SAME_ADDRESS : 0;
    pthread_mutex_lock(&push_lock);
    enter(made);
    pthread_mutex_unlock(&push_lock);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    GP_ENTER();
    if (address == NULL || size == 0) return GP_INVALID_VALUE;
    if (size > SIZE_MAX / 2) return GP_INVALID_VALUE;
    uint64_t first = (uint64_t)(uintptr_t)address, key[GP_TOKEN_WORDS];
    if (gp_range_within(first, size)) return GP_HOST_ALREADY_REGISTERED;
    unsigned seen = 0;
    if ((flags & MAPPABLE) && is_shared_by_nccl(address, key)) {
        if (gp_several) {
            gp_say("NCCL goes through memory of the host, which GPUs of several servers cannot share");
            return GP_NOT_SUPPORTED;
        }
        GP_CHECK(map_shared(address, size, key, &seen));
    }
    struct gp_range range = {first, size, GP_HOST_MEMORY, gp_current_device(), flags | seen, 0, NULL};
    int status = gp_add_range(range);
    if (status != GP_SUCCESS) {
        unmap_range(&range);
        return status;
    }
    gp_own(first);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostUnregister(void *address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (gp_remove_range((uint64_t)(uintptr_t)address, &range) != GP_SUCCESS) {
        return GP_HOST_NOT_REGISTERED;
    }
    if (range.kind != GP_HOST_MEMORY || range.detail != NULL) {
        gp_add_range(range);
        return GP_HOST_NOT_REGISTERED;
    }
    unmap_range(&range);
    return gp_drain(address, range.size);
}

// --- addresses as kernels see them ----------------------------------------------------------------

int gp_see(uint64_t *address) {
    if (!gp_may_be_pinned(*address)) return GP_SUCCESS;
    struct gp_range range;
    uint64_t base;
    if (!gp_find_range(*address, &range) || range.kind != GP_HOST_MEMORY) return GP_SUCCESS;
    if (range.flags & SAME_ADDRESS && !gp_several) return GP_SUCCESS;
    // Before the lock of the mapped memory, which the thread of host functions needs as well.
    if (__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED)) gp_host_gate(GP_ALLOCATE, 0);
    // Bytes on their way here would not be in a mirror that is made now.
    void *start = (void *)(uintptr_t)range.start;
    if (!gp_mirror_of(start, range.size, &base)) GP_CHECK(gp_drain(start, range.size));
    GP_CHECK(map_range(&range, &base));
    *address = base + (*address - range.start);
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *device, void *address, unsigned flags) {
    GP_ENTER();
    struct gp_range range;
    uint64_t seen = (uint64_t)(uintptr_t)address;
    if (device == NULL || flags != 0) return GP_INVALID_VALUE;
    if (!gp_find_range(seen, &range) || range.kind != GP_HOST_MEMORY) return GP_INVALID_VALUE;
    GP_CHECK(gp_see(&seen));
    *device = seen;
    return GP_SUCCESS;
}

GP_EXPORT int cuMemHostGetFlags(unsigned *flags, void *address) {
    GP_CHECK(gp_ready());
    struct gp_range range;
    if (flags == NULL || !gp_find_range((uint64_t)(uintptr_t)address, &range)) {
        return GP_INVALID_VALUE;
    }
    if (range.kind != GP_HOST_MEMORY) return GP_INVALID_VALUE;
    // Unified addressing implies that it is mappable.
    *flags = (range.flags & ~SAME_ADDRESS) | MAPPABLE;
    return GP_SUCCESS;
}
