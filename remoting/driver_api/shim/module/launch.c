// Launches of kernels, and how their parameters are packed.
#define _GNU_SOURCE
#include "module.h"
#include "ipc.h"
#include "managed.h"

#include <stdlib.h>

// As a launch gives them: one by one, or, where there are none, in one buffer.
struct given {
    void **parameters;
    const unsigned char *buffer;
    size_t size;
};

static void pack(unsigned char *at, const struct function *function, const struct given *given) {
    if (given->buffer != NULL) {
        memset(at, 0, function->bytes);
        memcpy(at, given->buffer, given->size < function->bytes ? given->size : function->bytes);
        return;
    }
    for (uint32_t index = 0; index < function->count; index++) {
        const struct parameter *one = &function->parameters[index];
        memcpy(at + one->offset, given->parameters[index], one->size);
    }
}

// The bytes of the parameters that lie in one buffer already, from `extra`.
static int find_extra(void **extra, const unsigned char **bytes, size_t *size) {
    for (int at = 0; extra[at] != NULL && at < 8; at += 2) {
        if ((uintptr_t)extra[at] == 1) *bytes = extra[at + 1];
        if ((uintptr_t)extra[at] == 2) *size = *(const size_t *)extra[at + 1];
    }
    return *bytes == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
}

// Addresses of pinned memory among parameters become those under which the kernel sees it. What
// cannot be mapped stays as it is, and is refused when the kernel uses it.
static void see_pinned(unsigned char *bytes, size_t size) {
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word, before;
        memcpy(&word, bytes + at, 8);
        if (!gp_may_be_pinned(word)) continue;
        before = word;
        if (gp_see(&word) == GP_SUCCESS && word != before) memcpy(bytes + at, &word, 8);
    }
}

int gp_function_bytes(void *of, void **parameters, void **extra, unsigned char **bytes,
                      uint32_t *size) {
    GP_CHECK(gp_function_here(of));
    const struct function *function = of;
    struct given given = {parameters, NULL, 0};
    if (parameters == NULL && function->count > 0) {
        if (extra == NULL) return GP_INVALID_VALUE;
        GP_CHECK(find_extra(extra, &given.buffer, &given.size));
    }
    *size = function->bytes;
    *bytes = calloc(1, function->bytes + 1u);
    if (*bytes == NULL) return GP_OUT_OF_MEMORY;
    pack(*bytes, function, &given);
    if (__atomic_load_n(&gp_pinned_high, __ATOMIC_RELAXED)) see_pinned(*bytes, function->bytes);
    return GP_SUCCESS;
}

static int launch(struct gp_launch_record *head, struct function *function, void *stream,
                  void **parameters, void **extra, const void *attributes, uint32_t attribute_count,
                  int flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_function_here(function));
    GP_REACH(stream);
    GP_CHECK(gp_stream_id(stream, &head->stream));
    const uint32_t *grid = head->grid, *block = head->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) {
        return GP_INVALID_VALUE;
    }
    if ((uint64_t)block[0] * block[1] * block[2] > 1024 || block[2] > 64) {
        gp_log("a block of (%u,%u,%u) is beyond what the device has: (1024,1024,64), 1024 in all",
               block[0], block[1], block[2]);
        return GP_INVALID_VALUE;
    }
    struct given given = {parameters, NULL, 0};
    if (parameters == NULL && function->count > 0) {
        if (extra == NULL) return GP_INVALID_VALUE;
        GP_CHECK(find_extra(extra, &given.buffer, &given.size));
    }
    bool pinned = __atomic_load_n(&gp_pinned_high, __ATOMIC_RELAXED) != 0;
    bool early = pinned || __atomic_load_n(&gp_managed_count, __ATOMIC_RELAXED) != 0;
    unsigned char copied[early ? function->bytes + 1u : 1u];
    if (early) {
        // Managed memory may not be touched once the line is locked, nor pinned memory be mapped.
        pack(copied, function, &given);
        if (pinned) see_pinned(copied, function->bytes);
    }
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    head->function = function->handle.id;
    head->bytes = function->bytes;
    size_t before = sizeof *head;
    if (attribute_count) before += 8 + (size_t)attribute_count * LAUNCH_ATTRIBUTE_SIZE;
    int op = attribute_count ? GP_LAUNCH_EX : GP_LAUNCH;
    unsigned char *at = gp_open(op, flags, before + function->bytes);
    if (at == NULL) return GP_INVALID_VALUE;
    memcpy(at, head, sizeof *head);
    if (attribute_count) {
        uint64_t count = attribute_count;
        memcpy(at + sizeof *head, &count, 8);
        memcpy(at + sizeof *head + 8, attributes, count * LAUNCH_ATTRIBUTE_SIZE);
    }
    if (early) {
        memcpy(at + before, copied, function->bytes);
    } else {
        pack(at + before, function, &given);
    }
    gp_close();
    if (__builtin_expect(gp_launches_block(), 0) && !gp_capture_of(stream)) {
        return gp_synchronize(GP_SYNC_STREAM, head->stream);
    }
    return GP_SUCCESS;
}

