// Managed memory: one address on both sides, coherent when CUDA says so.
//
// Devices here do not have concurrent managed access, so a program may touch managed memory only
// while the GPU is idle. What the program may use at the moment is tracked in blocks: STALE ones
// are on the server, and reading one fetches it; CLEAN ones are the same on both sides, and writing
// one makes it DIRTY. Before anything that the GPU could do with the memory, the dirty blocks are
// sent and all become stale again. Touching is noticed by page protection. The bytes lie in a file
// that is mapped twice, so that they can be filled in and sent while the program's view is closed.
//
// Variables of modules are where the server's driver put them, several in a page: 512 bytes apart
// on an H200 with driver 580. A region has all blocks around them, and its parts say which bytes of
// these are the server's.
#define _GNU_SOURCE
#include "managed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define BLOCK_SIZE ((size_t)64 << 10)
#define READ_AHEAD_MAX 64   // blocks
#define WRITE_AHEAD_MAX 16
#define FETCH_SIZE ((size_t)4 << 20)
#define ATTEMPTS 8
#define LEAP ((uint64_t)1 << 30)  // twice as far at each attempt

enum { STALE, CLEAN, DIRTY };

// Bytes of a region that the server has; the whole of one that was allocated.
struct part {
    struct part *next;
    uint64_t variable;  // where it starts, perhaps in a region before
    size_t from, end;
    int device;
};

struct gp_region {
    struct gp_region *next, *next_open;
    struct part *parts, whole;
    uint64_t id, start;
    size_t size, span;     // span: in whole pages
    unsigned char *alias;  // the same bytes, always open
    unsigned char *states;
    size_t blocks, dirty;
    size_t low, high;        // blocks between these may be other than stale
    off_t place;             // in the file
    int file;                // which one
    size_t expected, ahead;  // the block that a sequence would touch next, and how many come with it
    int device;
    bool open, borrowed;
    bool fresh;  // zeros on the server, and open here: what the program writes is found in the file
};

static pthread_mutex_t borrow_lock = PTHREAD_MUTEX_INITIALIZER;   // which variables are known
static pthread_mutex_t managed_lock = PTHREAD_MUTEX_INITIALIZER;  // all of the following
static struct gp_region *regions, *open_regions;
static int file = -1;
static struct stat file_made;
static int files;
static off_t file_end;
static pid_t owner;

uint64_t gp_region_start(const struct gp_region *region) { return region->start; }

// --- blocks; managed_lock is held -----------------------------------------------------------------

static size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

static bool protect(struct gp_region *region, size_t first, size_t end, int how) {
    size_t from = first * BLOCK_SIZE, to = end * BLOCK_SIZE;
    if (to > region->span) to = region->span;
    return mprotect((void *)(uintptr_t)(region->start + from), to - from, how) == 0;
}

static void mark(struct gp_region *region, size_t first, size_t end, int state) {
    for (size_t at = first; at < end; at++) {
        region->dirty += (state == DIRTY) - (region->states[at] == DIRTY);
        region->states[at] = (unsigned char)state;
    }
    if (first < region->low) region->low = first;
    if (end > region->high) region->high = end;
    if (region->open) return;
    // Counted among what has to be looked through before the next launch.
    if (open_regions == NULL) __atomic_fetch_add(&gp_mapped_count, 1, __ATOMIC_RELAXED);
    region->open = true;
    region->next_open = open_regions;
    open_regions = region;
}

static int fetch_part(struct gp_region *region, const struct part *part, size_t from, size_t end) {
    if (from < part->from) from = part->from;
    if (end > part->end) end = part->end;
    for (size_t at = from; at < end; at += FETCH_SIZE) {
        size_t size = end - at < FETCH_SIZE ? end - at : FETCH_SIZE;
        // A host function may read what its stream has made, and must not wait for that stream.
        bool at_once = __atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0;
        uint64_t device = (uint64_t)gp_server_device(part->device);
        GP_ROUTE(part->device);
        struct gp_request request = {.bulk = region->alias + at, .bulk_size = size};
        GP_CHECK(gp_exchange_managed_read(&request, region->start + at, size, device, at_once));
    }
    return GP_SUCCESS;
}

