// Modules and libraries, their functions, launches and occupancy.
#define _GNU_SOURCE
#include "core.h"
#include "image.h"
#include "jit.h"
#include "managed.h"

#include <stdio.h>
#include <stdlib.h>

#define PARAMETERS_MAX 4096
#define PARAMETER_BYTES_MAX 32768
#define FUNCTION_ATTRIBUTES 16
#define LAUNCH_ATTRIBUTES_MAX 32
#define LAUNCH_ATTRIBUTE_SIZE 72
#define NAME_MAX_SIZE 16384
#define MAX_DYNAMIC_SHARED 8  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

struct parameter {
    uint32_t offset, size;
};

struct attributes {
    int status[FUNCTION_ATTRIBUTES], value[FUNCTION_ATTRIBUTES];
};

struct occupancy {
    struct occupancy *next;
    uint64_t key[5];
    uint64_t value;
};

struct function {
    struct gp_handle handle;
    struct function *next;  // of the same module
    struct function *older;  // of all
    struct gp_handle *module;
    uint64_t servers;  // where the worker knows it, a bit for each
    char *name;
    uint32_t count, bytes;
    struct parameter *parameters;
    pthread_mutex_t lock;
    struct attributes *attributes[GP_DEVICES_MAX];
    struct occupancy *occupancies;
};

static struct function *every_function;  // they are never freed
static pthread_mutex_t every_lock = PTHREAD_MUTEX_INITIALIZER;

struct symbol {
    struct symbol *next;
    uint64_t address, size;
    int device;
    char name[];
};

struct module {
    struct gp_handle handle;
    bool library;
    pthread_mutex_t lock;
    struct function *functions;
    struct symbol *symbols;
    struct module *modules[GP_DEVICES_MAX];  // of a library: its modules by device
    uint64_t servers;        // where it is loaded, a bit for each
    struct gp_image image;   // of a library that other servers may yet need
};

static uint64_t bit_here(void) { return 1ull << gp_here(); }

// --- what occupancy is known of clusters ----------------------------------------------------------

// cuBLASLt asks before every product with a bias, always the same; so answers are kept. A function's
// attributes change the answer, and forget all.
struct clusters {
    struct clusters *next;
    uint64_t value;
    int device;
    size_t size;
    unsigned char question[];
};

#define CLUSTER_SLOTS 1024
#define CLUSTERS_MAX 16384
static struct clusters *known_clusters[CLUSTER_SLOTS];
static unsigned clusters_kept;
static pthread_mutex_t clusters_lock = PTHREAD_MUTEX_INITIALIZER;

static struct clusters **cluster_slot(const void *question, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (size_t at = 0; at < size; at++) {
        hash = (hash ^ ((const unsigned char *)question)[at]) * 0x100000001b3u;
    }
    return &known_clusters[hash % CLUSTER_SLOTS];
}

static bool recall_clusters(const void *question, size_t size, int device, uint64_t *value) {
    pthread_mutex_lock(&clusters_lock);
    struct clusters *at = *cluster_slot(question, size);
    while (at != NULL && (at->device != device || at->size != size ||
                          memcmp(at->question, question, size) != 0)) {
        at = at->next;
    }
    if (at != NULL) *value = at->value;
    pthread_mutex_unlock(&clusters_lock);
    return at != NULL;
}

static void forget_clusters(void) {
    pthread_mutex_lock(&clusters_lock);
    for (int slot = 0; slot < CLUSTER_SLOTS && clusters_kept > 0; slot++) {
        while (known_clusters[slot] != NULL) {
            struct clusters *gone = known_clusters[slot];
            known_clusters[slot] = gone->next;
            free(gone);
        }
    }
    clusters_kept = 0;
    pthread_mutex_unlock(&clusters_lock);
}

