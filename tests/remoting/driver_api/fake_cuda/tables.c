/* The export tables that CUDA's own runtime asks a driver for, and the runtime's check of them.
 *
 * They are undocumented; what is here is the least that makes an unmodified cudart, and libraries
 * that contain one, start on this test double: interoperability, nothing else. Their layout was
 * published by ZLUDA (dark_api, MIT or Apache-2.0); the check is an HMAC with MD2 (RFC 2104, 1319).
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- MD2, RFC 1319 ---- */

static const unsigned char md2_box[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,
    82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136,
    149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,  102,
    88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,  26,
    219, 153, 141, 51,  159, 17,  131, 20};

struct md2 {
    unsigned char state[48], checksum[16];
};

static void md2_block(struct md2 *md2, const unsigned char *block) {
    for (int i = 0; i < 16; i++) {
        md2->state[16 + i] = block[i];
        md2->state[32 + i] = md2->state[i] ^ block[i];
    }
    unsigned t = 0;
    for (unsigned round = 0; round < 18; round++) {
        for (int i = 0; i < 48; i++)
            t = md2->state[i] ^= md2_box[t];
        t = (t + round) & 0xff;
    }
    unsigned last = md2->checksum[15];
    for (int i = 0; i < 16; i++)
        last = md2->checksum[i] ^= md2_box[block[i] ^ last];
}

/* Hashes 16 bytes of key block, then the message. */
static void md2_keyed(const unsigned char *key, const unsigned char *message, size_t bytes,
                      unsigned char *digest) {
    struct md2 md2 = {0};
    unsigned char block[16];
    md2_block(&md2, key);
    for (; bytes >= 16; bytes -= 16, message += 16)
        md2_block(&md2, message);
    memset(block, (int)(16 - bytes), sizeof block); /* padding is the number of padding bytes */
    memcpy(block, message, bytes);
    md2_block(&md2, block);
    memcpy(block, md2.checksum, 16);
    md2_block(&md2, block);
    memcpy(digest, md2.state, 16);
}

static void hmac_md2(const unsigned char *key, const unsigned char *message, size_t bytes,
                     unsigned char *digest) {
    unsigned char inner[16], outer[16];
    for (int i = 0; i < 16; i++) {
        inner[i] = key[i] ^ 0x36;
        outer[i] = key[i] ^ 0x5c;
    }
    md2_keyed(inner, message, bytes, digest);
    unsigned char first[16];
    memcpy(first, digest, 16);
    md2_keyed(outer, first, 16, digest);
}

/* For tests. */
API void fakeCudaHmacMd2(const unsigned char *key, const unsigned char *message, size_t bytes,
                         unsigned char *digest) {
    hmac_md2(key, message, bytes, digest);
}

/* ---- tables ---- */

typedef const void *slot;

