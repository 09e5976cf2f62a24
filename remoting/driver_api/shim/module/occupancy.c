// Occupancy: asked of the server once.
#define _GNU_SOURCE
#include "module.h"

#include <stdlib.h>

#define BLOCK_MAX 4096  // threads of a block; CUDA has 1024

static int ask_occupancy(struct function *function, int op, const uint64_t key[4],
                         uint64_t *value) {
    GP_ENTER();
    GP_CHECK(gp_function_here(function));
    uint64_t full[5] = {(uint64_t)op << 8 | (uint64_t)gp_current_device(), key[0], key[1], key[2],
                        key[3]};
    pthread_mutex_lock(&function->lock);
    struct occupancy *at = function->occupancies;
    while (at != NULL && memcmp(at->key, full, sizeof full) != 0) at = at->next;
    if (at != NULL) *value = at->value;
    pthread_mutex_unlock(&function->lock);
    if (at != NULL) return GP_SUCCESS;
    uint64_t id = function->handle.id, reply[1] = {0};
    GP_CHECK(op == GP_OCCUPANCY
                 ? gp_call_occupancy(id, key[0], key[1], key[2], key[3], reply)
                 : gp_call_occupancy_shared(id, key[0], key[1], key[2], key[3], reply));
    *value = reply[0];
    struct occupancy *made = malloc(sizeof *made);
    if (made == NULL) return GP_SUCCESS;
    memcpy(made->key, full, sizeof full);
    made->value = reply[0];
    pthread_mutex_lock(&function->lock);
    made->next = function->occupancies;
    function->occupancies = made;
    pthread_mutex_unlock(&function->lock);
    return GP_SUCCESS;
}

static int active_blocks(int *blocks, void *function, int block_size, size_t shared,
                         unsigned flags) {
    if (blocks == NULL) return GP_INVALID_VALUE;
    uint64_t key[4] = {(uint64_t)block_size, shared, flags, 0}, value = 0;
    GP_CHECK(ask_occupancy(function, GP_OCCUPANCY, key, &value));
    *blocks = (int)value;
    return GP_SUCCESS;
}

GP_EXPORT int cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, void *function, int blocks,
                                                      int block_size) {
    if (size == NULL) return GP_INVALID_VALUE;
    uint64_t key[4] = {(uint64_t)blocks, (uint64_t)block_size, 0, 0}, value = 0;
    GP_CHECK(ask_occupancy(function, GP_OCCUPANCY_SHARED, key, &value));
    *size = value;
    return GP_SUCCESS;
}

static int clusters(int *count, void *function, const struct launch_config *config, int op) {
    GP_ENTER();
    GP_CHECK(gp_function_here(function));
    if (count == NULL || config == NULL || config->count > LAUNCH_ATTRIBUTES_MAX) {
        return GP_INVALID_VALUE;
    }
    struct {
        struct gp_occupancy_clusters_record head;
        unsigned char attributes[LAUNCH_ATTRIBUTES_MAX * LAUNCH_ATTRIBUTE_SIZE];
    } record = {.head = {.potential = op, .count = config->count}};
    record.head.function = ((struct function *)function)->handle.id;
    record.head.stream = 1;
    record.head.shared = config->shared;
    memcpy(record.head.grid, config->grid, sizeof config->grid);
    memcpy(record.head.block, config->block, sizeof config->block);
    memcpy(record.attributes, config->attributes, (size_t)config->count * LAUNCH_ATTRIBUTE_SIZE);
    gp_ignore_events(record.attributes, config->count);
    size_t size = offsetof(__typeof__(record), attributes) +
                  (size_t)config->count * LAUNCH_ATTRIBUTE_SIZE;
    uint64_t reply[1] = {0};
    int device = gp_current_device();
    if (!gp_recall_clusters(&record, size, device, reply)) {
        struct gp_request request = {.body = reply, .capacity = sizeof reply};
        GP_CHECK(gp_exchange(&request, GP_OCCUPANCY_CLUSTERS, NULL, 0, &record, size, NULL, 0));
        gp_keep_clusters(&record, size, device, reply[0]);
    }
    *count = (int)reply[0];
    return GP_SUCCESS;
}

// The rule of cuda_occupancy.h: the block size with the most resident threads; larger ones win.
static int potential_block(int *grid, int *block, void *function, size_t (*shared_of)(int),
                           size_t shared, int limit, unsigned flags) {
    GP_ENTER();
    GP_CHECK(gp_check(function, GP_FUNCTION));
    if (grid == NULL || block == NULL) return GP_INVALID_VALUE;
    int device = gp_current_device(), most = 0;
    GP_CHECK(gp_function_attribute(&most, 0, function));
    if (limit > 0 && limit < most) most = limit;
    if (most > BLOCK_MAX) most = BLOCK_MAX;
    int best = 0, best_blocks = 0;
    for (int size = most; size > 0; size = (size - 1) & ~31) {
        int blocks = 0;
        size_t needed = shared_of == NULL ? shared : shared_of(size);
        GP_CHECK(active_blocks(&blocks, function, size,
                                                                      needed, flags));
        if ((int64_t)blocks * size > (int64_t)best * best_blocks) {
            best = size;
            best_blocks = blocks;
        }
        if ((int64_t)best * best_blocks >= gp.devices[device].attributes[39]) break;
    }
    *block = best;
    *grid = (int)((int64_t)best_blocks * gp.devices[device].attributes[16]);
    return GP_SUCCESS;
}

#define GP_FORWARDS_OCCUPANCY
#include "generated_forwards.h"
