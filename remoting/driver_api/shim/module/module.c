// Modules and libraries: loaded, unloaded, and their variables.
#define _GNU_SOURCE
#include "module.h"
#include "jit.h"
#include "managed.h"

#include <stdio.h>
#include <stdlib.h>

struct symbol {
    struct symbol *next;
    uint64_t address, size;
    int device;
    char name[];
};

// --- loading --------------------------------------------------------------------------------------

static struct module *make_module(bool library) {
    struct module *module = calloc(1, sizeof *module);
    if (module == NULL) return NULL;
    module->handle = (struct gp_handle){.magic = GP_MAGIC, .kind = GP_MODULE};
    module->handle.id = gp_new_id();
    module->handle.device = library ? -1 : gp_current_device();
    module->library = library;
    pthread_mutex_init(&module->lock, NULL);
    return module;
}

// The architecture that all devices share, such as 90; 0 when they differ.
static int architecture(void) {
    int found = 0;
    for (int at = 0; at < gp.device_count; at++) {
        int one = gp.devices[at].attributes[75] * 10 + gp.devices[at].attributes[76];
        if (found && one != found) return 0;
        found = one;
    }
    return found;
}

// Load an image on the server that calls go to.
static int load_here(struct module *module, const struct gp_image *image) {
    int status = gp_load_known(module->handle.id, module->library, image->bytes, image->size);
    if (status == GP_NOT_FOUND) {
        uint64_t id = module->handle.id, size = image->size;
        struct gp_request request = {0};
        status = module->library
                     ? gp_exchange_load_library(&request, id, size, image->bytes, size)
                     : gp_exchange_load_module(&request, id, size, image->bytes, size);
    }
    if (status == GP_SUCCESS) module->servers |= gp_bit_here();
    return status;
}

// A library belongs to no context, so the other servers get it when they first need it.
static bool keep_image(struct module *module, const struct gp_image *image) {
    unsigned char *copy = image->owned;
    if (copy == NULL) {
        copy = malloc(image->size + 1);
        if (copy != NULL) memcpy(copy, image->bytes, image->size);
    }
    module->image = (struct gp_image){copy, image->size, copy};
    return copy != NULL;
}

// Have the server's driver compile PTX with options, and say what came of it.
static int load_compiled(struct module *module, const struct gp_image *image,
                         const struct gp_jit *jit) {
    struct gp_request request = {.grows = true};
    int status = gp_exchange_load_compiled(&request, module->handle.id, module->library,
                                           image->size, jit->words, image->bytes, image->size);
    if (status == GP_SUCCESS) module->servers |= gp_bit_here();
    gp_write_jit(jit, request.body, request.length);
    free(request.body);
    return status;
}

// What is no text is compiled already, and has nothing to say.
static int load_first(struct module *module, const struct gp_image *image,
                      const struct gp_jit *jit) {
    bool text = image->bytes[0] != 0x7f && strnlen((const char *)image->bytes, 5) == 5 &&
                image->bytes[image->size - 1] == '\0';
    if (text && jit != NULL && jit->wanted) return load_compiled(module, image, jit);
    if (jit != NULL) gp_write_jit(jit, NULL, 0);
    return load_here(module, image);
}

static int load(int op, const void *data, const struct gp_jit *jit, void **made) {
    if (data == NULL || made == NULL) return GP_INVALID_VALUE;
    struct gp_image image;
    if (!gp_find_image(data, architecture(), &image)) return GP_INVALID_IMAGE;
    struct module *module = make_module(op == GP_LOAD_LIBRARY);
    int status = module == NULL ? GP_OUT_OF_MEMORY : load_first(module, &image, jit);
    bool kept = status == GP_SUCCESS && gp_several && module->library;
    if (kept && !keep_image(module, &image)) status = GP_OUT_OF_MEMORY;
    if (!kept) free(image.owned);
    if (status != GP_SUCCESS) {
        free(module);
        return status;
    }
    *made = module;
    return GP_SUCCESS;
}

// Make a library known to the server that calls go to; its lock is held.
int gp_library_here(struct module *module) {
    if (!gp_several || !module->library || module->servers & gp_bit_here()) return GP_SUCCESS;
    return load_here(module, &module->image);
}

