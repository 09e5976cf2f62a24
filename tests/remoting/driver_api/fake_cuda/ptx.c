/* PTX text: the names, parameters and resource directives of kernels, and module variables. */
#define _GNU_SOURCE
#include "fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PTX_VERSION_MAX 92 /* of CUDA 13.2; the fake knows declarations, not instructions */

struct reader {
    const char *at, *end;
};

struct token {
    const char *at;
    size_t length;
};

/* Words may hold what PTX names hold; anything else is a token of one character. */
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

static void skip_blank(struct reader *r) {
    while (r->at < r->end) {
        if (isspace((unsigned char)*r->at)) {
            r->at++;
        } else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '/') {
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        } else if (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '*') {
            r->at += 2;
            while (r->end - r->at > 1 && (r->at[0] != '*' || r->at[1] != '/'))
                r->at++;
            r->at += r->end - r->at > 1 ? 2 : 0;
        } else {
            return;
        }
    }
}

static struct token next(struct reader *r) {
    skip_blank(r);
    struct token token = {r->at, 0};
    if (r->at >= r->end)
        return token;
    if (*r->at == '"') {
        for (r->at++; r->at < r->end && *r->at != '"'; r->at++) {
        }
        r->at += r->at < r->end;
    } else {
        bool dotted = *r->at == '.';
        r->at++;
        if (dotted || is_word(*token.at))
            while (r->at < r->end && is_word(*r->at))
                r->at++;
    }
    token.length = (size_t)(r->at - token.at);
    return token;
}

static struct token peek(const struct reader *r) {
    struct reader copy = *r;
    return next(&copy);
}

static bool is(struct token token, const char *text) {
    return token.length == strlen(text) && memcmp(token.at, text, token.length) == 0;
}

static long number(struct token token) { return token.length ? strtol(token.at, NULL, 0) : 0; }

static size_t type_bytes(struct token token) { /* .u64, .f32, .b8, .v4 and .ptr give 0 */
    if (token.length < 3 || token.at[0] != '.' || strchr("usbf", token.at[1]) == NULL)
        return is(token, ".pred") ? 1 : 0;
    long bits = strtol(token.at + 2, NULL, 10);
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? (size_t)bits / 8 : 0;
}

struct declaration {
    struct token name;
    size_t element, align, count; /* count is 1 for a scalar, 0 for an array without a size */
    struct token initial;         /* the token after '=', or nothing */
    bool managed;
};

/* Reads `.align 8 .b8 name[16]` and `.u64 .ptr .global .align 1 name`, after the state space. */
static bool read_declaration(struct reader *r, struct declaration *d) {
    *d = (struct declaration){.count = 1};
    bool pointer = false;
    size_t vector = 1;
    for (struct token token = next(r); token.length > 0; token = next(r)) {
        size_t bytes = type_bytes(token);
        if (is(token, ".align")) {
            size_t align = (size_t)number(next(r));
            d->align = pointer ? d->align : align; /* of the pointee, after .ptr */
        } else if (is(token, ".attribute")) { /* (.managed), (.unified(1, 2)) */
            for (next(r); token.length > 0 && !is(token, ")"); token = next(r))
                d->managed |= is(token, ".managed");
        } else if (is(token, ".ptr")) {
            pointer = true;
        } else if (is(token, ".v2") || is(token, ".v4")) {
            vector = (size_t)(token.at[2] - '0');
        } else if (bytes > 0) {
            d->element = bytes;
        } else if (token.at[0] != '.') {
            d->name = token;
            break;
        }
    }
    d->element *= vector;
    if (d->align == 0)
        d->align = d->element;
    while (is(peek(r), "[")) {
        next(r);
        struct token size = next(r);
        d->count *= is(size, "]") ? 0 : (size_t)number(size);
        if (!is(size, "]"))
            next(r);
    }
    return d->name.length > 0 && d->element > 0;
}

static bool read_parameters(struct reader *r, struct kernel_info *kernel) {
    uint32_t offset = 0;
    unsigned index = 0;
    for (struct token token = next(r); !is(token, ")"); token = next(r)) {
        if (token.length == 0)
            return false;
        if (!is(token, ".param"))
            continue;
        struct declaration d;
        if (!read_declaration(r, &d))
            return false;
        uint32_t size = (uint32_t)(d.element * d.count), align = (uint32_t)d.align;
        offset = (offset + align - 1) / align * align;
        image_add_param(kernel, index++, offset, size);
        offset += size;
    }
    return true;
}

static void read_directive(struct reader *r, struct token token, struct kernel_info *kernel) {
    bool cluster = is(token, ".reqnctapercluster");
    if (!cluster && !is(token, ".maxntid") && !is(token, ".reqntid"))
        return;
    int sizes[3] = {1, 1, 1};
    for (unsigned i = 0; i < 3; i++) {
        sizes[i] = (int)number(next(r));
        if (!is(peek(r), ","))
            break;
        next(r);
    }
    if (cluster)
        memcpy(kernel->cluster, sizes, sizeof sizes);
    else
        kernel->threads_max = sizes[0] * sizes[1] * sizes[2];
}

