// Events that programs make and destroy around each launch that they time.
#include "generated_records.h"
#include "launcher.h"

#include <string.h>

#define NUMBER_FIRST 2           // smaller numbers name streams that are always there
#define OUT_OF_MEMORY 2
#define INTERPROCESS 4           // another process may be given it, so the worker has to know it
#define EVENTS_MAX (1u << 20)    // as client_state.py has it

static bool create(struct launcher *launcher, uint64_t id, uint64_t flags, int *status) {
    void *event;
    if (flags & INTERPROCESS || flags > UINT32_MAX) return false;
    if (id < NUMBER_FIRST || find(&launcher->events, id) != NULL) return false;
    if (launcher->events.used >= EVENTS_MAX) return false;
    *status = launcher->driver.create_event(&event, (unsigned)flags);
    if (*status != 0) return true;
    struct entry made = {.id = id, .handle = (uint64_t)(uintptr_t)event, .own = true};
    if (!keep_entry(&launcher->events, made)) {
        launcher->driver.destroy_event(event);
        *status = OUT_OF_MEMORY;
    }
    return true;
}

static bool destroy(struct launcher *launcher, uint64_t id, int *status) {
    struct entry *found = find(&launcher->events, id);
    if (found == NULL || !found->own) return false;
    *status = launcher->driver.destroy_event((void *)(uintptr_t)found->handle);
    if (*status == 0) forget_entry(&launcher->events, id);
    return true;
}

bool issue_event(struct launcher *launcher, const unsigned char *at, struct head head, int *status) {
    uint64_t words[2] = {0};
    size_t size = head.size - sizeof head, wanted = head.op == GP_CALL_cuEventCreate ? 16 : 8;
    if (launcher->driver.create_event == NULL || launcher->driver.destroy_event == NULL) return false;
    if (size != wanted) return false;
    memcpy(words, at, wanted);
    if (head.op == GP_CALL_cuEventCreate) return create(launcher, words[0], words[1], status);
    return destroy(launcher, words[0], status);
}

// The handle of an event that was made here; 0 for others.
EXPORT uint64_t gpupool_launcher_event(const struct launcher *launcher, uint64_t id) {
    const struct entry *found = find(&launcher->events, id);
    return found != NULL && found->own ? found->handle : 0;
}
