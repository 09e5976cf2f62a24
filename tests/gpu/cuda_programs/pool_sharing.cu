// Two processes share a memory pool: the pool as a descriptor, its allocations one by one.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

#include "check.h"
#include "processes.h"

static const size_t SIZE = 4 << 20;
static const cudaMemAllocationHandleType FILES = cudaMemHandleTypePosixFileDescriptor;

static int send_file(int line, int file) {
    char space[CMSG_SPACE(sizeof file)] = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
    return sendmsg(line, &message, 0) == 1 ? 0 : 1;
}

static int receive_file(int line) {
    char byte, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    int file = -1;
    if (recvmsg(line, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL) {
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    }
    return file;
}

static int create(cudaMemPool_t *pool, cudaMemAllocationHandleType type) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = type;
    properties.location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolCreate(pool, &properties));
    return 0;
}

static int give(int line) {
    cudaMemPool_t pool, plain;
    cudaMemPoolPtrExportData data;
    unsigned char *memory, *other, host[2];
    cudaStream_t stream;
    unsigned long long reserved, used;
    char byte;
    int file;
    if (create(&pool, FILES) || create(&plain, cudaMemHandleTypeNone)) return 1;
    CHECK(cudaStreamCreate(&stream));
    printf("RESULT plain_pool %d\n", cudaMemPoolExportToShareableHandle(&file, plain, FILES, 0));
    CHECK(cudaMallocFromPoolAsync(&other, SIZE, plain, stream));
    printf("RESULT plain_pointer %d\n", cudaMemPoolExportPointer(&data, other));
    cudaGetLastError();
    CHECK(cudaFreeAsync(other, stream));
    CHECK(cudaMemPoolExportToShareableHandle(&file, pool, FILES, 0));
    if (send_file(line, file)) return 1;
    close(file);
    CHECK(cudaMallocFromPoolAsync(&memory, SIZE, pool, stream));
    CHECK(cudaMemsetAsync(memory, 5, SIZE, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolExportPointer(&data, memory));
    if (write(line, &data, sizeof data) != sizeof data || read(line, &byte, 1) != 1) return 1;
    CHECK(cudaMemcpy(host, memory + SIZE - 2, sizeof host, cudaMemcpyDeviceToHost));
    printf("RESULT shared %d %d\n", host[0], host[1]);
    // Each allocation is shared for as long as it lives.
    for (int turn = 0; turn < 1100; turn++) {
        CHECK(cudaMallocFromPoolAsync(&other, SIZE, pool, stream));
        CHECK(cudaMemPoolExportPointer(&data, other));
        CHECK(cudaFreeAsync(other, stream));
    }
    CHECK(cudaFreeAsync(memory, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    printf("RESULT after_trim %d %llu\n", reserved > 0, used);
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaMemPoolDestroy(plain));
    return 0;
}

static int take(int line) {
    cudaMemPool_t pool;
    cudaMemPoolPtrExportData data;
    unsigned char *memory = NULL, *again = NULL, *none = NULL, host[2];
    cudaStream_t stream;
    cudaMemLocation here = {};
    cudaMemAccessFlags access;
    int file = receive_file(line);
    here.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)file, FILES, 0));
    close(file);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMemPoolGetAccess(&access, pool, &here));
    printf("RESULT access %d\n", access);
    printf("RESULT allocate %d\n", cudaMallocFromPoolAsync(&none, SIZE, pool, stream));
    cudaGetLastError();
    if (read(line, &data, sizeof data) != sizeof data) return 1;
    CHECK(cudaMemPoolImportPointer((void **)&memory, pool, &data));
    CHECK(cudaMemPoolImportPointer((void **)&again, pool, &data));
    printf("NOTE imported twice, at the same address: %d\n", again == memory);
    CHECK(cudaMemcpy(host, memory + SIZE - 2, sizeof host, cudaMemcpyDeviceToHost));
    printf("RESULT seen %d %d\n", host[0], host[1]);
    CHECK(cudaMemsetAsync(memory, 9, SIZE, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFreeAsync(memory, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolDestroy(pool));
    fflush(stdout);
    return write(line, "", 1) == 1 ? 0 : 1;
}

int main() { return in_two_processes(give, take); }