/* Walks a kernel's body for its .shared variables; everything else in it is skipped. */
static bool read_body(struct reader *r, struct kernel_info *kernel) {
    int depth = 1;
    size_t shared = 0;
    while (depth > 0) {
        struct token token = next(r);
        if (token.length == 0)
            return false;
        depth += is(token, "{") ? 1 : is(token, "}") ? -1 : 0;
        struct declaration d;
        /* An instruction such as ld.shared.f32 also has the word, but after a letter. */
        if (is(token, ".shared") && isspace((unsigned char)r->at[0]) &&
            isspace((unsigned char)token.at[-1]) && read_declaration(r, &d)) {
            shared = (shared + d.align - 1) / d.align * d.align;
            shared += d.element * d.count;
        }
    }
    kernel->shared_bytes = (int)shared;
    return true;
}

static bool read_kernel(struct reader *r, struct image *image) {
    struct token name = next(r);
    struct kernel_info *kernel = image_add_kernel(image, name.at, name.length);
    if (is(peek(r), "(")) {
        next(r);
        if (!read_parameters(r, kernel))
            return false;
    }
    for (struct token token = next(r); !is(token, "{"); token = next(r)) {
        if (token.length == 0 || is(token, ";"))
            return token.length > 0;
        read_directive(r, token, kernel);
    }
    return read_body(r, kernel);
}

static void store_number(struct token token, bool negative, unsigned char *to, size_t bytes) {
    if (token.length == 10 && (token.at[1] == 'f' || token.at[1] == 'F') && bytes == 4) {
        uint32_t bits = (uint32_t)strtoul(token.at + 2, NULL, 16);
        memcpy(to, &bits, 4);
    } else if (token.length == 18 && (token.at[1] == 'd' || token.at[1] == 'D') && bytes == 8) {
        uint64_t bits = strtoull(token.at + 2, NULL, 16);
        memcpy(to, &bits, 8);
    } else {
        uint64_t value = strtoull(token.at, NULL, 0);
        value = negative ? 0 - value : value;
        memcpy(to, &value, bytes < 8 ? bytes : 8);
    }
}

/* Reads `= {1, 2}` or `= 0f3F800000`; addresses of other variables are left as zeros. */
static void read_initial(struct reader *r, struct global_info *global, size_t element) {
    unsigned char *data = zeroed(global->size);
    size_t at = 0;
    bool negative = false;
    for (struct token token = next(r); token.length > 0 && !is(token, ";"); token = next(r)) {
        if (is(token, "-")) {
            negative = true;
            continue;
        }
        if (is_word(token.at[0])) {
            if (isdigit((unsigned char)token.at[0]) && at + element <= global->size)
                store_number(token, negative, data + at, element);
            at += element;
            negative = false;
        }
        if (is(peek(r), ";"))
            break;
    }
    global->data = data;
    global->data_bytes = global->size;
}

static bool read_global(struct reader *r, struct image *image) {
    struct declaration d;
    if (is(peek(r), ".texref") || is(peek(r), ".surfref")) {
        bool surface = is(next(r), ".surfref");
        struct token name = next(r);
        image_add_reference(image, name.at, name.length, surface);
        return true;
    }
    if (!read_declaration(r, &d))
        return false;
    struct global_info *global = image_add_global(image, d.name.at, d.name.length);
    global->size = d.element * d.count;
    global->align = d.align;
    global->managed = d.managed;
    if (is(peek(r), "=")) {
        next(r);
        read_initial(r, global, d.element);
    }
    return true;
}

static CUresult read_head(struct reader *r, int arch, struct image *out) {
    if (!is(next(r), ".version"))
        return CUDA_ERROR_INVALID_PTX;
    long major = number(next(r));
    struct token minor = next(r); /* ".5": a dotted word */
    out->ptx_version = (int)(major * 10 + strtol(minor.at + 1, NULL, 10));
    if (out->ptx_version > PTX_VERSION_MAX)
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (!is(next(r), ".target"))
        return CUDA_ERROR_INVALID_PTX;
    struct token target = next(r);
    if (target.length < 5 || memcmp(target.at, "sm_", 3) != 0)
        return CUDA_ERROR_INVALID_PTX;
    out->arch = (int)strtol(target.at + 3, NULL, 10);
    return out->arch <= arch ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

CUresult image_parse_ptx(const char *text, size_t length, int arch, struct image *out) {
    struct reader reader = {text, text + length};
    out->from_ptx = true;
    TRY(read_head(&reader, arch, out));
    bool external = false;
    for (struct token token = next(&reader); token.length > 0; token = next(&reader)) {
        bool good = true;
        if (is(token, ".extern"))
            external = true;
        else if (is(token, ".entry"))
            good = read_kernel(&reader, out);
        else if ((is(token, ".global") || is(token, ".const")) && !external)
            good = read_global(&reader, out);
        else if (is(token, "{"))
            good = read_body(&reader, &(struct kernel_info){0});
        else if (is(token, ";"))
            external = false;
        if (!good)
            return CUDA_ERROR_INVALID_PTX;
    }
    return CUDA_SUCCESS;
}