static int fetch(struct gp_region *region, size_t first, size_t end) {
    for (const struct part *part = region->parts; part != NULL; part = part->next) {
        GP_CHECK(fetch_part(region, part, first * BLOCK_SIZE, end * BLOCK_SIZE));
    }
    return GP_SUCCESS;
}

// The end of the run of blocks of this state that starts at first.
static size_t run_end(const struct gp_region *region, size_t first, int state, size_t most) {
    size_t end = first + 1;
    while (end < region->blocks && end - first < most && region->states[end] == state) end++;
    return end;
}

// The kernel has no room for more pieces of different protection: all of it is opened at once.
static int open_whole(struct gp_region *region) {
    for (size_t at = 0; at < region->blocks; at++) {
        if (region->states[at] == STALE) GP_CHECK(fetch(region, at, at + 1));
    }
    mark(region, 0, region->blocks, DIRTY);
    return protect(region, 0, region->blocks, PROT_READ | PROT_WRITE) ? GP_SUCCESS
                                                                      : GP_OUT_OF_MEMORY;
}

// Let the program touch a block, and what it seems to touch next.
static int open_block(struct gp_region *region, size_t block, bool write) {
    size_t most = write ? WRITE_AHEAD_MAX : READ_AHEAD_MAX;
    region->ahead = block == region->expected && region->ahead < most ? region->ahead * 2 : 1;
    int state = region->states[block];
    size_t end = run_end(region, block, state, region->ahead < most ? region->ahead : most);
    region->expected = end;
    if (state == DIRTY) return GP_SUCCESS;  // another thread was here first
    if (state == STALE) GP_CHECK(fetch(region, block, end));
    bool writes = state == CLEAN || write;
    mark(region, block, end, writes ? DIRTY : CLEAN);
    if (protect(region, block, end, writes ? PROT_READ | PROT_WRITE : PROT_READ)) {
        return GP_SUCCESS;
    }
    return open_whole(region);
}

// A program may have closed it, with all others that it does not know, and opened another.
static bool is_ours(void) {
    struct stat now;
    return file >= 0 && fstat(file, &now) == 0 && now.st_ino == file_made.st_ino &&
           now.st_dev == file_made.st_dev;
}

// The file has no pages where nobody has written. That needs no fault, which system calls cannot
// have: programs read files into memory that they have just allocated.
static void find_written(struct gp_region *region) {
    region->fresh = false;
    bool known = is_ours() && region->file == files;
    off_t end = region->place + (off_t)region->size;
    for (off_t at = region->place; at < end;) {
        off_t data = known ? lseek(file, at, SEEK_DATA) : at;
        if (data < 0 && errno == ENXIO) return;
        if (data < 0) data = at;  // it cannot say: all may be
        if (data >= end) return;
        off_t hole = known ? lseek(file, data, SEEK_HOLE) : end;
        if (hole < 0 || hole > end) hole = end;
        size_t first = (size_t)(data - region->place) / BLOCK_SIZE;
        mark(region, first, ((size_t)(hole - region->place) + BLOCK_SIZE - 1) / BLOCK_SIZE, DIRTY);
        at = hole;
    }
}

static void send(const struct gp_region *region, const struct part *part, size_t from,
                 size_t end) {
    if (from < part->from) from = part->from;
    if (end > part->end) end = part->end;
    if (from >= end) return;
    GP_ROUTE(part->device);
    gp_post_managed_write(region->start + from, end - from, region->alias + from, end - from);
}

