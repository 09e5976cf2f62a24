// What the programs share that share memory with other processes.
#ifndef SHARING_H
#define SHARING_H

#include "check.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct ipc_handle {
    char bytes[64];
};
struct properties {
    int type, handles, location, device;
    void *windows;
    unsigned char flags[8];
};
struct access {
    int location, device, flags;
};
struct pool_properties {
    int type, handles, location, device;
    void *security;
    size_t size_max;
    unsigned char rest[56];
};
int cuIpcGetMemHandle(struct ipc_handle *, uint64_t), cuIpcCloseMemHandle(uint64_t);
int cuIpcOpenMemHandle_v2(uint64_t *, struct ipc_handle, unsigned);
int cuIpcGetEventHandle(struct ipc_handle *, void *);
int cuIpcOpenEventHandle(void **, struct ipc_handle);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventDestroy_v2(void *);
int cuStreamWaitEvent(void *, void *, unsigned), cuEventSynchronize(void *);
int cuMemCreate(uint64_t *, size_t, const struct properties *, unsigned long long);
int cuMemExportToShareableHandle(void *, uint64_t, int, unsigned long long);
int cuMemImportFromShareableHandle(uint64_t *, void *, int), cuMemRelease(uint64_t);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long), cuMemUnmap(uint64_t, size_t);
int cuMemSetAccess(uint64_t, size_t, const struct access *, size_t);
int cuMemGetAllocationPropertiesFromHandle(struct properties *, uint64_t);

int cuMemPoolCreate(void **, const struct pool_properties *), cuMemPoolDestroy(void *);
int cuMemAllocFromPoolAsync(uint64_t *, size_t, void *, void *);
int cuMemPoolExportToShareableHandle(void *, void *, int, unsigned long long);
int cuMemPoolImportFromShareableHandle(void **, void *, int, unsigned long long);
int cuMemPoolExportPointer(struct ipc_handle *, uint64_t);
int cuMemPoolImportPointer(uint64_t *, void *, const struct ipc_handle *);
int cuMemPoolGetAccess(int *, void *, const int *), cuDeviceGetDefaultMemPool(void **, int);

#define MIB ((size_t)1 << 20)

static inline void send_file(int line, int file) {
    char space[CMSG_SPACE(sizeof file)] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
    NEED(sendmsg(line, &message, 0) == 1);
}

static inline int receive_file(int line) {
    char byte, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    int file;
    NEED(recvmsg(line, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL);
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    return file;
}

static inline uint64_t map(uint64_t physical) {
    uint64_t address;
    struct access both = {1, 0, 3};
    CHECK(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
    CHECK(cuMemMap(address, 2 * MIB, 0, physical, 0));
    CHECK(cuMemSetAccess(address, 2 * MIB, &both, 1));
    return address;
}

static inline unsigned char byte_at(uint64_t address) {
    unsigned char byte;
    CHECK(cuMemcpyDtoH_v2(&byte, address, 1));
    return byte;
}

#endif