static void keep_clusters(const void *question, size_t size, int device, uint64_t value) {
    struct clusters *made = malloc(sizeof *made + size);
    if (made == NULL) return;
    if (__atomic_load_n(&clusters_kept, __ATOMIC_RELAXED) >= CLUSTERS_MAX) forget_clusters();
    made->value = value;
    made->device = device;
    made->size = size;
    memcpy(made->question, question, size);
    pthread_mutex_lock(&clusters_lock);
    struct clusters **slot = cluster_slot(question, size);
    made->next = *slot;
    *slot = made;
    clusters_kept++;
    pthread_mutex_unlock(&clusters_lock);
}

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
        uint64_t values[2] = {module->handle.id, image->size};
        struct gp_request request = {0};
        int op = module->library ? GP_LOAD_LIBRARY : GP_LOAD_MODULE;
        status = gp_exchange(&request, op, values, 2, NULL, 0, image->bytes, image->size);
    }
    if (status == GP_SUCCESS) module->servers |= bit_here();
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
    uint64_t values[3 + GP_JIT_WORDS] = {module->handle.id, module->library, image->size};
    memcpy(values + 3, jit->words, sizeof jit->words);
    struct gp_request request = {.grows = true};
    int status = gp_exchange(&request, GP_LOAD_COMPILED, values, 3 + GP_JIT_WORDS, NULL, 0,
                             image->bytes, image->size);
    if (status == GP_SUCCESS) module->servers |= bit_here();
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
static int library_here(struct module *module) {
    if (!gp_several || !module->library || module->servers & bit_here()) return GP_SUCCESS;
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

GP_EXPORT int cuModuleLoadData(void **module, const void *image) {
    GP_ENTER();
    return load(GP_LOAD_MODULE, image, NULL, module);
}

GP_EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count,
                                 const int *options, void **values) {
    GP_ENTER();
    struct gp_jit jit;
    gp_read_jit(count, options, values, &jit);
    return load(GP_LOAD_MODULE, image, &jit, module);
}

GP_EXPORT int cuModuleLoadFatBinary(void **module, const void *image) {
    return cuModuleLoadData(module, image);
}

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

static int check_module(const void *module, bool library) {
    GP_CHECK(gp_check(module, GP_MODULE));
    return ((const struct module *)module)->library == library ? GP_SUCCESS : GP_INVALID_HANDLE;
}

int gp_module_here(const void *module) { return check_module(module, false); }

