// Functions of modules and kernels of libraries: found by name, described, and their attributes.
#define _GNU_SOURCE
#include "module.h"

#include <stdlib.h>

#define PARAMETERS_MAX 4096
#define PARAMETER_BYTES_MAX 32768

static struct function *every_function;  // they are never freed
static pthread_mutex_t every_lock = PTHREAD_MUTEX_INITIALIZER;

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
    function->servers = gp_bit_here();
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
    *request = (struct gp_request){.grows = true};
    GP_CHECK(gp_library_here(module));
    uint64_t of = module->handle.id;
    return module->library ? gp_exchange_find_kernel(request, of, id, name, strlen(name))
                           : gp_exchange_find_function(request, of, id, name, strlen(name));
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
    if (__atomic_load_n(&function->servers, __ATOMIC_RELAXED) & gp_bit_here()) return GP_SUCCESS;
    struct module *module = (struct module *)function->module;
    if (!module->library) return GP_INVALID_HANDLE;
    struct gp_request request;
    pthread_mutex_lock(&module->lock);
    int status = ask_function(module, function->handle.id, function->name, &request);
    if (status == GP_SUCCESS) __atomic_fetch_or(&function->servers, gp_bit_here(), __ATOMIC_RELAXED);
    pthread_mutex_unlock(&module->lock);
    free(request.body);
    return status;
}

GP_EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
    GP_ENTER_ON(module);
    GP_CHECK(gp_check_module(module, false));
    GP_ON(module);
    return find_function(module, name, function);
}

GP_EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_module(library, true));
    return find_function(library, name, kernel);
}

// --- lists of functions, and what they are --------------------------------------------------------

// The names of all functions, as strings that end in zero, behind their count.
static int enumerate(struct module *module, struct gp_request *reply, uint32_t *count) {
    *reply = (struct gp_request){.grows = true};
    pthread_mutex_lock(&module->lock);
    int status = gp_library_here(module);
    pthread_mutex_unlock(&module->lock);
    if (status == GP_SUCCESS) {
        status = gp_exchange_enumerate(reply, module->handle.id);
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
    const char *name = status == GP_SUCCESS ? (const char *)reply.body + 8 : NULL;
    const char *end = status == GP_SUCCESS ? (const char *)reply.body + reply.length : NULL;
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

int gp_count_functions(unsigned *count, void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(gp_check_module(module, false));
    if (count == NULL) return GP_INVALID_VALUE;
    return list_functions(module, NULL, 0, count);
}

GP_EXPORT int cuModuleGetFunctionCount(unsigned *count, void *module) {
    return gp_count_functions(count, module);
}

int gp_list_functions(void **functions, unsigned count, void *module) {
    GP_ENTER_ON(module);
    GP_CHECK(gp_check_module(module, false));
    if (functions == NULL) return GP_INVALID_VALUE;
    return list_functions(module, functions, count, NULL);
}

GP_EXPORT int cuModuleEnumerateFunctions(void **functions, unsigned count, void *module) {
    return gp_list_functions(functions, count, module);
}

GP_EXPORT int cuLibraryGetKernelCount(unsigned *count, void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_module(library, true));
    if (count == NULL) return GP_INVALID_VALUE;
    return list_functions(library, NULL, 0, count);
}

GP_EXPORT int cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check_module(library, true));
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
    if (of->library) return gp_module_of_library(module, of);
    *module = of;
    return GP_SUCCESS;
}

GP_EXPORT int cuFuncGetName(const char **name, void *function) {
    GP_CHECK(gp_ready());
    if (name == NULL || function == NULL) return GP_INVALID_VALUE;
    GP_CHECK(gp_check(function, GP_FUNCTION));
    *name = ((struct function *)function)->name;
    return GP_SUCCESS;
}

GP_ALIAS(cuKernelGetName, cuFuncGetName);

GP_EXPORT int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(function, GP_FUNCTION));
    const struct function *known = function;
    if (offset == NULL || index >= known->count) return GP_INVALID_VALUE;
    *offset = known->parameters[index].offset;
    if (size != NULL) *size = known->parameters[index].size;
    return GP_SUCCESS;
}

GP_ALIAS(cuKernelGetParamInfo, cuFuncGetParamInfo);

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
