// cuLink*: the server's driver compiles and links what the program adds, and the cubin comes back.
#define _GNU_SOURCE
#include "jit.h"

#include <stdio.h>
#include <stdlib.h>

#define INPUT_MAX (1ULL << 30)
#define INPUT_TYPES 6  // of CUjitInputType

// The detail of a handle of GP_LINK: the linked image, which lives as long as the handle.
struct linked {
    void *bytes;
    size_t size;
    struct gp_jit jit;  // where the program wants the logs, as long as the handle lives
};

static bool is_link(const void *state) { return gp_check(state, GP_LINK) == GP_SUCCESS; }

GP_EXPORT int cuLinkCreate_v2(unsigned count, const int *options, void **values, void **state) {
    GP_ENTER();
    if (state == NULL || (count > 0 && (options == NULL || values == NULL))) {
        return GP_INVALID_VALUE;
    }
    struct gp_jit jit;
    gp_read_jit(count, options, values, &jit);
    struct gp_handle *made = gp_make(GP_LINK);
    struct linked *linked = calloc(1, sizeof *linked);
    int status = made == NULL || linked == NULL ? GP_OUT_OF_MEMORY : GP_SUCCESS;
    if (status == GP_SUCCESS) {
        made->detail = linked;
        linked->jit = jit;
        status = gp_call_link_create(made->id, jit.words);
    }
    if (status != GP_SUCCESS) {
        if (made != NULL) gp_end(made);
        free(linked);
        return status;
    }
    *state = made;
    return GP_SUCCESS;
}

// Ask for the logs where the program wants them; what they are of has its own status.
static int say(struct gp_handle *state, int status) {
    struct linked *linked = state->detail;
    if (linked->jit.logs[0].text == NULL && linked->jit.logs[1].text == NULL) return status;
    struct gp_request request = {.grows = true};
    if (gp_exchange_link_said(&request, state->id) == GP_SUCCESS) {
        gp_write_jit(&linked->jit, request.body, request.length);
    }
    free(request.body);
    return status;
}

static int add_data(void *state, int type, const void *data, size_t size, const char *name,
                    unsigned count, const int *options, void **option_values) {
    (void)count, (void)options, (void)option_values;
    GP_ENTER();
    if (!is_link(state)) return GP_INVALID_HANDLE;
    GP_ON(state);
    if (data == NULL || size == 0 || type < 0 || type >= INPUT_TYPES) return GP_INVALID_VALUE;
    if (size > INPUT_MAX) return GP_OUT_OF_MEMORY;
    if (name == NULL) name = "";
    struct gp_request request = {0};
    return say(state, gp_exchange_link_add(&request, ((struct gp_handle *)state)->id, type, size,
                                           name, strnlen(name, 1000), data, size));
}

GP_EXPORT int cuLinkAddData_v2(void *state, int type, const void *data, size_t size,
                               const char *name, unsigned count, const int *options,
                               void **option_values) {
    return add_data(state, type, data, size, name, count, options, option_values);
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
    int status = size == 0 ? GP_INVALID_IMAGE : GP_FILE_NOT_FOUND;
    if (whole) {
        status = add_data(state, type, bytes, (size_t)size, path, count, options,
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
    struct gp_request request = {.grows = true};
    int status = gp_exchange_link_complete(&request, ((struct gp_handle *)state)->id);
    if (status != GP_SUCCESS) {
        free(request.body);
        return say(state, status);
    }
    free(linked->bytes);
    linked->bytes = request.body;
    linked->size = request.length;
    *image = linked->bytes;
    if (size != NULL) *size = linked->size;
    return say(state, GP_SUCCESS);
}

GP_EXPORT int cuLinkDestroy(void *state) {
    GP_CHECK(gp_ready());
    if (!is_link(state)) return GP_INVALID_HANDLE;
    GP_ON(state);
    struct gp_handle *known = state;
    struct linked *linked = known->detail;
    int status = gp_post_link_destroy(known->id);
    free(linked->bytes);
    free(linked);
    gp_end(known);
    return status;
}

// Their first interfaces differ in the width of a size on 32-bit machines alone.

GP_ALIAS(cuLinkCreate, cuLinkCreate_v2);
GP_ALIAS(cuLinkAddData, cuLinkAddData_v2);
GP_ALIAS(cuLinkAddFile, cuLinkAddFile_v2);