static void send_dirty(struct gp_region *region) {
    for (size_t at = region->low; at < region->high && region->dirty > 0; at++) {
        if (region->states[at] != DIRTY) continue;
        size_t end = run_end(region, at, DIRTY, region->blocks);
        for (const struct part *part = region->parts; part != NULL; part = part->next) {
            send(region, part, at * BLOCK_SIZE, end * BLOCK_SIZE);
        }
        region->dirty -= end - at;
        at = end;
    }
}

// --- faults ---------------------------------------------------------------------------------------

static bool is_write(const void *context) {
#if defined(__x86_64__)
    return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    (void)context;
    return false;  // reading comes first, and the write faults once more
#endif
}

static bool repair(uint64_t address, const void *context) {
    bool write = is_write(context);
    if (getpid() != owner) return false;  // a fork, where CUDA's memory is not
    pthread_mutex_lock(&managed_lock);
    struct gp_region *at = regions;
    while (at != NULL && address - at->start >= at->size) at = at->next;
    int status = GP_INVALID_VALUE;
    if (at != NULL) status = open_block(at, (address - at->start) / BLOCK_SIZE, write);
    pthread_mutex_unlock(&managed_lock);
    if (at != NULL && status != GP_SUCCESS) {
        gp_say("managed memory cannot be read from the server: error %d", status);
    }
    return status == GP_SUCCESS;
}

void gp_managed_release(void) {
    pthread_mutex_lock(&managed_lock);
    if (open_regions != NULL) {
        gp_catch_faults();
        __atomic_fetch_sub(&gp_mapped_count, 1, __ATOMIC_RELAXED);
    }
    while (open_regions != NULL) {
        struct gp_region *region = open_regions;
        open_regions = region->next_open;
        // Closed before it is sent: what is written from now on is another turn.
        protect(region, region->low, region->high, PROT_NONE);
        if (region->fresh) find_written(region);
        send_dirty(region);
        memset(region->states + region->low, STALE, region->high - region->low);
        region->low = region->blocks;
        region->high = region->dirty = region->expected = 0;
        region->open = false;
    }
    pthread_mutex_unlock(&managed_lock);
}

// --- regions --------------------------------------------------------------------------------------

// Map the file at addresses that are held already; managed_lock is held.
static bool map_file(struct gp_region *region) {
    if (!is_ours()) {
        file = memfd_create("gpupool-managed", MFD_CLOEXEC);
        file_end = 0;
        files++;
        if (file < 0 || fstat(file, &file_made) != 0) return false;
    }
    if (ftruncate(file, file_end + (off_t)region->span) != 0) return false;
    region->file = files;
    int how = MAP_SHARED | MAP_NORESERVE;
    region->alias = mmap(NULL, region->span, PROT_READ | PROT_WRITE, how, file, file_end);
    if (region->alias == MAP_FAILED) return false;
    void *start = (void *)(uintptr_t)region->start;
    if (mmap(start, region->span, PROT_NONE, how | MAP_FIXED, file, file_end) != start) {
        munmap(region->alias, region->span);
        return false;
    }
    region->place = file_end;
    madvise(start, region->span, MADV_DONTFORK);
    madvise(region->alias, region->span, MADV_DONTFORK);
    file_end += (off_t)region->span;
    return true;
}

