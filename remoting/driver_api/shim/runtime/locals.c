// The values that the runtime stores in a context by keys; each ends with the context.
#include "runtime.h"

#include <stdlib.h>

static pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;

// The runtime names the current context by 0 or -1 as well.
int gp_local_context(void *context, struct gp_context **found) {
    if ((uintptr_t)context == UINTPTR_MAX) context = NULL;
    return gp_context_of(context, found);
}

// Entries are only ever added, and marked by a NULL key when they end: reading needs no lock, and
// every call of the runtime reads.
int gp_local_get(void **value, void *context, const void *key) {
    struct gp_context *known;
    GP_CHECK(gp_local_context(context, &known));
    struct gp_local *at = __atomic_load_n(&known->locals, __ATOMIC_ACQUIRE);
    for (; at != NULL; at = at->next) {
        if (__atomic_load_n(&at->key, __ATOMIC_ACQUIRE) == key) {
            *value = at->value;
            return GP_SUCCESS;
        }
    }
    return GP_INVALID_HANDLE;
}

int gp_local_put(void *context, void *key, void *value,
                 void (*destroy)(void *, void *, void *)) {
    struct gp_context *known;
    GP_CHECK(gp_local_context(context, &known));
    struct gp_local *made = malloc(sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    *made = (struct gp_local){known->locals, key, value, destroy};
    __atomic_store_n(&known->locals, made, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&local_lock);
    return GP_SUCCESS;
}

int gp_local_delete(void *context, const void *key) {
    struct gp_context *known;
    GP_CHECK(gp_local_context(context, &known));
    pthread_mutex_lock(&local_lock);
    for (struct gp_local *at = known->locals; at != NULL; at = at->next) {
        if (at->key == key) __atomic_store_n(&at->key, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&local_lock);
    return GP_SUCCESS;
}

void gp_end_locals(struct gp_context *context) {
    pthread_mutex_lock(&local_lock);
    struct gp_local *at = context->locals;
    __atomic_store_n(&context->locals, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&local_lock);
    // The entries themselves stay: another thread may be reading them.
    for (; at != NULL; at = at->next) {
        void *key = (void *)(uintptr_t)__atomic_load_n(&at->key, __ATOMIC_ACQUIRE);
        if (key != NULL && at->destroy != NULL) at->destroy(context, key, at->value);
    }
}