static CUresult runtime_primary(CUcontext *ctx, CUdevice dev) {
    if (dev < 0 || dev >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *ctx = devices[dev].primary;
    return CUDA_SUCCESS;
}

static CUresult runtime_load(CUmodule *module, const void *fatbin) {
    extern CUresult cuModuleLoadData(CUmodule *, const void *);
    return cuModuleLoadData(module, fatbin);
}

static CUresult runtime_load_five(CUmodule *module, const void *fatbin, void *a, void *b, void *c) {
    (void)a, (void)b, (void)c;
    return runtime_load(module, fatbin);
}

static CUresult runtime_load_swapped(const void *fatbin, CUmodule *module, void *a, void *b,
                                     void *c) {
    (void)a, (void)b, (void)c;
    return runtime_load(module, fatbin);
}

static void runtime_ignore(size_t value) { (void)value; }
static CUresult succeed(void) { return CUDA_SUCCESS; }
static CUresult refuse(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static slot cudart_interface[13] = {
    [0] = (slot)sizeof cudart_interface, [1] = (slot)runtime_load, [2] = (slot)runtime_primary,
    [6] = (slot)runtime_load_five, [7] = (slot)runtime_ignore, [8] = (slot)runtime_load_swapped,
    [12] = (slot)succeed};

static unsigned char hook_buffer[4096];

static void hooks_large(void **buffer, size_t *count) {
    *buffer = hook_buffer;
    *count = 1024;
}

static void hooks_small(void **buffer, size_t *count) {
    static unsigned char small[64];
    *buffer = small;
    *count = 14;
}

static slot runtime_hooks[7] = {[0] = (slot)sizeof runtime_hooks, [2] = (slot)hooks_large,
                                [6] = (slot)hooks_small};

static CUresult tls_context(CUcontext *ctx) {
    *ctx = context_peek();
    return CUDA_SUCCESS;
}

static slot tools_tls[4] = {[0] = (slot)sizeof tools_tls, [2] = (slot)tls_context};

static slot local_storage[4] = {(slot)context_local_put, (slot)context_local_delete,
                                (slot)context_local_get, NULL};

static CUresult check_context(CUcontext ctx, uint32_t *out, void **more) {
    (void)ctx, (void)more;
    *out = 0;
    return CUDA_SUCCESS;
}

static uint32_t check_nothing(void) { return 0; }

static slot context_checks[17] = {[0] = (slot)sizeof context_checks, [2] = (slot)check_context,
                                  [3] = (slot)check_nothing};

/* ---- the runtime's check that these tables belong to its driver ---- */

static CUresult integrity(uint32_t version, uint64_t time, uint64_t *result);
static slot integrity_check[3] = {[0] = (slot)sizeof integrity_check, [1] = (slot)integrity};

struct integrity_device {
    unsigned char uuid[16];
    int32_t domain, bus, device;
} __attribute__((packed));

struct integrity_message {
    uint32_t driver_version, version, pid, thread;
    uint64_t interface, check, function, time;
    struct integrity_device devices[DEVICES_MAX];
} __attribute__((packed));

static CUresult integrity(uint32_t version, uint64_t time, uint64_t *result) {
    extern CUresult cuDriverGetVersion(int *);
    static const unsigned char key[16] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                          0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
    int driver_version;
    cuDriverGetVersion(&driver_version);
    if (version % 10 < 2) { /* two fixed answers, then the computed one */
        result[0] = version % 10 == 0 ? 0x3341181c03cb675cu : 0x1841181c03cb675cu;
        result[1] = 0x8ed383aa1f4cd1e8u;
        return CUDA_SUCCESS;
    }
    struct integrity_message message = {
        .driver_version = (uint32_t)driver_version, .version = version, .pid = (uint32_t)getpid(),
        .thread = (uint32_t)(uintptr_t)pthread_self(), .interface = (uintptr_t)cudart_interface,
        .check = (uintptr_t)integrity_check, .function = (uintptr_t)integrity, .time = time};
    for (int i = 0; i < device_count; i++) {
        memcpy(message.devices[i].uuid, devices[i].uuid.bytes, 16);
        message.devices[i].domain = devices[i].pci_domain;
        message.devices[i].bus = devices[i].pci_bus;
        message.devices[i].device = devices[i].pci_device;
    }
    size_t bytes = offsetof(struct integrity_message, devices) +
                   (size_t)device_count * sizeof(struct integrity_device);
    hmac_md2(key, (const unsigned char *)&message, bytes, (unsigned char *)result);
    return CUDA_SUCCESS;
}

/* ---- what cuBLAS and cuFFT ask ---- */

static CUresult unique_context(CUcontext ctx, uint64_t *id) {
    if (ctx == NULL)
        ctx = context_peek();
    if (!IS(ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    *id = ctx->id;
    return CUDA_SUCCESS;
}

static CUresult stream_object(CUcontext ctx, CUstream handle, void **object, int per_thread) {
    if (ctx == NULL)
        ctx = context_peek();
    if (!IS(ctx, MAGIC_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUstream stream;
    TRY(stream_resolve(ctx, handle == NULL && per_thread ? CU_STREAM_PER_THREAD : handle, &stream));
    *object = stream;
    return CUDA_SUCCESS;
}

static CUresult stream_object_id(CUcontext ctx, void *object, uint64_t *id) {
    (void)ctx;
    *id = ((CUstream)object)->id;
    return CUDA_SUCCESS;
}

static slot identities[64] = {[0] = (slot)sizeof identities, [4] = (slot)unique_context,
                              [39] = (slot)stream_object_id, [51] = (slot)stream_object};

static slot processor_map[8] = {[0] = (slot)sizeof processor_map, [4] = (slot)refuse};

static int module_walk(CUcontext ctx, CUmodule module, void (*visit)(void *, CUfunction),
                       void *user) {
    (void)ctx;
    for (unsigned i = 0; i < module->image->kernel_count; i++)
        visit(user, &module->functions[i]);
    return 1;
}

static slot module_functions[9] = {[0] = (slot)sizeof module_functions, [7] = (slot)module_walk};

static slot cupti_dummy[2] = {[0] = (slot)sizeof cupti_dummy};

static const struct {
    const char *id; /* the bytes in the order in which a CUuuid holds them */
    const void *table;
} tables[] = {
    {"6bd5fb6c5bf4e74a8987d93912fd9df9", cudart_interface},
    {"a094798c2e742e7493f20800200c0a66", runtime_hooks},
    {"42d85a8123f6cb478298f6e78a3aecdc", tools_tls},
    {"c693336e1121df11a8c368f355d89593", local_storage},
    {"263e88607cd2614392f6bbd5006dfa7e", context_checks},
    {"d4082055bde6704b8d34ba123c66e1f2", integrity_check},
    {"21318c60971432488ca641ff7324c8f2", identities},
    {"1734dc26800d47458726c0f1e7dd8bca", processor_map},
    {"6e163fbeb958444d835ce182aff1991e", module_functions},
    {"7cb63f9b9ca48e42a484beb66e6aed7f", cupti_dummy},
};

/* An unknown table is refused: a made-up one is worse, as NVRTC aborts on it. */
API CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId) {
    REQUIRE(ppExportTable != NULL && pExportTableId != NULL);
    char text[33];
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)pExportTableId->bytes[i]);
    *ppExportTable = NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].id, text) == 0)
            *ppExportTable = tables[i].table;
    return *ppExportTable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