static int unload(struct module *module, int op) {
    uint64_t values[1] = {module->handle.id};
    // The memory stays: kernels of this module may be named once more by mistake, and must then
    // be found dead instead of elsewhere. Modules are few.
    module->handle.magic = 0;
    for (struct function *at = module->functions; at != NULL; at = at->next) at->handle.magic = 0;
    for (struct symbol *at = module->symbols; at != NULL; at = at->next) {
        struct gp_range range;
        int status = gp_remove_range(at->address, &range);
        if (status == GP_SUCCESS && range.kind == GP_MANAGED_MEMORY) gp_region_return(range.start);
    }
    if (!module->library) gp_references_end(module);
    free(module->image.owned);
    module->image = (struct gp_image){0};
    if (!gp_several) return gp_post(op, values, 1);
    for (int server = 0; server < gp.server_count; server++) {
        if (!(module->servers & 1ull << server)) continue;
        GP_ROUTE(gp_first_device(server));
        gp_post(op, values, 1);
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuModuleUnload(void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(check_module(module, false));
    return unload(module, GP_UNLOAD_MODULE);
}

GP_EXPORT int cuLibraryUnload(void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(check_module(library, true));
    struct module *known = library;
    for (int at = 0; at < GP_DEVICES_MAX; at++) {
        struct module *module = known->modules[at];
        if (module == NULL) continue;
        module->handle.magic = 0;
        for (struct function *f = module->functions; f != NULL; f = f->next) f->handle.magic = 0;
        gp_references_end(module);
    }
    return unload(library, GP_UNLOAD_LIBRARY);
}

GP_EXPORT int cuLibraryGetModule(void **module, void *library) {
    GP_ENTER();
    if (module == NULL) return GP_INVALID_VALUE;
    GP_CHECK(check_module(library, true));
    struct module *known = library;
    int device = gp_current_device();
    pthread_mutex_lock(&known->lock);
    int status = GP_SUCCESS;
    if (known->modules[device] == NULL) {
        struct module *made = make_module(false);
        uint64_t values[2] = {known->handle.id, made == NULL ? 0 : made->handle.id};
        status = made == NULL ? GP_OUT_OF_MEMORY : library_here(known);
        if (status == GP_SUCCESS) status = gp_call(GP_LIBRARY_MODULE, values, 2, NULL, 0);
        if (status == GP_SUCCESS) {
            made->servers = bit_here();
            known->modules[device] = made;
        } else {
            free(made);
        }
    }
    *module = known->modules[device];
    pthread_mutex_unlock(&known->lock);
    return status;
}

// --- functions and globals ------------------------------------------------------------------------

static struct function *take_function(struct module *module, uint64_t id, const char *name,
                                      const struct gp_request *reply) {
    const unsigned char *body = reply->body;
    uint32_t count;
    if (reply->length < 8) return NULL;
    memcpy(&count, body, 4);
    if (count > PARAMETERS_MAX || reply->length != 8 + count * sizeof(struct parameter)) return NULL;
    struct function *function = calloc(1, sizeof *function);
    if (function == NULL) return NULL;
    function->parameters = calloc(count + 1, sizeof(struct parameter));
    function->name = strdup(name);
    if (function->parameters == NULL || function->name == NULL) return NULL;
    memcpy(function->parameters, body + 8, count * sizeof(struct parameter));
    function->count = count;
    for (uint32_t at = 0; at < count; at++) {
        uint64_t end = (uint64_t)function->parameters[at].offset + function->parameters[at].size;
        if (end > PARAMETER_BYTES_MAX) return NULL;
        if (end > function->bytes) function->bytes = (uint32_t)end;
    }
    function->handle = (struct gp_handle){.magic = GP_MAGIC, .kind = GP_FUNCTION, .id = id};
    function->handle.device = gp_current_device();
    function->servers = bit_here();
    function->module = &module->handle;
    pthread_mutex_init(&function->lock, NULL);
    function->next = module->functions;
    module->functions = function;
    pthread_mutex_lock(&every_lock);
    function->older = every_function;
    every_function = function;
    pthread_mutex_unlock(&every_lock);
    return function;
}

// --- functions as graphs need them ----------------------------------------------------------------

void *gp_function_by_id(uint64_t id) {
    pthread_mutex_lock(&every_lock);
    struct function *at = every_function;
    while (at != NULL && (at->handle.id != id || at->handle.magic != GP_MAGIC)) at = at->older;
    pthread_mutex_unlock(&every_lock);
    return at;
}

bool gp_function_is_kernel(void *function) {
    const struct gp_handle *of = function == NULL ? NULL : ((struct function *)function)->module;
    return of != NULL && ((const struct module *)of)->library;
}

const char *gp_function_name(void *function) {
    if (gp_check(function, GP_FUNCTION) != GP_SUCCESS) return NULL;
    return ((struct function *)function)->name;
}

void **gp_function_pointers(void *given, unsigned char *bytes) {
    const struct function *function = given;
    void **made = calloc(function->count + 1, sizeof *made);
    for (uint32_t at = 0; made != NULL && at < function->count; at++) {
        made[at] = bytes + function->parameters[at].offset;
    }
    return made;
}

// Ask the server for a function, which gets this identifier there; the module's lock is held.
static int ask_function(struct module *module, uint64_t id, const char *name,
                        struct gp_request *request) {
    uint64_t values[2] = {module->handle.id, id};
    int op = module->library ? GP_FIND_KERNEL : GP_FIND_FUNCTION;
    *request = (struct gp_request){.grows = true};
    GP_CHECK(library_here(module));
    return gp_exchange(request, op, values, 2, name, strlen(name), NULL, 0);
}

static int find_function(struct module *module, const char *name, void **found) {
    if (found == NULL || name == NULL || strlen(name) > NAME_MAX_SIZE) return GP_INVALID_VALUE;
    pthread_mutex_lock(&module->lock);
    struct function *at = module->functions;
    while (at != NULL && strcmp(at->name, name) != 0) at = at->next;
    int status = GP_SUCCESS;
    if (at == NULL) {
        uint64_t id = gp_new_id();
        struct gp_request request;
        status = ask_function(module, id, name, &request);
        if (status == GP_SUCCESS) {
            at = take_function(module, id, name, &request);
            if (at == NULL) status = GP_UNKNOWN;
        }
        free(request.body);
    }
    pthread_mutex_unlock(&module->lock);
    *found = at;
    return status;
}

// A kernel of a library is the same on all servers, and becomes known to each at its first use. A
// function of a module is its server's alone.
int gp_function_here(void *given) {
    GP_CHECK(gp_check(given, GP_FUNCTION));
    struct function *function = given;
    if (!gp_several) return GP_SUCCESS;
    if (__atomic_load_n(&function->servers, __ATOMIC_RELAXED) & bit_here()) return GP_SUCCESS;
    struct module *module = (struct module *)function->module;
    if (!module->library) return GP_INVALID_HANDLE;
    struct gp_request request;
    pthread_mutex_lock(&module->lock);
    int status = ask_function(module, function->handle.id, function->name, &request);
    if (status == GP_SUCCESS) __atomic_fetch_or(&function->servers, bit_here(), __ATOMIC_RELAXED);
    pthread_mutex_unlock(&module->lock);
    free(request.body);
    return status;
}

GP_EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    GP_ENTER_ON(module);
    GP_CHECK(check_module(module, false));
    GP_ON(module);
    return find_function(module, name, function);
}

GP_EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    GP_CHECK(gp_ready());
    GP_CHECK(check_module(library, true));
    return find_function(library, name, kernel);
}

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
        uint64_t values[1] = {module->handle.id}, reply[4] = {0};
        struct gp_request request = {.body = reply, .capacity = sizeof reply};
        status = library_here(module);
        if (status == GP_SUCCESS) {
            status = gp_exchange(&request, op, values, 1, name, strlen(name), NULL, 0);
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
            gp_add_range((struct gp_range){reply[0], reply[1], kind, device, 0, 0, NULL});
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
    GP_CHECK(check_module(module, false));
    GP_ON(module);
    return find_global(module, GP_FIND_GLOBAL, name, address, size);
}

