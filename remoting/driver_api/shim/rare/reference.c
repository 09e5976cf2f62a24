// Texture and surface references, which programs had before there were objects. What the program says of one goes to
// the server's own, in the order of its launches; kept here is what is bound, in the program's own handles, and what was
// said last, so that programs that say the same before each launch wait for nothing.
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>

#define NAME_MAX_SIZE 4096
#define TEXTURE_ALIGNMENT 14  // CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT
#define OVERRIDE_FORMAT 1     // CU_TRSA_OVERRIDE_FORMAT; CUDA's runtime goes without

// What may be bound, as texture_references.py in the worker counts it.
enum { TO_ARRAY, TO_MIPMAP, TO_LINEAR, TO_PITCHED, TO_SURFACE, TO_NOTHING };

// What may be set and asked for. Each of the dimensions has an address mode of its own.
enum { FORMAT, FILTER, MIP_FILTER, MIP_BIAS, MIP_CLAMP, ANISOTROPY, BORDER, FLAGS, MODE, SETTINGS = MODE + 3 };

struct reference {
    struct gp_handle handle;
    struct reference *next;  // of all that modules have
    const void *module;      // NULL: the program's own
    pthread_mutex_t lock;
    int bound;
    void *object;
    uint64_t address;
    struct {
        bool known;
        uint64_t words[2];
    } said[SETTINGS];
    char name[];
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct reference *references;

static struct reference *make(enum gp_kind kind, const void *module, const char *name) {
    struct reference *made = calloc(1, sizeof *made + strlen(name) + 1);
    if (made == NULL) return NULL;
    made->handle = (struct gp_handle){.magic = GP_MAGIC, .kind = kind, .id = gp_new_id()};
    made->handle.device = gp_current_device();
    made->module = module;
    made->bound = TO_NOTHING;
    pthread_mutex_init(&made->lock, NULL);
    strcpy(made->name, name);
    return made;
}

static int find(void **found, void *module, const char *name, enum gp_kind kind) {
    GP_ENTER();
    GP_CHECK(gp_module_here(module));
    GP_ON(module);
    if (found == NULL || name == NULL || strlen(name) > NAME_MAX_SIZE) return GP_INVALID_VALUE;
    pthread_mutex_lock(&list_lock);
    struct reference *at = references;
    while (at != NULL && (at->module != module || (int)at->handle.kind != (int)kind ||
                          strcmp(at->name, name) != 0)) {
        at = at->next;
    }
    int status = GP_SUCCESS;
    if (at == NULL) {
        at = make(kind, module, name);
        status = at == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
        if (status == GP_SUCCESS) {
            struct gp_request request = {0};
            status = gp_exchange_reference_find(&request, ((struct gp_handle *)module)->id,
                                                at->handle.id, kind == GP_SURFACE_REFERENCE, name,
                                                strlen(name));
        }
        if (status == GP_SUCCESS) {
            at->next = references;
            references = at;
        } else {
            free(at);
        }
    }
    if (status == GP_SUCCESS) *found = at;
    pthread_mutex_unlock(&list_lock);
    return status;
}

// Their memory stays, as that of functions does: using one that is gone must be an error.
static void end_references(const void *module) {
    pthread_mutex_lock(&list_lock);
    struct reference **at = &references;
    while (*at != NULL) {
        if ((*at)->module != module) {
            at = &(*at)->next;
            continue;
        }
        (*at)->handle.magic = 0;
        *at = (*at)->next;
    }
    pthread_mutex_unlock(&list_lock);
}

GP_EXPORT int cuTexRefCreate(void **reference) {
    GP_ENTER();
    if (reference == NULL) return GP_INVALID_VALUE;
    struct reference *made = make(GP_TEXTURE_REFERENCE, NULL, "");
    if (made == NULL) return GP_OUT_OF_MEMORY;
    int status = gp_call_reference_create(made->handle.id);
    if (status == GP_SUCCESS) {
        *reference = made;
    } else {
        free(made);
    }
    return status;
}

static int check(void *reference, enum gp_kind kind) {
    GP_ENTER();
    return gp_check(reference, kind);
}

GP_EXPORT int cuTexRefDestroy(void *reference) {
    GP_CHECK(check(reference, GP_TEXTURE_REFERENCE));
    struct reference *known = reference;
    if (known->module != NULL) return GP_INVALID_VALUE;
    GP_ON(reference);
    known->handle.magic = 0;
    return gp_post_reference_destroy(known->handle.id);
}

// --- what is bound --------------------------------------------------------------------------------

struct binding {
    int to;
    void *object;
    uint64_t address;
    uint64_t more[5];  // flags; size; or pitch, width, height, format and channels
};

// What the driver takes without a word is sent with the launches; what it may refuse, or answers with an offset, is
// waited for.
static int bind(struct reference *reference, struct binding binding, uint64_t *offset) {
    GP_ON(reference);
    uint64_t target = binding.address;
    if (binding.object != NULL) {
        GP_REACH(binding.object);
        target = ((struct gp_handle *)binding.object)->id;
    } else {
        GP_REACH_ADDRESS(target);
        GP_CHECK(gp_see(&target));
    }
    uint64_t id = reference->handle.id;
    pthread_mutex_lock(&reference->lock);
    int status;
    if (offset == NULL) {
        status = gp_post_reference_bind(id, binding.to, target, binding.more);
    } else {
        status = gp_call_reference_place(id, binding.to, target, binding.more, offset);
    }
    if (status == GP_SUCCESS) {
        reference->bound = binding.to;
        reference->object = binding.object;
        reference->address = binding.address;
        reference->said[FORMAT].known = false;  // arrays have theirs
    }
    pthread_mutex_unlock(&reference->lock);
    return status;
}

static int tie(void *reference, enum gp_kind kind, int to, void *object,
                       enum gp_kind object_kind, unsigned flags) {
    GP_CHECK(check(reference, kind));
    GP_CHECK(gp_check(object, object_kind));
    struct binding binding = {.to = to, .object = object, .more = {flags}};
    uint64_t offset = 0;
    // Whether a surface may be of an array is the driver's to say.
    bool usual = flags <= OVERRIDE_FORMAT && kind == GP_TEXTURE_REFERENCE;
    return bind(reference, binding, usual ? NULL : &offset);
}

GP_EXPORT int cuTexRefSetAddress_v2(size_t *offset, void *reference, uint64_t address,
                                    size_t size) {
    GP_CHECK(check(reference, GP_TEXTURE_REFERENCE));
    if (offset != NULL) *offset = 0;
    bool ends = address == 0 && size == 0;  // as the runtime unbinds
    struct binding binding = {.to = TO_LINEAR, .address = address, .more = {size}};
    unsigned alignment = (unsigned)gp.devices[gp_current_device()].attributes[TEXTURE_ALIGNMENT];
    struct gp_range range;
    bool inside = address != 0 && gp_find_range(address, &range) &&
                  size <= range.size - (address - range.start);
    uint64_t found = 0;
    bool usual = ends || (inside && alignment != 0 && address % alignment == 0);
    GP_CHECK(bind(reference, binding, usual ? NULL : &found));
    if (offset != NULL) *offset = found;
    if (ends) ((struct reference *)reference)->bound = TO_NOTHING;
    return GP_SUCCESS;
}

struct descriptor {
    size_t width, height;
    int format;
    unsigned channels;
};

GP_EXPORT int cuTexRefSetAddress2D_v3(void *reference, const struct descriptor *descriptor,
                                      uint64_t address, size_t pitch) {
    GP_CHECK(check(reference, GP_TEXTURE_REFERENCE));
    if (descriptor == NULL) return GP_INVALID_VALUE;
    struct binding binding = {.to = TO_PITCHED, .address = address};
    uint64_t more[5] = {pitch, descriptor->width, descriptor->height,
                        (uint64_t)descriptor->format, descriptor->channels};
    memcpy(binding.more, more, sizeof more);
    uint64_t none;
    return bind(reference, binding, &none);  // its alignment and extents may be refused
}

GP_ALIAS(cuTexRefSetAddress2D_v2, cuTexRefSetAddress2D_v3);

static int bound_object(void **object, void *reference, enum gp_kind kind, int to) {
    GP_CHECK(check(reference, kind));
    const struct reference *known = reference;
    if (object == NULL || known->bound != to) return GP_INVALID_VALUE;
    *object = known->object;
    return GP_SUCCESS;
}

GP_EXPORT int cuTexRefGetAddress_v2(uint64_t *address, void *reference) {
    GP_CHECK(check(reference, GP_TEXTURE_REFERENCE));
    const struct reference *known = reference;
    bool linear = known->bound == TO_LINEAR || known->bound == TO_PITCHED;
    if (address == NULL || !linear) return GP_INVALID_VALUE;
    *address = known->address;
    return GP_SUCCESS;
}

GP_EXPORT int cuParamSetTexRef(void *function, int unit, void *reference) {
    (void)unit;
    GP_CHECK(check(reference, GP_TEXTURE_REFERENCE));
    // A kernel reads every reference of its module, so nothing is left to be done.
    return gp_check(function, GP_FUNCTION);
}

// --- how it is read -------------------------------------------------------------------------------

static int set(void *handle, int what, uint64_t first, uint64_t second) {
    GP_CHECK(check(handle, GP_TEXTURE_REFERENCE));
    GP_ON(handle);
    struct reference *reference = handle;
    uint64_t words[2] = {first, second};
    pthread_mutex_lock(&reference->lock);
    int status = GP_SUCCESS;
    if (!reference->said[what].known || memcmp(reference->said[what].words, words, sizeof words)) {
        status = gp_call_reference_set(reference->handle.id, what, first, second);
        reference->said[what].known = status == GP_SUCCESS;
        memcpy(reference->said[what].words, words, sizeof words);
    }
    pthread_mutex_unlock(&reference->lock);
    return status;
}

static uint64_t bits(float value) {
    uint32_t found;
    memcpy(&found, &value, 4);
    return found;
}

GP_EXPORT int cuTexRefSetAddressMode(void *reference, int dimension, int mode) {
    if (dimension < 0 || dimension > 2) return GP_INVALID_VALUE;
    return set(reference, MODE + dimension, (uint32_t)mode, 0);
}

GP_EXPORT int cuTexRefSetBorderColor(void *reference, const float *color) {
    if (color == NULL) return GP_INVALID_VALUE;
    uint64_t words[2];
    memcpy(words, color, sizeof words);
    return set(reference, BORDER, words[0], words[1]);
}

// Two numbers of 8 bytes, of which the first or both have a meaning; a colour fills both.
static int get(void *handle, int what, uint64_t words[2]) {
    GP_CHECK(check(handle, GP_TEXTURE_REFERENCE));
    GP_ON(handle);
    return gp_call_reference_get(((struct gp_handle *)handle)->id, what, words);
}

static int get_one(void *value, void *reference, int what) {
    uint64_t words[2] = {0};
    if (value == NULL) return GP_INVALID_VALUE;
    GP_CHECK(get(reference, what, words));
    memcpy(value, words, 4);
    return GP_SUCCESS;
}

static int get_two(void *first, void *second, void *reference, int what) {
    uint64_t words[2] = {0};
    GP_CHECK(get(reference, what, words));
    if (first != NULL) memcpy(first, &words[0], 4);
    if (second != NULL) memcpy(second, &words[1], 4);
    return GP_SUCCESS;
}

GP_EXPORT int cuTexRefGetAddressMode(int *mode, void *reference, int dimension) {
    if (dimension < 0 || dimension > 2) return GP_INVALID_VALUE;
    return get_one(mode, reference, MODE + dimension);
}

GP_EXPORT int cuTexRefGetBorderColor(float *color, void *reference) {
    uint64_t words[2] = {0};
    if (color == NULL) return GP_INVALID_VALUE;
    GP_CHECK(get(reference, BORDER, words));
    memcpy(color, words, sizeof words);
    return GP_SUCCESS;
}

GP_AT_LOAD register_hooks(void) { gp_hooks.module_unloaded = end_references; }

#define GP_FORWARDS_REFERENCE
#include "generated_forwards.h"