// Take charge of addresses that are held; they are given back when that fails.
static int add_region(struct gp_region *region) {
    region->span = round_up(region->size, 4096);
    region->blocks = (region->size + BLOCK_SIZE - 1) / BLOCK_SIZE;
    region->low = region->blocks;
    region->states = calloc(region->blocks, 1);  // STALE
    pthread_mutex_lock(&managed_lock);
    bool mapped = region->states != NULL && map_file(region);
    if (mapped) {
        owner = getpid();
        gp_catch_faults();
        region->next = regions;
        regions = region;
        __atomic_fetch_add(&gp_managed_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&managed_lock);
    if (mapped) return GP_SUCCESS;
    munmap((void *)(uintptr_t)region->start, region->span);
    free(region->states);
    return GP_OUT_OF_MEMORY;
}

static void give_back(const struct gp_region *region) {
    GP_ROUTE(region->device);
    gp_post_managed_free(region->id, region->start, region->size);
}

int gp_region_new(size_t size, struct gp_region **made) {
    struct gp_region *region = calloc(1, sizeof *region);
    if (region == NULL) return GP_OUT_OF_MEMORY;
    region->size = size;
    region->device = gp_current_device();
    region->whole = (struct part){.end = size, .device = region->device};
    region->parts = &region->whole;
    int status = GP_OUT_OF_MEMORY;
    uint64_t occupied = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        // The server gives its first free addresses again, unless a wish leads beyond ours.
        void *wish = occupied == 0 ? gp_find_room(size) : gp_hold(occupied + (LEAP << attempt), size);
        if (wish == NULL && occupied != 0) continue;
        if (wish == NULL) break;
        region->id = gp_new_id();
        uint64_t reply[1] = {0};
        status = gp_call_managed_allocate(region->id, size, (uintptr_t)wish, reply);
        region->start = reply[0];
        bool granted = status == GP_SUCCESS && region->start == (uint64_t)(uintptr_t)wish;
        if (!granted) munmap(wish, size);
        if (status != GP_SUCCESS) break;
        // Where the server had other things, this process may have room at what it got instead.
        if (granted || gp_hold(region->start, size) != NULL) {
            status = add_region(region);
            if (status != GP_SUCCESS) give_back(region);
            break;
        }
        give_back(region);
        occupied = region->start;
        status = GP_OUT_OF_MEMORY;
    }
    if (status != GP_SUCCESS) {
        free(region);
        return status;
    }
    // The server has filled it with zeros, which are here as well.
    pthread_mutex_lock(&managed_lock);
    mark(region, 0, region->blocks, CLEAN);
    region->fresh = protect(region, 0, region->blocks, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&managed_lock);
    *made = region;
    return GP_SUCCESS;
}

static void forget(struct gp_region *region) {
    struct gp_region **at = &regions;
    while (*at != region) at = &(*at)->next;
    *at = region->next;
    if (!region->open) return;
    for (at = &open_regions; *at != region;) at = &(*at)->next_open;
    *at = region->next_open;
    if (open_regions == NULL) __atomic_fetch_sub(&gp_mapped_count, 1, __ATOMIC_RELAXED);
}

// With managed_lock held.
static void unmap(struct gp_region *region) {
    forget(region);
    // Its part of the file is never used again.
    madvise(region->alias, region->span, MADV_REMOVE);
    munmap(region->alias, region->span);
    munmap((void *)(uintptr_t)region->start, region->span);
    __atomic_fetch_sub(&gp_managed_count, 1, __ATOMIC_RELAXED);
}

void gp_region_end(struct gp_region *region) {
    pthread_mutex_lock(&managed_lock);
    unmap(region);
    pthread_mutex_unlock(&managed_lock);
    give_back(region);
    free(region->states);
    free(region);
}

// --- variables of modules; borrow_lock is held ----------------------------------------------------

// The borrowed region at an address, or NULL and, before `end`, where the next one is.
static struct gp_region *borrowed_at(uint64_t address, uint64_t *end) {
    struct gp_region *found = NULL;
    pthread_mutex_lock(&managed_lock);
    for (struct gp_region *at = regions; at != NULL; at = at->next) {
        if (!at->borrowed) continue;
        if (address - at->start < at->size) found = at;
        if (at->start > address && at->start < *end) *end = at->start;
    }
    pthread_mutex_unlock(&managed_lock);
    return found;
}

