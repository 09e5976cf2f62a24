// The names and texts of errors, as the server's driver has them.
#define _GNU_SOURCE
#include "base.h"

#include <stdlib.h>

struct error_text {
    int code;
    char *name, *text;
};

static struct error_text *errors;
static uint32_t error_count;

static char *visible_text(const unsigned char *at, size_t size) {
    char *made = strndup((const char *)at, size);
    if (made != NULL) gp_make_visible(made, strlen(made));
    return made;
}

// Return where the texts end, NULL when they do not end well.
const unsigned char *gp_take_errors(const unsigned char *at, const unsigned char *end,
                                    uint32_t count) {
    if (count > 4096) return NULL;
    for (uint32_t index = 0; index < error_count; index++) {
        free(errors[index].name);
        free(errors[index].text);
    }
    free(errors);
    error_count = 0;
    errors = calloc(count ? count : 1, sizeof *errors);
    for (uint32_t index = 0; errors != NULL && index < count; index++) {
        int32_t code;
        uint16_t sizes[2];
        if (end - at < 8) return NULL;
        memcpy(&code, at, 4);
        memcpy(sizes, at + 4, 4);
        at += 8;
        if (end - at < sizes[0] + sizes[1]) return NULL;
        errors[index].code = code;
        errors[index].name = visible_text(at, sizes[0]);
        errors[index].text = visible_text(at + sizes[0], sizes[1]);
        at += sizes[0] + sizes[1];
        error_count = index + 1;
    }
    return errors == NULL ? NULL : at;
}

static const struct error_text fallback[] = {
    {GP_SUCCESS, "CUDA_SUCCESS", "no error"},
    {GP_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {GP_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {GP_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {GP_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_text *find_error(int code) {
    for (uint32_t at = 0; at < error_count; at++) {
        if (errors[at].code == code) return &errors[at];
    }
    for (size_t at = 0; at < sizeof fallback / sizeof *fallback; at++) {
        if (fallback[at].code == code) return &fallback[at];
    }
    return NULL;
}

const char *gp_error_name(int code) {
    const struct error_text *found = find_error(code);
    return found == NULL ? NULL : found->name;
}

const char *gp_error_text(int code) {
    const struct error_text *found = find_error(code);
    return found == NULL ? NULL : found->text;
}

GP_EXPORT int cuGetErrorName(int code, const char **text) {
    if (text == NULL) return GP_INVALID_VALUE;
    *text = gp_error_name(code);
    return find_error(code) == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
}

GP_EXPORT int cuGetErrorString(int code, const char **text) {
    if (text == NULL) return GP_INVALID_VALUE;
    *text = gp_error_text(code);
    return find_error(code) == NULL ? GP_INVALID_VALUE : GP_SUCCESS;
}
