// cuLink*: the server's driver compiles and links what the program adds, and the cubin comes back.
#define _GNU_SOURCE
#include "core.h"

#include <stdio.h>
#include <stdlib.h>

#define INPUT_MAX (1ULL << 30)
#define INPUT_TYPES 6  // of CUjitInputType

// The detail of a handle of GP_LINK: the linked image, which lives as long as the handle.
struct linked {
    void *bytes;
    size_t size;
};

// What the worker passes on, by CUjit_option: registers, level, debug information, lines.
static const int passed_on[] = {0, 7, 11, 13};
#define PASSED_ON (int)(sizeof passed_on / sizeof *passed_on)

static bool is_link(const void *state) { return gp_check(state, GP_LINK) == GP_SUCCESS; }

GP_EXPORT int cuLinkCreate_v2(unsigned count, const int *options, void **values, void **state) {
    GP_ENTER();
    if (state == NULL || (count > 0 && (options == NULL || values == NULL))) {
        return GP_INVALID_VALUE;
    }
    uint64_t words[1 + PASSED_ON] = {0};
    for (unsigned at = 0; at < count; at++) {
        // CU_JIT_INFO_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER: nothing is written there.
        if ((options[at] == 3 || options[at] == 5) && values[at] != NULL) *(char *)values[at] = 0;
        for (int which = 0; which < PASSED_ON; which++) {
            // One more than the value: zero is for what is not given.
            uint64_t value = (uint32_t)(uintptr_t)values[at];
            if (options[at] == passed_on[which]) words[1 + which] = value + 1;
        }
    }
    struct gp_handle *made = gp_make(GP_LINK);
    struct linked *linked = calloc(1, sizeof *linked);
    int status = made == NULL || linked == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        words[0] = made->id;
        made->detail = linked;
        status = gp_call(GP_LINK_CREATE, words, 1 + PASSED_ON, NULL, 0);
    }
    if (status != GP_SUCCESS) {
        if (made != NULL) gp_end(made);
        free(linked);
        return status;
    }
    *state = made;
    return GP_SUCCESS;
}

GP_EXPORT int cuLinkAddData_v2(void *state, int type, const void *data, size_t size,
                               const char *name, unsigned count, const int *options,
                               void **option_values) {
    (void)count, (void)options, (void)option_values;
    GP_ENTER();
    if (!is_link(state)) return GP_INVALID_HANDLE;
    GP_ON(state);
    if (data == NULL || size == 0 || type < 0 || type >= INPUT_TYPES) return GP_INVALID_VALUE;
    if (size > INPUT_MAX) return GP_OUT_OF_MEMORY;
    if (name == NULL) name = "";
    uint64_t values[3] = {((struct gp_handle *)state)->id, (uint64_t)type, size};
    struct gp_request request = {0};
    return gp_exchange(&request, GP_LINK_ADD, values, 3, name, strnlen(name, 1000), data, size);
}

GP_EXPORT int cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count,
                               const int *options, void **option_values) {
    GP_ENTER();
    if (path == NULL) return GP_INVALID_VALUE;
    FILE *file = fopen(path, "rb");  // the file lies on this machine, not on the server
    if (file == NULL) return GP_FILE_NOT_FOUND;
    char *bytes = NULL;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size > 0 && fseek(file, 0, SEEK_SET) == 0) bytes = malloc((size_t)size);
    bool whole = bytes != NULL && fread(bytes, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    int status = GP_FILE_NOT_FOUND;
    if (whole) {
        status = cuLinkAddData_v2(state, type, bytes, (size_t)size, path, count, options,
                                  option_values);
    }
    free(bytes);
    return status;
}

GP_EXPORT int cuLinkComplete(void *state, void **image, size_t *size) {
    GP_ENTER();
    if (!is_link(state)) return GP_INVALID_HANDLE;
    GP_ON(state);
    if (image == NULL) return GP_INVALID_VALUE;
    struct linked *linked = ((struct gp_handle *)state)->detail;
    uint64_t values[1] = {((struct gp_handle *)state)->id};
    struct gp_request request = {.grows = true};
    int status = gp_exchange(&request, GP_LINK_COMPLETE, values, 1, NULL, 0, NULL, 0);
    if (status != GP_SUCCESS) {
        free(request.body);
        return status;
    }
    free(linked->bytes);
    linked->bytes = request.body;
    linked->size = request.length;
    *image = linked->bytes;
    if (size != NULL) *size = linked->size;
    return GP_SUCCESS;
}

GP_EXPORT int cuLinkDestroy(void *state) {
    GP_CHECK(gp_ready());
    if (!is_link(state)) return GP_INVALID_HANDLE;
    GP_ON(state);
    struct gp_handle *known = state;
    struct linked *linked = known->detail;
    uint64_t values[1] = {known->id};
    int status = gp_post(GP_LINK_DESTROY, values, 1);
    free(linked->bytes);
    free(linked);
    gp_end(known);
    return status;
}

// Their first interfaces differ in the width of a size on 32-bit machines alone.

GP_EXPORT int cuLinkCreate(unsigned count, const int *options, void **values, void **state) {
    return cuLinkCreate_v2(count, options, values, state);
}

GP_EXPORT int cuLinkAddData(void *state, int type, const void *data, size_t size, const char *name,
                            unsigned count, const int *options, void **option_values) {
    return cuLinkAddData_v2(state, type, data, size, name, count, options, option_values);
}

GP_EXPORT int cuLinkAddFile(void *state, int type, const char *path, unsigned count,
                            const int *options, void **option_values) {
    return cuLinkAddFile_v2(state, type, path, count, options, option_values);
}
