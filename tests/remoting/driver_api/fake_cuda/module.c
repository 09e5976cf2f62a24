/* Modules, libraries, functions, kernels, and the variables that live on a device. */
#define _GNU_SOURCE
#include "fake.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARCH 90

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void settings_clear(int *settings) {
    for (unsigned i = 0; i < FUNCTION_ATTRIBUTES; i++)
        settings[i] = INT_MIN;
}

/* ---- modules ---- */

static CUresult globals_place(CUmodule module) {
    struct image *image = module->image;
    module->globals = zeroed(image->global_count * sizeof *module->globals);
    size_t managed = 0;
    for (unsigned i = 0; i < image->global_count; i++)
        if (image->globals[i].managed)
            managed += (image->globals[i].size + 511) / 512 * 512;
    if (managed > 0 && !memory_make_room(managed))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < image->global_count; i++) {
        struct global_info *info = &image->globals[i];
        struct module_global *global = &module->globals[i];
        global->info = info;
        if (info->size == 0)
            continue;
        TRY(info->managed
                ? memory_allocate_managed(module->ctx, info->size, 1, true, &global->pointer)
                : memory_allocate(module->ctx, info->size, NULL, true, &global->pointer));
        if (info->data != NULL)
            memcpy(memory_storage(global->pointer, info->size), info->data, info->data_bytes);
    }
    return CUDA_SUCCESS;
}

static void globals_drop(CUmodule module) {
    for (unsigned i = 0; i < module->image->global_count; i++)
        if (module->globals[i].pointer != 0)
            memory_release(module->globals[i].pointer, true);
}

static CUresult module_new(CUcontext ctx, struct image *image, CUlibrary library, CUmodule *out) {
    CUmodule module = zeroed(sizeof *module);
    module->magic = MAGIC_MODULE;
    module->ctx = ctx;
    module->image = image;
    module->library = library;
    module->functions = zeroed(image->kernel_count * sizeof *module->functions);
    for (unsigned i = 0; i < image->kernel_count; i++) {
        struct CUfunc_st *function = &module->functions[i];
        function->magic = MAGIC_FUNCTION;
        function->module = module;
        function->info = &image->kernels[i];
        function->kernel = library ? &library->kernels[i] : NULL;
        settings_clear(function->settings);
    }
    references_make(module);
    CUresult placed = globals_place(module);
    if (placed != CUDA_SUCCESS) {
        globals_drop(module);
        return placed;
    }
    pthread_mutex_lock(&lock);
    module->next = ctx->modules;
    ctx->modules = module;
    pthread_mutex_unlock(&lock);
    *out = module;
    return CUDA_SUCCESS;
}

static void module_end(CUmodule module) {
    globals_drop(module);
    module->magic = MAGIC_DEAD;
    for (unsigned i = 0; i < module->image->kernel_count; i++)
        module->functions[i].magic = MAGIC_DEAD;
    for (unsigned i = 0; i < module->image->reference_count; i++)
        module->references[i].magic = MAGIC_DEAD;
    if (module->library != NULL && module->library->per_device[module->ctx->dev] == module)
        module->library->per_device[module->ctx->dev] = NULL;
}

void modules_unload_context(CUcontext ctx) {
    for (CUmodule one = ctx->modules; one; one = one->next)
        if (one->magic == MAGIC_MODULE)
            module_end(one);
    ctx->modules = NULL;
}

static CUresult module_load(CUmodule *module, const void *bytes) {
    CUcontext ctx = context_peek();
    REQUIRE(module != NULL && bytes != NULL);
    struct image *image;
    TRY(image_parse(bytes, ARCH, &image));
    context_keep(ctx, context_drain); /* and what went wrong there is not this call's */
    return module_new(ctx, image, NULL, module);
}

/* The sizes of logs are written over the room that the caller gave, where there are logs. */
void jit_say(CUresult result, unsigned count, const CUjit_option *options, void **values) {
    int registers = 0, level = 4;
    for (unsigned i = 0; i < count; i++) {
        if ((int)options[i] == 0)
            registers = (int)(uintptr_t)values[i];
        if ((int)options[i] == 7)
            level = (int)(uintptr_t)values[i];
    }
    for (int log = 3; log <= 5; log += 2) {
        char text[100] = "", *to = NULL;
        if (log == 3 && result == CUDA_SUCCESS)
            snprintf(text, sizeof text, "info: %d registers, level %d", registers, level);
        if (log == 5 && result != CUDA_SUCCESS)
            snprintf(text, sizeof text, "fatal: error %d", (int)result);
        for (unsigned i = 0; i < count; i++)
            if ((int)options[i] == log)
                to = values[i];
        for (unsigned i = 0; i < count; i++)
            if ((int)options[i] == log + 1) {
                size_t room = (uintptr_t)values[i];
                if (to != NULL && room > 0)
                    snprintf(to, room, "%s", text);
                values[i] = (void *)(uintptr_t)(text[0] ? strlen(text) + 1 : 0);
            }
    }
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER_CONTEXT(ctx);
    return module_load(module, image);
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                CUjit_option *options, void **optionValues) {
    ENTER_CONTEXT(ctx);
    CUresult result = module_load(module, image);
    jit_say(result, numOptions, options, optionValues);
    return result;
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
    ENTER_CONTEXT(ctx);
    return module_load(module, fatCubin);
}