static void *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    char *bytes = NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0) bytes = malloc((size_t)size + 64);
    if (bytes != NULL) {
        size_t got = fread(bytes, 1, (size_t)size, file);
        memset(bytes + got, 0, 64);  // PTX needs an end, and short files a header to look at
    }
    fclose(file);
    return bytes;
}

static int load_file(int op, const char *path, const struct gp_jit *jit, void **made) {
    if (path == NULL) return GP_INVALID_VALUE;
    char *bytes = read_file(path);
    if (bytes == NULL) return GP_FILE_NOT_FOUND;
    int status = load(op, bytes, jit, made);
    free(bytes);
    return status;
}

int gp_load_module(void **module, const void *image) {
    GP_ENTER();
    return load(GP_LOAD_MODULE, image, NULL, module);
}

GP_EXPORT int cuModuleLoadData(void **module, const void *image) {
    return gp_load_module(module, image);
}

GP_EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count,
                                 const int *options, void **values) {
    GP_ENTER();
    struct gp_jit jit;
    gp_read_jit(count, options, values, &jit);
    return load(GP_LOAD_MODULE, image, &jit, module);
}

GP_ALIAS(cuModuleLoadFatBinary, cuModuleLoadData);

GP_EXPORT int cuModuleLoad(void **module, const char *path) {
    GP_ENTER();
    return load_file(GP_LOAD_MODULE, path, NULL, module);
}

GP_EXPORT int cuLibraryLoadData(void **library, const void *code, void *jit, void **jit_values,
                                unsigned jit_count, void *options, void **values,
                                unsigned count) {
    (void)options, (void)values, (void)count;
    GP_CHECK(gp_ready());
    struct gp_jit wish;
    gp_read_jit(jit_count, jit, jit_values, &wish);
    return load(GP_LOAD_LIBRARY, code, &wish, library);
}

GP_EXPORT int cuLibraryLoadFromFile(void **library, const char *path, void *jit, void **jit_values,
                                    unsigned jit_count, void *options, void **values,
                                    unsigned count) {
    (void)options, (void)values, (void)count;
    GP_CHECK(gp_ready());
    struct gp_jit wish;
    gp_read_jit(jit_count, jit, jit_values, &wish);
    return load_file(GP_LOAD_LIBRARY, path, &wish, library);
}

int gp_check_module(const void *module, bool library) {
    GP_CHECK(gp_check(module, GP_MODULE));
    return ((const struct module *)module)->library == library ? GP_SUCCESS : GP_INVALID_HANDLE;
}

int gp_module_here(const void *module) { return gp_check_module(module, false); }

static int send_unload(const struct module *module) {
    uint64_t id = module->handle.id;
    return module->library ? gp_post_unload_library(id) : gp_post_unload_module(id);
}

