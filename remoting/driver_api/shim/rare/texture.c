// Texture and surface objects: made by the server, described here.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

// By CUresourcetype.
enum { OF_ARRAY, OF_MIPMAP, LINEAR, PITCHED };
#define RESOURCE_SIZE 144  // of CUDA_RESOURCE_DESC
#define TEXTURE_SIZE 104   // of CUDA_TEXTURE_DESC
#define VIEW_SIZE 112      // of CUDA_RESOURCE_VIEW_DESC
#define VIEW_AT (RESOURCE_SIZE + TEXTURE_SIZE)

struct resource {
    int type;
    union {
        struct gp_handle *handle;  // an array, or an array of arrays
        unsigned char bytes[128];
    };
    unsigned flags;
};

_Static_assert(sizeof(struct resource) == RESOURCE_SIZE, "as in cuda.h");

// Kernels get an object's value, which therefore is the server's.
struct object {
    struct object *next;
    unsigned long long value;
    bool surface;
    int server;  // the values of several may be the same
    struct {
        struct resource resource;
        unsigned char texture[TEXTURE_SIZE], view[VIEW_SIZE];
    } description;
};

static pthread_mutex_t object_lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

// Where the pointer to the object of this value lies; object_lock is held.
static struct object **find(unsigned long long value, bool surface) {
    struct object **at = &objects;
    while (*at != NULL && ((*at)->value != value || (*at)->surface != surface ||
                           (*at)->server != gp_here())) {
        at = &(*at)->next;
    }
    return at;
}

static int create(unsigned long long *value, const struct resource *resource, const void *texture,
                  const void *view, bool surface) {
    GP_ENTER();
    if (value == NULL || resource == NULL) return GP_INVALID_VALUE;
    if (resource->type < OF_ARRAY || resource->type > PITCHED) return GP_INVALID_VALUE;
    uint64_t array = 0;
    if (resource->type <= OF_MIPMAP) {
        GP_CHECK(gp_check(resource->handle, resource->type == OF_ARRAY ? GP_ARRAY : GP_MIPMAP));
        GP_REACH(resource->handle);
        array = resource->handle->id;
    }
    struct object *made = calloc(1, sizeof *made);
    if (made == NULL) return GP_OUT_OF_MEMORY;
    made->surface = surface;
    made->server = gp_here();
    if (texture != NULL) memcpy(made->description.texture, texture, TEXTURE_SIZE);
    if (view != NULL) memcpy(made->description.view, view, VIEW_SIZE);
    made->description.resource = *resource;
    // The worker puts in its own handle of the array.
    if (resource->type <= OF_MIPMAP) made->description.resource.handle = NULL;
    uint64_t reply[1] = {0};
    struct gp_request request = {.body = reply, .capacity = sizeof reply};
    int status = gp_exchange_texture_create(&request, surface, array, view != NULL,
                                            &made->description, sizeof made->description);
    if (status != GP_SUCCESS) {
        free(made);
        return status;
    }
    made->description.resource = *resource;
    made->value = reply[0];
    pthread_mutex_lock(&object_lock);
    made->next = objects;
    objects = made;
    pthread_mutex_unlock(&object_lock);
    *value = made->value;
    return GP_SUCCESS;
}

static int destroy(unsigned long long value, bool surface) {
    GP_ENTER();
    if (value == 0) return GP_SUCCESS;
    pthread_mutex_lock(&object_lock);
    struct object **at = find(value, surface), *found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&object_lock);
    if (found == NULL) return GP_INVALID_VALUE;
    free(found);
    return gp_post_texture_destroy(surface, value);
}

static int describe(unsigned long long value, bool surface, void *to, size_t offset, size_t size) {
    GP_ENTER();
    if (to == NULL) return GP_INVALID_VALUE;
    pthread_mutex_lock(&object_lock);
    struct object *found = *find(value, surface);
    if (found != NULL) memcpy(to, (unsigned char *)&found->description + offset, size);
    pthread_mutex_unlock(&object_lock);
    return found != NULL ? GP_SUCCESS : GP_INVALID_VALUE;
}

GP_EXPORT int cuTexObjectCreate(unsigned long long *value, const void *resource,
                                const void *texture, const void *view) {
    if (texture == NULL) return GP_INVALID_VALUE;
    return create(value, resource, texture, view, false);
}

#define GP_FORWARDS_TEXTURE
#include "generated_forwards.h"