int gp_launch_kernel(void *function, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, void *stream, void **parameters, void **extra) {
    struct gp_launch_record head = {.grid = {grid[0], grid[1], grid[2]},
                                    .block = {block[0], block[1], block[2]}, .shared = shared};
    return launch(&head, function, stream, parameters, extra, NULL, 0, 0);
}

GP_EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, void *stream,
                             void **parameters, void **extra) {
    struct gp_launch_record head = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    return launch(&head, function, stream, parameters, extra, NULL, 0, 0);
}

GP_EXPORT int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                        void *stream, void **parameters) {
    struct gp_launch_record head = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    return launch(&head, function, stream, parameters, NULL, NULL, 0, 2);
}

// CUlaunchAttributeID of cuda.h. The value stands behind 8 bytes.
#define IGNORE 0
#define CLUSTER_DIMENSION 4
#define PROGRAMMATIC_EVENT 7
#define COMPLETION_EVENT 12
#define LAST_ATTRIBUTE 18
#define LAUNCH_ATTRIBUTES 0x77ff7u  // a bit each: all but those for streams alone, and 15
#define NODE_ATTRIBUTES 0x76f36u    // of those, the ones that are not for launches alone

bool gp_has_attribute(int attribute, bool launch) {
    if (attribute < 0 || attribute > (gp.version > 13000 ? LAST_ATTRIBUTE : 16)) return false;
    return (launch ? LAUNCH_ATTRIBUTES : NODE_ATTRIBUTES) >> attribute & 1;
}

static bool no_cluster(const unsigned char *attribute) {
    uint32_t size[3];
    memcpy(size, attribute + 8, sizeof size);
    return !size[0] || !size[1] || !size[2];
}

static uint32_t id_of(const unsigned char *attribute) {
    uint32_t id;
    memcpy(&id, attribute, sizeof id);
    return id;
}

static bool holds_event(const unsigned char *attribute) {
    uint32_t id = id_of(attribute);
    return id == PROGRAMMATIC_EVENT || id == COMPLETION_EVENT;
}

static struct gp_handle *event_of(const unsigned char *attribute) {
    struct gp_handle *event;
    memcpy(&event, attribute + 8, sizeof event);
    return event;
}

// As an H200's driver has it: an event of this process without a time, and no flags of records.
static int check_event(const unsigned char *attribute) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(event_of(attribute), GP_EVENT));
    unsigned kind = event_of(attribute)->flags;
    uint32_t flags;
    memcpy(&flags, attribute + 16, sizeof flags);
    if (!(kind & GP_DISABLE_TIMING) || kind & GP_INTERPROCESS) return GP_NOT_SUPPORTED;
    return flags == 0 ? GP_SUCCESS : GP_ILLEGAL_STATE;
}

void gp_ignore_events(unsigned char *attributes, uint32_t count) {
    for (; count > 0; count--, attributes += LAUNCH_ATTRIBUTE_SIZE) {
        if (holds_event(attributes)) memset(attributes, IGNORE, LAUNCH_ATTRIBUTE_SIZE);
    }
}

// Record them behind the launch: CUDA says of both kinds that they may come as late as that.
static int launch_with_events(struct gp_launch_record *head, void *function,
                              const struct launch_config *config, void **parameters,
                              void **extra) {
    unsigned char attributes[LAUNCH_ATTRIBUTES_MAX * LAUNCH_ATTRIBUTE_SIZE];
    memcpy(attributes, config->attributes, (size_t)config->count * LAUNCH_ATTRIBUTE_SIZE);
    gp_ignore_events(attributes, config->count);
    GP_CHECK(launch(head, function, config->stream, parameters, extra, attributes, config->count,
                    0));
    for (uint32_t at = 0; at < config->count; at++) {
        const unsigned char *attribute = config->attributes + (size_t)at * LAUNCH_ATTRIBUTE_SIZE;
        if (!holds_event(attribute)) continue;
        GP_CHECK(gp_record_event(event_of(attribute), config->stream, 0));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuLaunchKernelEx(const struct launch_config *config, void *function,
                               void **parameters, void **extra) {
    if (config == NULL || config->count > LAUNCH_ATTRIBUTES_MAX) return GP_INVALID_VALUE;
    bool events = false;
    for (uint32_t at = 0; at < config->count; at++) {
        const unsigned char *attribute = config->attributes + (size_t)at * LAUNCH_ATTRIBUTE_SIZE;
        uint32_t id = id_of(attribute);
        // Here and not by the server's driver: its answer would come behind later calls.
        if (!gp_has_attribute((int)id, true)) return GP_INVALID_VALUE;
        if (id == GP_UPDATABLE_NODE) return GP_NOT_SUPPORTED;  // kernels would change the graph
        if (holds_event(attribute)) {
            GP_CHECK(check_event(attribute));
            events = true;
        }
        if (id == CLUSTER_DIMENSION && no_cluster(attribute)) return GP_INVALID_CLUSTER_SIZE;
    }
    struct gp_launch_record head = {.shared = config->shared};
    memcpy(head.grid, config->grid, sizeof head.grid);
    memcpy(head.block, config->block, sizeof head.block);
    if (events) return launch_with_events(&head, function, config, parameters, extra);
    return launch(&head, function, config->stream, parameters, extra, config->attributes,
                  config->count, 0);
}