GP_EXPORT int cuLibraryGetGlobal(uint64_t *address, size_t *size, void *library,
                                 const char *name) {
    GP_ENTER();
    GP_CHECK(check_module(library, true));
    return find_global(library, GP_FIND_GLOBAL, name, address, size);
}

GP_EXPORT int cuLibraryGetManaged(uint64_t *address, size_t *size, void *library,
                                  const char *name) {
    GP_CHECK(gp_ready());  // runtimes ask before they make a context current
    GP_CHECK(check_module(library, true));
    return find_global(library, GP_FIND_MANAGED, name, address, size);
}

// The names of all functions, as strings that end in zero, behind their count.
static int enumerate(struct module *module, struct gp_request *reply, uint32_t *count) {
    uint64_t values[1] = {module->handle.id};
    *reply = (struct gp_request){.grows = true};
    pthread_mutex_lock(&module->lock);
    int status = library_here(module);
    pthread_mutex_unlock(&module->lock);
    if (status == GP_SUCCESS) {
        status = gp_exchange(reply, GP_ENUMERATE, values, 1, NULL, 0, NULL, 0);
    }
    if (status == GP_SUCCESS && reply->length < 8) status = GP_UNKNOWN;
    if (status == GP_SUCCESS) memcpy(count, reply->body, 4);
    return status;
}

static int list_functions(struct module *module, void **functions, unsigned room,
                          unsigned *total) {
    GP_ON(&module->handle);
    struct gp_request reply;
    uint32_t count = 0;
    int status = enumerate(module, &reply, &count);
    const char *name = (const char *)reply.body + 8;
    const char *end = (const char *)reply.body + reply.length;
    for (uint32_t at = 0; status == GP_SUCCESS && at < count && at < room; at++) {
        size_t left = (size_t)(end - name), size = strnlen(name, left);
        if (size == left) {
            status = GP_UNKNOWN;
            break;
        }
        status = find_function(module, name, &functions[at]);
        name += size + 1;
    }
    free(reply.body);
    if (total != NULL) *total = count;
    return status;
}

