// libnvidia-encode.so.1 for programs behind the door: encoders of video are not there.
#define NO_ENCODE_DEVICE 1  // NV_ENC_ERR_NO_ENCODE_DEVICE

__attribute__((visibility("default"))) int NvEncodeAPICreateInstance(void *), NvEncodeAPIGetMaxSupportedVersion(void *);

int NvEncodeAPICreateInstance(void *functions) {
    (void)functions;
    return NO_ENCODE_DEVICE;
}

int NvEncodeAPIGetMaxSupportedVersion(void *version) {
    (void)version;
    return NO_ENCODE_DEVICE;
}