static struct gp_region *borrow_blocks(uint64_t start, uint64_t end) {
    if (gp_hold(start, end - start) == NULL) return NULL;
    struct gp_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        munmap((void *)(uintptr_t)start, end - start);
        return NULL;
    }
    *region = (struct gp_region){.start = start, .size = end - start, .borrowed = true};
    if (add_region(region) == GP_SUCCESS) return region;
    free(region);
    return NULL;
}

static int add_part(struct gp_region *region, uint64_t start, size_t size, int device) {
    uint64_t last = region->start + region->size, end = start + size;
    struct part *part = malloc(sizeof *part);
    if (part == NULL) return GP_OUT_OF_MEMORY;
    *part = (struct part){.variable = start, .device = device};
    part->from = start > region->start ? start - region->start : 0;
    part->end = (end < last ? end : last) - region->start;
    pthread_mutex_lock(&managed_lock);
    int status = GP_SUCCESS;
    for (const struct part *at = region->parts; at != NULL; at = at->next) {
        // Another server has other bytes at these addresses.
        if (at->from < part->end && part->from < at->end) status = GP_OUT_OF_MEMORY;
    }
    // Its bytes of blocks that are open already.
    if (status == GP_SUCCESS && region->open) {
        status = fetch_part(region, part, part->from, part->end);
    }
    if (status == GP_SUCCESS) {
        part->next = region->parts;
        region->parts = part;
    }
    pthread_mutex_unlock(&managed_lock);
    if (status != GP_SUCCESS) free(part);
    return status;
}

// Whether a part is of this variable, and not of one at the same address of another server.
static bool is_of(const struct part *part, uint64_t start, int device) {
    return part->variable == start && gp_server_of(part->device) == gp_server_of(device);
}

static void remove_variable(uint64_t start, int device) {
    pthread_mutex_lock(&managed_lock);
    for (struct gp_region *at = regions, *next; at != NULL; at = next) {
        next = at->next;
        if (!at->borrowed) continue;
        for (struct part **link = &at->parts; *link != NULL;) {
            struct part *part = *link;
            if (!is_of(part, start, device)) {
                link = &part->next;
                continue;
            }
            *link = part->next;
            free(part);
        }
        if (at->parts != NULL) continue;
        unmap(at);
        free(at->states);
        free(at);
    }
    pthread_mutex_unlock(&managed_lock);
}

static bool is_known(uint64_t start, int device) {
    uint64_t end = start + 1;
    const struct gp_region *region = borrowed_at(start, &end);
    for (const struct part *at = region == NULL ? NULL : region->parts; at != NULL; at = at->next) {
        if (is_of(at, start, device)) return true;
    }
    return false;
}

static int borrow(uint64_t start, size_t size, int device) {
    uint64_t at = start / BLOCK_SIZE * BLOCK_SIZE, last = round_up(start + size, BLOCK_SIZE);
    while (at < last) {
        uint64_t end = last;
        struct gp_region *region = borrowed_at(at, &end);
        if (region == NULL) region = borrow_blocks(at, end);
        int status = region == NULL ? GP_OUT_OF_MEMORY : add_part(region, start, size, device);
        if (status != GP_SUCCESS) {
            remove_variable(start, device);
            return status;
        }
        at = region->start + region->size;
    }
    return GP_SUCCESS;
}

int gp_region_borrow(uint64_t start, size_t size, int device) {
    pthread_mutex_lock(&borrow_lock);
    int status = is_known(start, device) ? GP_SUCCESS : borrow(start, size, device);
    pthread_mutex_unlock(&borrow_lock);
    if (status != GP_SUCCESS && gp_verbose()) {
        gp_say("the server's managed memory at %#llx, %zu bytes, cannot be here at that address",
               (unsigned long long)start, size);
    }
    return status;
}

void gp_region_return(uint64_t start, int device) {
    pthread_mutex_lock(&borrow_lock);
    remove_variable(start, device);
    pthread_mutex_unlock(&borrow_lock);
}

GP_AT_LOAD register_hooks(void) { gp_hooks.managed_fault = repair; }
