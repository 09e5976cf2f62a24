/* Sharing with other processes. A handle names where the bytes lie in this process's memory file,
 * and a socket from which anybody gets that file: workers may not open each other's in /proc.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define IPC_MAGIC 0x49504332u
#define PAGE ((size_t)4096)

struct ipc_handle { /* fits into CUipcMemHandle and CUipcEventHandle */
    uint32_t magic, flags;
    int32_t pid, pool;
    uint64_t name;
    struct ipc_memory memory;
};
_Static_assert(sizeof(struct ipc_handle) <= 64, "as in cuda.h");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t socket_name; /* 0: there is none yet */

static socklen_t address_of(uint64_t name, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fake-cuda-%016llx",
                          (unsigned long long)name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void *give_file(void *listener) {
    for (;;) {
        int peer = accept((int)(intptr_t)listener, NULL, NULL);
        if (peer < 0)
            continue;
        int file = memory_descriptor();
        char byte = 0, space[CMSG_SPACE(sizeof file)] = {0};
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                                 .msg_controllen = sizeof space};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(head), &file, sizeof file);
        sendmsg(peer, &message, 0);
        close(peer);
    }
    return NULL;
}

static CUresult handle_fill(void *out, size_t bytes, const struct ipc_memory *memory,
                            unsigned flags) {
    pthread_mutex_lock(&lock);
    if (socket_name == 0) {
        struct sockaddr_un address;
        pthread_t thread;
        int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (getrandom(&socket_name, sizeof socket_name, 0) != sizeof socket_name ||
            bind(listener, (struct sockaddr *)&address, address_of(socket_name, &address)) != 0 ||
            listen(listener, 64) != 0 ||
            pthread_create(&thread, NULL, give_file, (void *)(intptr_t)listener) != 0)
            abort();
        pthread_detach(thread);
    }
    struct ipc_handle handle = {IPC_MAGIC, flags, getpid(), 0, socket_name, *memory};
    pthread_mutex_unlock(&lock);
    memset(out, 0, bytes);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

static int file_from(const struct ipc_handle *handle) { /* -1: its process has gone */
    struct sockaddr_un address;
    socklen_t length = address_of(handle->name, &address);
    int file = -1, peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(peer, (struct sockaddr *)&address, length) == 0) {
        char byte, space[CMSG_SPACE(sizeof file)] = {0};
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                                 .msg_controllen = sizeof space};
        if (recvmsg(peer, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != NULL)
            memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    }
    close(peer);
    return file;
}