GP_EXPORT int cuModuleGetFunctionCount(unsigned *count, void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(check_module(module, false));
    if (count == NULL) return GP_INVALID_VALUE;
    return list_functions(module, NULL, 0, count);
}

GP_EXPORT int cuModuleEnumerateFunctions(void **functions, unsigned count, void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(check_module(module, false));
    if (functions == NULL) return GP_INVALID_VALUE;
    return list_functions(module, functions, count, NULL);
}

GP_EXPORT int cuLibraryGetKernelCount(unsigned *count, void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(check_module(library, true));
    if (count == NULL) return GP_INVALID_VALUE;
    return list_functions(library, NULL, 0, count);
}

GP_EXPORT int cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(check_module(library, true));
    if (kernels == NULL) return GP_INVALID_VALUE;
    return list_functions(library, kernels, count, NULL);
}

GP_EXPORT int cuKernelGetFunction(void **function, void *kernel) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    if (function == NULL) return GP_INVALID_VALUE;
    *function = kernel;
    return GP_SUCCESS;
}

GP_EXPORT int cuKernelGetLibrary(void **library, void *kernel) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    struct function *known = kernel;
    if (library == NULL || !((struct module *)known->module)->library) return GP_INVALID_VALUE;
    *library = known->module;
    return GP_SUCCESS;
}

GP_EXPORT int cuFuncGetModule(void **module, void *function) {
    GP_ENTER_ON(function);
    GP_CHECK(gp_check(function, GP_FUNCTION));
    if (module == NULL) return GP_INVALID_VALUE;
    struct module *of = (struct module *)((struct function *)function)->module;
    if (of->library) return cuLibraryGetModule(module, of);
    *module = of;
    return GP_SUCCESS;
}

GP_EXPORT int cuFuncGetName(const char **name, void *function) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(function, GP_FUNCTION));
    if (name == NULL) return GP_INVALID_VALUE;
    *name = ((struct function *)function)->name;
    return GP_SUCCESS;
}

GP_EXPORT int cuKernelGetName(const char **name, void *kernel) {
    return cuFuncGetName(name, kernel);
}

GP_EXPORT int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(function, GP_FUNCTION));
    const struct function *known = function;
    if (offset == NULL || index >= known->count) return GP_INVALID_VALUE;
    *offset = known->parameters[index].offset;
    if (size != NULL) *size = known->parameters[index].size;
    return GP_SUCCESS;
}

GP_EXPORT int cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo(kernel, index, offset, size);
}

GP_EXPORT int cuFuncLoad(void *function) {
    GP_ENTER_ON(function);
    return gp_check(function, GP_FUNCTION);
}

GP_EXPORT int cuFuncIsLoaded(int *state, void *function) {
    GP_ENTER_ON(function);
    GP_CHECK(gp_check(function, GP_FUNCTION));
    if (state == NULL) return GP_INVALID_VALUE;
    *state = 1;
    return GP_SUCCESS;
}

// --- attributes -----------------------------------------------------------------------------------

static int fetch_attributes(struct function *function, int device, struct attributes **found) {
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    GP_CHECK(gp_function_here(function));
    pthread_mutex_lock(&function->lock);
    int status = GP_SUCCESS;
    if (function->attributes[device] == NULL) {
        struct attributes *made = calloc(1, sizeof *made);
        uint64_t values[2] = {function->handle.id, (uint64_t)gp_server_device(device)};
        status = made == NULL ? GP_OUT_OF_MEMORY
                              : gp_call(GP_FUNCTION_ATTRIBUTES, values, 2, made, sizeof *made);
        if (status == GP_SUCCESS) {
            function->attributes[device] = made;
        } else {
            free(made);
        }
    }
    *found = function->attributes[device];
    pthread_mutex_unlock(&function->lock);
    return status;
}

