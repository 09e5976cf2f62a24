// libnvidia-opticalflow.so.1 for programs behind the door: optical flow is not there.
#include <stdint.h>

#define NOT_AVAILABLE 1  // NV_OF_ERR_OF_NOT_AVAILABLE

__attribute__((visibility("default"))) int NvOFAPICreateInstanceCuda(uint32_t, void *);
__attribute__((visibility("default"))) int NvOFGetMaxSupportedApiVersion(uint32_t *);

int NvOFAPICreateInstanceCuda(uint32_t version, void *functions) {
    (void)version, (void)functions;
    return NOT_AVAILABLE;
}

int NvOFGetMaxSupportedApiVersion(uint32_t *version) {
    (void)version;
    return NOT_AVAILABLE;
}