static int unload(struct module *module) {
    // The memory stays: kernels of this module may be named once more by mistake, and must then
    // be found dead instead of elsewhere. Modules are few.
    module->handle.magic = 0;
    for (struct function *at = module->functions; at != NULL; at = at->next) at->handle.magic = 0;
    for (struct symbol *at = module->symbols; at != NULL; at = at->next) {
        struct gp_range range;
        int status = gp_remove_range(at->address, &range);
        if (status == GP_SUCCESS && range.kind == GP_MANAGED_MEMORY) {
            gp_region_return(range.start, at->device);
        }
    }
    if (!module->library) gp_hooks.module_unloaded(module);
    free(module->image.owned);
    module->image = (struct gp_image){0};
    if (!gp_several) return send_unload(module);
    for (int server = 0; server < gp.server_count; server++) {
        if (!(module->servers & 1ull << server)) continue;
        GP_ROUTE(gp_first_device(server));
        send_unload(module);
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuModuleUnload(void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(gp_check_module(module, false));
    return unload(module);
}

GP_EXPORT int cuLibraryUnload(void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_module(library, true));
    struct module *known = library;
    for (int at = 0; at < GP_DEVICES_MAX; at++) {
        struct module *module = known->modules[at];
        if (module == NULL) continue;
        module->handle.magic = 0;
        for (struct function *f = module->functions; f != NULL; f = f->next) f->handle.magic = 0;
        gp_hooks.module_unloaded(module);
    }
    return unload(library);
}

int gp_module_of_library(void **module, void *library) {
    GP_ENTER();
    if (module == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check_module(library, true));
    struct module *known = library;
    int device = gp_current_device();
    pthread_mutex_lock(&known->lock);
    int status = GP_SUCCESS;
    if (known->modules[device] == NULL) {
        struct module *made = make_module(false);
        status = made == NULL ? GP_OUT_OF_MEMORY : gp_library_here(known);
        if (status == GP_SUCCESS) {
            status = gp_call_library_module(known->handle.id, made->handle.id);
        }
        if (status == GP_SUCCESS) {
            made->servers = gp_bit_here();
            known->modules[device] = made;
        } else {
            free(made);
        }
    }
    *module = known->modules[device];
    pthread_mutex_unlock(&known->lock);
    return status;
}

GP_EXPORT int cuLibraryGetModule(void **module, void *library) {
    return gp_module_of_library(module, library);
}

// --- variables ------------------------------------------------------------------------------------

static int find_global(struct module *module, int op, const char *name, uint64_t *address,
                       size_t *size) {
    if (name == NULL || strlen(name) > NAME_MAX_SIZE) return GP_INVALID_VALUE;
    int device = gp_current_device(), status = GP_SUCCESS;
    if (device < 0) device = 0;  // managed variables are of no device's
    GP_ROUTE(device);
    pthread_mutex_lock(&module->lock);
    struct symbol *at = module->symbols;
    while (at != NULL && (at->device != device || strcmp(at->name, name) != 0)) at = at->next;
    if (at == NULL) {
        // Its address and size, and those of the managed memory that it is in.
        uint64_t id = module->handle.id, reply[4] = {0};
        struct gp_request request = {.body = reply, .capacity = sizeof reply};
        status = gp_library_here(module);
        if (status == GP_SUCCESS) {
            status = op == GP_FIND_MANAGED
                         ? gp_exchange_find_managed(&request, id, name, strlen(name))
                         : gp_exchange_find_global(&request, id, name, strlen(name));
        }
        bool managed = status == GP_SUCCESS && reply[3] != 0;
        if (managed) status = gp_region_borrow(reply[2], reply[3], device);
        if (status == GP_SUCCESS) at = malloc(sizeof *at + strlen(name) + 1);
        if (status == GP_SUCCESS && at == NULL) status = GP_OUT_OF_MEMORY;
        if (status == GP_SUCCESS) {
            *at = (struct symbol){module->symbols, reply[0], reply[1], device};
            strcpy(at->name, name);
            module->symbols = at;
            int kind = managed ? GP_MANAGED_MEMORY : GP_GLOBAL_MEMORY;
            gp_add_range((struct gp_range){reply[0], reply[1], kind, device, 0, 0, NULL, false});
        }
    }
    if (status == GP_SUCCESS && address != NULL) *address = at->address;
    if (status == GP_SUCCESS && size != NULL) *size = at->size;
    pthread_mutex_unlock(&module->lock);
    return status;
}

GP_EXPORT int cuModuleGetGlobal_v2(uint64_t *address, size_t *size, void *module,
                                   const char *name) {
    GP_ENTER_ON(module);
    GP_CHECK(gp_check_module(module, false));
    GP_ON(module);
    return find_global(module, GP_FIND_GLOBAL, name, address, size);
}

GP_EXPORT int cuLibraryGetGlobal(uint64_t *address, size_t *size, void *library,
                                 const char *name) {
    GP_ENTER();
    GP_CHECK(gp_check_module(library, true));
    return find_global(library, GP_FIND_GLOBAL, name, address, size);
}

GP_EXPORT int cuLibraryGetManaged(uint64_t *address, size_t *size, void *library,
                                  const char *name) {
    GP_CHECK(gp_ready());  // runtimes ask before they make a context current
    GP_CHECK(gp_check_module(library, true));
    return find_global(library, GP_FIND_MANAGED, name, address, size);
}