static CUresult handle_read(const void *given, struct ipc_handle *handle) {
    memcpy(handle, given, sizeof *handle);
    REQUIRE(handle->magic == IPC_MAGIC);
    if (handle->pid == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT; /* CUDA, too, refuses a handle of the same process */
    return CUDA_SUCCESS;
}

static CUresult handle_open(const void *given, struct ipc_handle *handle, int *file) {
    TRY(handle_read(given, handle));
    *file = file_from(handle);
    return *file < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- allocations ---- */

API CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    ENTER_CONTEXT(ctx);
    struct ipc_memory memory;
    REQUIRE(pHandle != NULL && memory_share(dptr, NULL, &memory));
    return handle_fill(pHandle, sizeof *pHandle, &memory, 0);
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle given, unsigned int Flags) {
    ENTER_CONTEXT(ctx);
    REQUIRE(pdptr != NULL && Flags <= 1);
    struct ipc_handle handle;
    int file;
    TRY(handle_open(&given, &handle, &file));
    bool mapped = memory_import(ctx, NULL, file, &handle.memory, pdptr);
    close(file);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    ENTER_CONTEXT(ctx);
    TRY(context_wait(ctx));
    return memory_close(dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- events: two counters in a file ----
 *
 * As the real driver's it is named by its owner and process, looked up under the opener's own user,
 * closed to others, and left behind by a process that is killed.
 */

static void path_of(char path[64], int32_t pid, int64_t number) {
    snprintf(path, 64, "/dev/shm/cuda.shm.%x.%x.%llx", (unsigned)geteuid(), (unsigned)pid,
             (unsigned long long)number);
}

static struct shared_event *map_event(int32_t pid, int64_t number, int flags) {
    char path[64];
    path_of(path, pid, number);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (file < 0 || ((flags & O_CREAT) && ftruncate(file, PAGE) != 0))
        return NULL;
    void *found = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return found == MAP_FAILED ? NULL : found;
}

static _Atomic int64_t event_files;

__attribute__((destructor)) static void remove_files(void) {
    char path[64];
    for (int64_t number = 1; number <= event_files; number++) {
        path_of(path, getpid(), number);
        unlink(path);
    }
}

CUresult event_share(CUevent event) {
    int64_t number = atomic_fetch_add(&event_files, 1) + 1;
    event->where = (struct ipc_memory){number, PAGE, event->ctx->dev};
    event->shared = map_event(getpid(), number, O_CREAT | O_TRUNC);
    return event->shared == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

API CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event) {
    ENTER();
    REQUIRE_HANDLE(IS(event, MAGIC_EVENT));
    REQUIRE(pHandle != NULL && event->shared != NULL);
    return handle_fill(pHandle, sizeof *pHandle, &event->where, event->flags);
}

API CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle given) {
    ENTER_CONTEXT(ctx);
    REQUIRE(phEvent != NULL);
    struct ipc_handle handle;
    TRY(handle_read(&given, &handle));
    CUevent event = zeroed(sizeof *event);
    event->magic = MAGIC_EVENT;
    event->ctx = ctx;
    event->flags = handle.flags;
    event->shared = map_event(handle.pid, handle.memory.offset, 0);
    if (event->shared == NULL)
        return CUDA_ERROR_MAP_FAILED;
    *phEvent = event;
    return CUDA_SUCCESS;
}

/* ---- physical memory and pools: a descriptor of a file that holds the handle ---- */

static CUresult descriptor_make(int *out, const struct ipc_handle *filled) {
    int file = memfd_create("fake-cuda-handle", MFD_CLOEXEC);
    if (pwrite(file, filled, sizeof *filled, 0) != sizeof *filled)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = file;
    return CUDA_SUCCESS;
}

static CUresult descriptor_read(int file, struct ipc_handle *found) {
    REQUIRE(pread(file, found, sizeof *found, 0) == sizeof *found);
    REQUIRE(found->magic == IPC_MAGIC);
    return CUDA_SUCCESS;
}

API CUresult cuMemExportToShareableHandle(void *shareableHandle,
                                          CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
    ENTER();
    struct ipc_memory memory;
    REQUIRE(shareableHandle != NULL && flags == 0);
    if ((int)handleType != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(memory_share_backing(handle, &memory));
    struct ipc_handle filled;
    handle_fill(&filled, sizeof filled, &memory, 0);
    return descriptor_make(shareableHandle, &filled);
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                            CUmemAllocationHandleType shHandleType) {
    ENTER();
    REQUIRE(handle != NULL && (int)shHandleType == 1);
    struct ipc_handle found;
    TRY(descriptor_read((int)(intptr_t)osHandle, &found));
    int file = file_from(&found);
    REQUIRE(file >= 0);
    *handle = memory_import_backing(file, &found.memory);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags) {
    ENTER();
    REQUIRE(handle_out != NULL && IS(pool, MAGIC_POOL) && (int)handleType == 1 && flags == 0);
    REQUIRE(pool->shareable);
    struct ipc_handle filled;
    handle_fill(&filled, sizeof filled, &(struct ipc_memory){.dev = pool->dev}, 0);
    filled.pool = pool->number;
    return descriptor_make(handle_out, &filled);
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                CUmemAllocationHandleType handleType,
                                                unsigned long long flags) {
    ENTER();
    REQUIRE(pool_out != NULL && (int)handleType == 1 && flags == 0);
    struct ipc_handle found;
    TRY(descriptor_read((int)(intptr_t)handle, &found));
    CUmemoryPool pool = pool_new(found.memory.dev);
    pool->origin = found.name;
    pool->number = found.pool;
    *pool_out = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
    ENTER();
    struct region region;
    struct ipc_memory memory;
    REQUIRE(shareData_out != NULL && memory_find(ptr, &region) && region.pool != NULL);
    REQUIRE(region.pool->shareable && memory_share(ptr, region.pool, &memory));
    TRY(handle_fill(shareData_out, sizeof *shareData_out, &memory, 0));
    ((struct ipc_handle *)shareData_out)->pool = region.pool->number;
    return CUDA_SUCCESS;
}

/* Nobody counts how often an allocation was imported: the first free ends all that it gave. */
API CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                    CUmemPoolPtrExportData *shareData) {
    ENTER_CONTEXT(ctx);
    REQUIRE(ptr_out != NULL && IS(pool, MAGIC_POOL) && pool->origin != 0 && shareData != NULL);
    struct ipc_handle found;
    memcpy(&found, shareData, sizeof found);
    REQUIRE(found.magic == IPC_MAGIC && found.name == pool->origin && found.pool == pool->number);
    int file = file_from(&found);
    REQUIRE(file >= 0);
    bool mapped = memory_import(ctx, pool, file, &found.memory, ptr_out);
    close(file);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