GP_EXPORT int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    if (value == NULL || attribute < 0 || attribute >= FUNCTION_ATTRIBUTES) return GP_INVALID_VALUE;
    struct attributes *known;
    GP_CHECK(fetch_attributes(kernel, device, &known));
    if (known->status[attribute] != GP_SUCCESS) return known->status[attribute];
    *value = known->value[attribute];
    return GP_SUCCESS;
}

GP_EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
    GP_ENTER_ON(function);
    return cuKernelGetAttribute(value, attribute, function, gp_current_device());
}

GP_EXPORT int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(kernel, GP_FUNCTION));
    if (attribute < MAX_DYNAMIC_SHARED || attribute >= FUNCTION_ATTRIBUTES) return GP_INVALID_VALUE;
    struct function *function = kernel;
    struct attributes *known;
    GP_CHECK(fetch_attributes(function, device, &known));
    if (attribute == MAX_DYNAMIC_SHARED) {
        // Libraries find the limit by trying, so this one refusal cannot wait.
        int limit = gp.devices[device].attributes[97] - known->value[1];
        if (value < 0 || value > limit) return GP_INVALID_VALUE;
    }
    pthread_mutex_lock(&function->lock);
    bool same = known->status[attribute] == GP_SUCCESS && known->value[attribute] == value;
    known->status[attribute] = GP_SUCCESS;
    known->value[attribute] = value;
    if (!same) {
        struct occupancy *at = function->occupancies;
        function->occupancies = NULL;
        while (at != NULL) {
            struct occupancy *next = at->next;
            free(at);
            at = next;
        }
    }
    pthread_mutex_unlock(&function->lock);
    if (same) return GP_SUCCESS;
    uint64_t values[4] = {function->handle.id, (uint64_t)gp_server_device(device),
                          (uint64_t)attribute, (uint64_t)(int64_t)value};
    forget_clusters();
    GP_ROUTE(device);
    return gp_post(GP_SET_FUNCTION_ATTRIBUTE, values, 4);
}

GP_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value) {
    GP_ENTER_ON(function);
    return cuKernelSetAttribute(attribute, value, function, gp_current_device());
}

GP_EXPORT int cuFuncSetSharedMemConfig(void *function, int config) {
    (void)config;
    GP_ENTER_ON(function);
    return gp_check(function, GP_FUNCTION);
}

int cuFuncSetCacheConfig(void *function, int config);

GP_EXPORT int cuKernelSetCacheConfig(void *kernel, int config, int device) {
    GP_CHECK(gp_check_device(device));
    GP_ROUTE(device);
    return cuFuncSetCacheConfig(kernel, config);
}

// --- launches -------------------------------------------------------------------------------------

struct launch {
    uint64_t function, stream;
    uint32_t grid[3], block[3], shared, bytes;
};

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

static int launch(struct launch *head, struct function *function, void *stream, void **parameters,
                  void **extra, const void *attributes, uint32_t attribute_count, int flags) {
    GP_ENTER_ON(stream);
    GP_CHECK(gp_function_here(function));
    GP_REACH(stream);
    GP_CHECK(gp_stream_id(stream, &head->stream));
    const uint32_t *grid = head->grid, *block = head->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) {
        return GP_INVALID_VALUE;
    }
    if ((uint64_t)block[0] * block[1] * block[2] > 1024 || block[2] > 64) return GP_INVALID_VALUE;
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

GP_EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, void *stream,
                             void **parameters, void **extra) {
    struct launch head = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    return launch(&head, function, stream, parameters, extra, NULL, 0, 0);
}

GP_EXPORT int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                        void *stream, void **parameters) {
    struct launch head = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    return launch(&head, function, stream, parameters, NULL, NULL, 0, 2);
}

struct launch_config {
    uint32_t grid[3], block[3], shared;
    void *stream;
    const unsigned char *attributes;
    uint32_t count;
};