static CUresult file_read(const char *path, void **bytes) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    *bytes = zeroed((size_t)size + 1);
    size_t got = fread(*bytes, 1, (size_t)size, file);
    fclose(file);
    return got == (size_t)size ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
}

API CUresult cuModuleLoad(CUmodule *module, const char *fname) {
    ENTER_CONTEXT(ctx);
    void *bytes;
    TRY(file_read(fname, &bytes));
    return module_load(module, bytes); /* the image points into the bytes, which stay */
}

API CUresult cuModuleUnload(CUmodule hmod) {
    ENTER_CONTEXT(ctx);
    REQUIRE_HANDLE(IS(hmod, MAGIC_MODULE));
    TRY(context_keep(ctx, context_drain));
    pthread_mutex_lock(&lock);
    for (CUmodule *at = &hmod->ctx->modules; *at; at = &(*at)->next)
        if (*at == hmod) {
            *at = hmod->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    module_end(hmod);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    ENTER();
    REQUIRE(mode != NULL);
    const char *wanted = getenv("CUDA_MODULE_LOADING");
    *mode = wanted != NULL && strcmp(wanted, "EAGER") == 0 ? 1 : 2;
    return CUDA_SUCCESS;
}

static CUresult module_function(CUmodule module, const char *name, CUfunction *function) {
    for (unsigned i = 0; i < module->image->kernel_count; i++)
        if (strcmp(module->image->kernels[i].name, name) == 0) {
            *function = &module->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    ENTER_CONTEXT(ctx);
    REQUIRE(hfunc != NULL && name != NULL);
    REQUIRE_HANDLE(IS(hmod, MAGIC_MODULE));
    return module_function(hmod, name, hfunc);
}

CUdeviceptr module_global_find(CUmodule module, const char *name, size_t *bytes) {
    for (unsigned i = 0; i < module->image->global_count; i++)
        if (strcmp(module->image->globals[i].name, name) == 0) {
            if (bytes != NULL)
                *bytes = module->image->globals[i].size;
            return module->globals[i].pointer;
        }
    return 0;
}

static CUresult global_answer(CUmodule module, const char *name, CUdeviceptr *dptr, size_t *bytes) {
    CUdeviceptr found = module_global_find(module, name, bytes);
    if (dptr != NULL)
        *dptr = found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                  const char *name) {
    ENTER_CONTEXT(ctx);
    REQUIRE(name != NULL);
    REQUIRE_HANDLE(IS(hmod, MAGIC_MODULE));
    return global_answer(hmod, name, dptr, bytes);
}

API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) {
    ENTER_CONTEXT(ctx);
    REQUIRE(count != NULL);
    REQUIRE_HANDLE(IS(hmod, MAGIC_MODULE));
    *count = hmod->image->kernel_count;
    return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions,
                                        CUmodule hmod) {
    ENTER_CONTEXT(ctx);
    REQUIRE(functions != NULL);
    REQUIRE_HANDLE(IS(hmod, MAGIC_MODULE));
    for (unsigned i = 0; i < numFunctions && i < hmod->image->kernel_count; i++)
        functions[i] = &hmod->functions[i];
    return CUDA_SUCCESS;
}

/* ---- libraries ---- */

static CUresult library_new(CUlibrary *out, const void *bytes) {
    struct image *image;
    TRY(image_parse(bytes, ARCH, &image));
    CUlibrary library = zeroed(sizeof *library);
    library->magic = MAGIC_LIBRARY;
    library->image = image;
    library->kernels = zeroed(image->kernel_count * sizeof *library->kernels);
    for (unsigned i = 0; i < image->kernel_count; i++) {
        struct CUkern_st *kernel = &library->kernels[i];
        kernel->magic = MAGIC_KERNEL;
        kernel->library = library;
        kernel->index = i;
        for (unsigned dev = 0; dev < DEVICES_MAX; dev++)
            settings_clear(kernel->settings[dev]);
    }
    *out = library;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
    ENTER();
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    REQUIRE(library != NULL && code != NULL);
    CUresult result = library_new(library, code);
    jit_say(result, numJitOptions, jitOptions, jitOptionsValues);
    return result;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                   CUjit_option *jitOptions, void **jitOptionsValues,
                                   unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                   void **libraryOptionValues, unsigned int numLibraryOptions) {
    ENTER();
    (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    REQUIRE(library != NULL);
    void *bytes;
    TRY(file_read(fileName, &bytes));
    return library_new(library, bytes);
}

API CUresult cuLibraryUnload(CUlibrary library) {
    ENTER();
    REQUIRE_HANDLE(IS(library, MAGIC_LIBRARY));
    for (unsigned dev = 0; dev < DEVICES_MAX; dev++) {
        CUmodule module = library->per_device[dev];
        if (module == NULL)
            continue;
        context_keep(module->ctx, context_drain);
        pthread_mutex_lock(&lock);
        for (CUmodule *at = &module->ctx->modules; *at; at = &(*at)->next)
            if (*at == module) {
                *at = module->next;
                break;
            }
        pthread_mutex_unlock(&lock);
        module_end(module);
    }
    for (unsigned i = 0; i < library->image->kernel_count; i++)
        library->kernels[i].magic = MAGIC_DEAD;
    library->magic = MAGIC_DEAD;
    return CUDA_SUCCESS;
}

/* A library becomes a module of a context when the context first needs it. */
static CUresult library_module(CUlibrary library, CUcontext ctx, CUmodule *module) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&once);
    CUmodule *slot = &library->per_device[ctx->dev];
    if (*slot == NULL || (*slot)->ctx != ctx)
        result = module_new(ctx, library->image, library, slot);
    *module = *slot;
    pthread_mutex_unlock(&once);
    return result;
}

API CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pMod != NULL);
    REQUIRE_HANDLE(IS(library, MAGIC_LIBRARY));
    context_keep(ctx, context_drain);
    return library_module(library, ctx, pMod);
}

API CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
    ENTER();
    REQUIRE(pKernel != NULL && name != NULL);
    REQUIRE_HANDLE(IS(library, MAGIC_LIBRARY));
    for (unsigned i = 0; i < library->image->kernel_count; i++)
        if (strcmp(library->image->kernels[i].name, name) == 0) {
            *pKernel = &library->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
    ENTER();
    REQUIRE(count != NULL);
    REQUIRE_HANDLE(IS(lib, MAGIC_LIBRARY));
    *count = lib->image->kernel_count;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
    ENTER();
    REQUIRE(kernels != NULL);
    REQUIRE_HANDLE(IS(lib, MAGIC_LIBRARY));
    for (unsigned i = 0; i < numKernels && i < lib->image->kernel_count; i++)
        kernels[i] = &lib->kernels[i];
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                                const char *name) {
    ENTER_CONTEXT(ctx);
    REQUIRE(name != NULL);
    REQUIRE_HANDLE(IS(library, MAGIC_LIBRARY));
    CUmodule module;
    TRY(library_module(library, ctx, &module));
    return global_answer(module, name, dptr, bytes);
}

API CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                                 const char *name) {
    ENTER();
    REQUIRE(name != NULL);
    REQUIRE_HANDLE(IS(library, MAGIC_LIBRARY));
    /* Runtimes ask before there is a context; the variable is the same in all of them. */
    CUcontext ctx = context_peek();
    CUmodule module;
    TRY(library_module(library, ctx != NULL ? ctx : context_primary(0), &module));
    return global_answer(module, name, dptr, bytes);
}

/* ---- functions and kernels ---- */

static struct kernel_info *kernel_info_of(CUkernel kernel) {
    return &kernel->library->image->kernels[kernel->index];
}

CUresult function_resolve(CUfunction handle, CUcontext ctx, CUfunction *function) {
    CUkernel kernel = (CUkernel)handle;
    REQUIRE_HANDLE(handle != NULL);
    if (handle->magic == MAGIC_FUNCTION) {
        *function = handle;
        return CUDA_SUCCESS;
    }
    REQUIRE_HANDLE(kernel->magic == MAGIC_KERNEL);
    CUmodule module;
    TRY(library_module(kernel->library, ctx, &module));
    *function = &module->functions[kernel->index];
    return CUDA_SUCCESS;
}

/* A function of a library shares its settings with the kernel, per device. */
static int *settings_of(CUfunction function) {
    return function->kernel ? function->kernel->settings[function->module->ctx->dev]
                            : function->settings;
}

static CUresult attribute_get(const struct kernel_info *info, const struct image *image,
                              const int *settings, unsigned attribute, int *value) {
    REQUIRE(value != NULL && attribute < 18);
    static const int defaults[18] = {[8] = 49152, [9] = -1};
    *value = defaults[attribute];
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = info->threads_max; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = info->shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = info->const_bytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = info->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = info->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = image->arch; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = image->from_ptx ? ARCH : image->arch; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = 49152 - info->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + 1:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + 2:
        *value = info->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
        break;
    default: break;
    }
    if (settings[attribute] != INT_MIN)
        *value = settings[attribute];
    return CUDA_SUCCESS;
}

