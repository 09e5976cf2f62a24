// Virtual memory management, as its programs call it: no header of CUDA is here.
#ifndef VIRTUAL_H
#define VIRTUAL_H

#include "check.h"

struct location {
    int type, id;
};
struct properties {
    int type, handles;
    struct location location;
    void *windows;
    unsigned char flags[8];
};
struct access {
    struct location location;
    int flags;
};

int cuMemGetAllocationGranularity(size_t *, const struct properties *, int);
int cuMemCreate(uint64_t *, size_t, const struct properties *, unsigned long long);
int cuMemRelease(uint64_t), cuMemRetainAllocationHandle(uint64_t *, void *);
int cuMemGetAllocationPropertiesFromHandle(struct properties *, uint64_t);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemAddressFree(uint64_t, size_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long), cuMemUnmap(uint64_t, size_t);
int cuMemSetAccess(uint64_t, size_t, const struct access *, size_t);
int cuMemGetAccess(unsigned long long *, const struct location *, uint64_t);

#endif