GP_EXPORT int cuLaunchKernelEx(const struct launch_config *config, void *function,
                               void **parameters, void **extra) {
    if (config == NULL || config->count > LAUNCH_ATTRIBUTES_MAX) return GP_INVALID_VALUE;
    for (uint32_t at = 0; at < config->count; at++) {
        uint32_t id;
        memcpy(&id, config->attributes + (size_t)at * LAUNCH_ATTRIBUTE_SIZE, 4);
        // Values that hold handles: events, and nodes of graphs that kernels may change.
        if (id == 7 || id == 12 || id == 13) return GP_NOT_SUPPORTED;
    }
    struct launch head = {.shared = config->shared};
    memcpy(head.grid, config->grid, sizeof head.grid);
    memcpy(head.block, config->block, sizeof head.block);
    return launch(&head, function, config->stream, parameters, extra, config->attributes,
                  config->count, 0);
}

// --- occupancy ------------------------------------------------------------------------------------

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
    uint64_t values[5] = {function->handle.id, key[0], key[1], key[2], key[3]}, reply[1] = {0};
    GP_CHECK(gp_call(op, values, 5, reply, sizeof reply));
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

GP_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *function,
                                                                   int block_size, size_t shared,
                                                                   unsigned flags) {
    if (blocks == NULL) return GP_INVALID_VALUE;
    uint64_t key[4] = {(uint64_t)block_size, shared, flags, 0}, value = 0;
    GP_CHECK(ask_occupancy(function, GP_OCCUPANCY, key, &value));
    *blocks = (int)value;
    return GP_SUCCESS;
}

GP_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function,
                                                          int block_size, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                shared, 0);
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
        struct launch head;
        uint64_t largest, count;
        unsigned char attributes[LAUNCH_ATTRIBUTES_MAX * LAUNCH_ATTRIBUTE_SIZE];
    } record = {.largest = op, .count = config->count};
    record.head.function = ((struct function *)function)->handle.id;
    record.head.stream = 1;
    record.head.shared = config->shared;
    memcpy(record.head.grid, config->grid, sizeof config->grid);
    memcpy(record.head.block, config->block, sizeof config->block);
    memcpy(record.attributes, config->attributes, (size_t)config->count * LAUNCH_ATTRIBUTE_SIZE);
    size_t size = offsetof(__typeof__(record), attributes) +
                  (size_t)config->count * LAUNCH_ATTRIBUTE_SIZE;
    uint64_t reply[1] = {0};
    int device = gp_current_device();
    if (!recall_clusters(&record, size, device, reply)) {
        struct gp_request request = {.body = reply, .capacity = sizeof reply};
        GP_CHECK(gp_exchange(&request, GP_OCCUPANCY_CLUSTERS, NULL, 0, &record, size, NULL, 0));
        keep_clusters(&record, size, device, reply[0]);
    }
    *count = (int)reply[0];
    return GP_SUCCESS;
}

GP_EXPORT int cuOccupancyMaxActiveClusters(int *count, void *function, const void *config) {
    return clusters(count, function, config, 0);
}

GP_EXPORT int cuOccupancyMaxPotentialClusterSize(int *count, void *function, const void *config) {
    return clusters(count, function, config, 1);
}

// The rule of cuda_occupancy.h: the block size with the most resident threads; larger ones win.
GP_EXPORT int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function,
                                                        size_t (*shared_of)(int), size_t shared,
                                                        int limit, unsigned flags) {
    GP_ENTER();
    GP_CHECK(gp_check(function, GP_FUNCTION));
    if (grid == NULL || block == NULL) return GP_INVALID_VALUE;
    int device = gp_current_device(), most = 0;
    GP_CHECK(cuFuncGetAttribute(&most, 0, function));
    if (limit > 0 && limit < most) most = limit;
    int best = 0, best_blocks = 0;
    for (int size = most; size > 0; size = (size - 1) & ~31) {
        int blocks = 0;
        size_t needed = shared_of == NULL ? shared : shared_of(size);
        GP_CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, size,
                                                                      needed, flags));
        if (blocks * size > best * best_blocks) {
            best = size;
            best_blocks = blocks;
        }
        if (best * best_blocks >= gp.devices[device].attributes[39]) break;
    }
    *block = best;
    *grid = best_blocks * gp.devices[device].attributes[16];
    return GP_SUCCESS;
}

GP_EXPORT int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function,
                                               size_t (*shared_of)(int), size_t shared,
                                               int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared,
                                                     limit, 0);
}
