// Handles: streams, events, graphs and other objects as the program holds them. Their identifiers
// name them to the servers.
#define _GNU_SOURCE
#include "base.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096ull

static pthread_mutex_t handle_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gp_handle *free_handles, *moved_handles;
static uint64_t next_id = 64;  // below are streams with a meaning of their own

void gp_hold_handles(bool hold) {
    if (hold) {
        pthread_mutex_lock(&handle_lock);
    } else {
        pthread_mutex_unlock(&handle_lock);
    }
}

uint64_t gp_new_id(void) { return gp_new_ids(1); }

uint64_t gp_new_ids(unsigned count) {
    return __atomic_fetch_add(&next_id, count, __ATOMIC_RELAXED);
}

struct gp_handle *gp_make(enum gp_kind kind) {
    pthread_mutex_lock(&handle_lock);
    struct gp_handle *handle = free_handles;
    if (handle != NULL) free_handles = handle->next;
    pthread_mutex_unlock(&handle_lock);
    if (handle == NULL) handle = malloc(sizeof *handle);
    if (handle == NULL) return NULL;
    memset(handle, 0, sizeof *handle);
    handle->magic = GP_MAGIC;
    handle->kind = kind;
    handle->id = gp_new_id();
    handle->device = gp_current_device();
    handle->context = gp_current();
    return handle;
}

void gp_end(struct gp_handle *handle) {
    handle->magic = 0;
    if (handle->kind == GP_STREAM) free(handle->detail);  // its attributes
    pthread_mutex_lock(&handle_lock);
    if (handle->moved) {
        struct gp_handle **at = &moved_handles;
        while (*at != handle) at = &(*at)->next;
        *at = handle->next;
    } else {
        handle->next = free_handles;
        free_handles = handle;
    }
    pthread_mutex_unlock(&handle_lock);
}

// Take a page in which handles lie that were moved; it stays, as the server may use addresses again.
static bool take_page(uint64_t start) {
    static struct page {
        uint64_t start;
        struct page *next;
    } *pages;
    const struct page *at = pages;
    while (at != NULL && at->start != start) at = at->next;
    if (at != NULL) return true;
    struct page *made = malloc(sizeof *made);
    if (made == NULL) return false;
    void *wanted = (void *)(uintptr_t)start;
    void *got = mmap(wanted, PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) {
        if (got != MAP_FAILED) munmap(got, PAGE);  // a kernel before 4.17 takes it as a wish
        free(made);
        return false;
    }
    *made = (struct page){start, pages};
    pages = made;
    return true;
}

struct gp_handle *gp_move(struct gp_handle *handle, uint64_t address) {
    uint64_t last = address + sizeof *handle - 1;
    struct gp_handle *to = (void *)(uintptr_t)address;
    if (address < PAGE || (address & 7) != 0 || last < address) return NULL;
    pthread_mutex_lock(&handle_lock);
    bool is_free = take_page(address & -PAGE) && take_page(last & -PAGE);
    for (const struct gp_handle *at = moved_handles; at != NULL && is_free; at = at->next) {
        is_free = (uintptr_t)at > last || (uintptr_t)(at + 1) <= address;
    }
    if (is_free) {
        *to = *handle;
        to->moved = true;
        to->next = moved_handles;
        moved_handles = to;
    }
    pthread_mutex_unlock(&handle_lock);
    if (!is_free) return NULL;
    gp_end(handle);
    return to;
}

void gp_begin_context(struct gp_context *context, int device) {
    static uint64_t last_serial;
    context->handle = (struct gp_handle){.magic = GP_MAGIC, .kind = GP_CONTEXT, .device = device};
    context->handle.id = gp_new_id();
    context->serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
}