static CUresult attribute_set(const struct kernel_info *info, int *settings, unsigned attribute,
                              int value) {
    bool dynamic = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    REQUIRE(dynamic || attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ||
            (attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH && attribute < 18));
    if (dynamic)
        REQUIRE(value >= 0 && value + info->shared_bytes <= 232448);
    settings[attribute] = value;
    return CUDA_SUCCESS;
}

CUresult function_attribute(CUfunction function, CUfunction_attribute attribute, int *value) {
    return attribute_get(function->info, function->module->image, settings_of(function),
                         (unsigned)attribute, value);
}

API CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
    ENTER_CONTEXT(ctx);
    CUfunction function;
    TRY(function_resolve(hfunc, ctx, &function));
    return function_attribute(function, attrib, pi);
}

API CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    ENTER_CONTEXT(ctx);
    CUfunction function;
    TRY(function_resolve(hfunc, ctx, &function));
    return attribute_set(function->info, settings_of(function), (unsigned)attrib, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
    ENTER_CONTEXT(ctx);
    (void)config;
    CUfunction function;
    if (IS((CUkernel)hfunc, MAGIC_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE; /* seen on an H200: this one takes no kernel */
    return function_resolve(hfunc, ctx, &function);
}

API CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
    ENTER_CONTEXT(ctx);
    (void)config;
    CUfunction function;
    return function_resolve(hfunc, ctx, &function);
}

API CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc) {
    ENTER_CONTEXT(ctx);
    REQUIRE(hmod != NULL);
    CUfunction function;
    TRY(function_resolve(hfunc, ctx, &function));
    *hmod = function->module;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **name, CUfunction hfunc) {
    ENTER_CONTEXT(ctx);
    REQUIRE(name != NULL);
    CUfunction function;
    TRY(function_resolve(hfunc, ctx, &function));
    *name = function->info->name;
    return CUDA_SUCCESS;
}

static CUresult param_answer(const struct kernel_info *info, size_t index, size_t *offset,
                             size_t *size) {
    REQUIRE(offset != NULL && index < info->param_count);
    *offset = info->params[index].offset;
    if (size != NULL)
        *size = info->params[index].size;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset,
                                size_t *paramSize) {
    ENTER_CONTEXT(ctx);
    CUfunction function;
    TRY(function_resolve(func, ctx, &function));
    return param_answer(function->info, paramIndex, paramOffset, paramSize);
}

API CUresult cuFuncGetParamCount(CUfunction func, size_t *paramCount) {
    ENTER_CONTEXT(ctx);
    REQUIRE(paramCount != NULL);
    CUfunction function;
    TRY(function_resolve(func, ctx, &function));
    *paramCount = function->info->param_count;
    return CUDA_SUCCESS;
}

API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function) {
    ENTER_CONTEXT(ctx);
    REQUIRE(state != NULL);
    *state = 1;
    return function_resolve(function, ctx, &function);
}

API CUresult cuFuncLoad(CUfunction function) {
    ENTER_CONTEXT(ctx);
    return function_resolve(function, ctx, &function);
}

API CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pFunc != NULL);
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    return function_resolve((CUfunction)kernel, ctx, pFunc);
}

API CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel) {
    ENTER();
    REQUIRE(pLib != NULL);
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    *pLib = kernel->library;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, CUkernel hfunc) {
    ENTER();
    REQUIRE(name != NULL);
    REQUIRE_HANDLE(IS(hfunc, MAGIC_KERNEL));
    *name = kernel_info_of(hfunc)->name;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset,
                                  size_t *paramSize) {
    ENTER();
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    return param_answer(kernel_info_of(kernel), paramIndex, paramOffset, paramSize);
}

API CUresult cuKernelGetParamCount(CUkernel kernel, size_t *paramCount) {
    ENTER();
    REQUIRE(paramCount != NULL);
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    *paramCount = kernel_info_of(kernel)->param_count;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                  CUdevice dev) {
    ENTER();
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    if (dev < 0 || dev >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    return attribute_get(kernel_info_of(kernel), kernel->library->image, kernel->settings[dev],
                         (unsigned)attrib, pi);
}

API CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                  CUdevice dev) {
    ENTER();
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    if (dev < 0 || dev >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    return attribute_set(kernel_info_of(kernel), kernel->settings[dev], (unsigned)attrib, val);
}

API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
    ENTER();
    (void)config;
    REQUIRE_HANDLE(IS(kernel, MAGIC_KERNEL));
    return dev >= 0 && dev < device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
