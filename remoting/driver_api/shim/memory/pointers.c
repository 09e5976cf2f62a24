// Questions of a program about an address.
#include "core.h"

// Attributes of CUpointer_attribute: 4-byte values, boolean ones too, unless stated.
static int pointer_attribute(void *data, int attribute, uint64_t address, bool known,
                             const struct gp_range *range) {
    bool host = known && range->kind == GP_HOST_MEMORY;
    bool managed = known && range->kind == GP_MANAGED_MEMORY;
    uint64_t wide = 0;
    int narrow = 0;
    size_t size = 4;
    switch (attribute) {
        case 1:
            wide = known ? (uint64_t)(uintptr_t)gp_owner_of(range->start) : 0;
            if (known && wide == 0 && !gp_is_virtual(range)) wide = (uint64_t)(uintptr_t)&gp.primaries[range->device];
            size = 8;
            break;
        case 2: narrow = known ? (host ? 1 : 2) : 0; break;
        case 3: wide = known ? address : 0; size = 8; break;
        case 4: wide = host || managed ? address : 0; size = 8; break;
        case 5: return GP_NOT_SUPPORTED;
        case 8: narrow = managed; break;
        case 6: narrow = known && range->waits; break;
        case 15: case 21: break;
        case 10: narrow = known && range->kind == GP_DEVICE_MEMORY && gp_owner_of(range->start); break;
        case 13: narrow = known; break;
        case 7: wide = known ? range->serial : 0; size = 8; break;
        case 9: narrow = known ? range->device : -2; break;
        case 11: case 19: wide = known ? range->start : 0; size = 8; break;
        case 12: case 18: wide = known ? range->size : 0; size = 8; break;
        case 14: wide = known ? gp_handles_allowed(range) : 0; size = 8; break;
        case 16: narrow = known ? 3 : 0; break;
        case 17: wide = known ? (uint64_t)(uintptr_t)gp_pool_of(range) : 0; size = 8; break;
        case 20: wide = known ? range->serial : 0; size = 8; break;
        default: return GP_INVALID_VALUE;
    }
    if (size == 8) {
        memcpy(data, &wide, 8);
    } else {
        memcpy(data, &narrow, 4);
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    GP_CHECK(gp_ready());
    struct gp_range range = {0};
    if (data == NULL) return GP_INVALID_VALUE;
    if (!gp_find_range(address, &range)) return GP_INVALID_VALUE;
    bool here = range.kind == GP_HOST_MEMORY || range.kind == GP_MANAGED_MEMORY;
    if (attribute == 4 && !here) return GP_INVALID_VALUE;  // CU_POINTER_ATTRIBUTE_HOST_POINTER
    return pointer_attribute(data, attribute, address, true, &range);
}

GP_EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **data,
                                     uint64_t address) {
    GP_CHECK(gp_ready());
    if (count == 0 || attributes == NULL || data == NULL) return GP_INVALID_VALUE;
    struct gp_range range = {0};
    bool known = gp_find_range(address, &range);
    for (unsigned at = 0; at < count; at++) {
        if (data[at] == NULL) continue;
        GP_CHECK(pointer_attribute(data[at], attributes[at], address, known, &range));
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    GP_CHECK(gp_ready());
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: synchronous copies are synchronous here in any case.
    if (value == NULL || attribute != 6) return GP_INVALID_VALUE;
    int waits;
    memcpy(&waits, value, sizeof waits);
    return gp_set_waits(address, waits != 0) ? GP_SUCCESS : GP_INVALID_VALUE;
}
