// Large copies, which go by several connections once many bytes have gone, and what they cost.
// Arguments: MiB of one copy, how many, and "go"; or "up" or "down" to lose a connection of that way
// first, and say how the session ended.
#include "check.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *), cuMemAllocHost_v2(void **, size_t);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);

// Bytes more than whole chunks; copies before lanes are there; connections of two lanes each way.
enum { ODD = 12345, WARM = 2, ALL = 5 };

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fill(uint32_t *words, size_t count, uint32_t seed) {
    for (size_t at = 0; at < count; at++) words[at] = seed = seed * 1664525u + 1013904223u;
}

// Seconds in which processors of the whole machine were busy: those of both ends and the kernel's.
static double busy(void) {
    double part[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL) return 0;
    int found = fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &part[0], &part[1], &part[2],
                       &part[3], &part[4], &part[5], &part[6], &part[7]);
    fclose(file);
    NEED(found == 8);
    return (part[0] + part[1] + part[2] + part[5] + part[6]) / (double)sysconf(_SC_CLK_TCK);
}

static void report(const char *what, double bytes, double wall, double used, double all) {
    printf("RESULT %s_GBps %.3f\n", what, bytes / wall / 1e9);
    printf("RESULT %s_own_cpu_ns %.0f\n", what, used * 1e9 / (bytes / 1024));  // for each KiB
    printf("RESULT %s_cpu_ns %.0f\n", what, all * 1e9 / (bytes / 1024));
}

static void turns(uint64_t memory, uint32_t *from, uint32_t *to, size_t size, int count) {
    double bytes = (double)size * count;
    double wall = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID), all = busy();
    for (int at = 0; at < count; at++) CHECK(cuMemcpyHtoD_v2(memory, from, size));
    CHECK(cuCtxSynchronize());
    report("up", bytes, seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - used,
           busy() - all);
    wall = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID), all = busy();
    for (int at = 0; at < count; at++) CHECK(cuMemcpyDtoH_v2(to, memory, size));
    report("down", bytes, seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - used,
           busy() - all);
}

// Find the library's connections: the first is that of calls, and those up are the last.
static int connections(int *found, int most) {
    int count = 0;
    for (int fd = 3; fd < 1024 && count < most; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        bool there = getpeername(fd, (struct sockaddr *)&address, &size) == 0;
        if (there && address.ss_family == AF_INET) found[count++] = fd;
    }
    return count;
}

// Whether a connection has had bytes of copies, one way or the other, and not its hello alone.
static bool used(int fd) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info.tcpi_bytes_acked + info.tcpi_bytes_received > 1 << 19;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    size_t size = ((size_t)atoi(arguments[1]) << 20) + ODD;
    int rounds = atoi(arguments[2]);
    uint64_t memory;
    void *stream, *pinned;
    start(0);
    uint32_t *from = malloc(size + 4), *to = malloc(size + 4);
    fill(from, size / 4 + 1, 1);
    CHECK(cuMemAlloc_v2(&memory, size));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAllocHost_v2(&pinned, size));
    bool go = strcmp(arguments[3], "go") == 0, up = strcmp(arguments[3], "up") == 0;
    int found[64], lost = 0, opened = 0;
    size_t warm = (size_t)WARM << 25;
    // Lanes are opened beside the program, so that the one to be lost has carried nothing at first.
    // They are opened one by one.
    bool ready = go;
    for (size_t done = 0; done < warm || (!ready && done < 64 * warm); done += 2 * size) {
        CHECK(cuMemcpyHtoD_v2(memory, from, size));
        CHECK(cuMemcpyDtoH_v2(to, memory, size));
        NEED(memcmp(from, to, size) == 0);
        if (go) continue;
        NEED((opened = connections(found, 64)) > 0);
        lost = found[up || opened < 2 ? opened - 1 : 1];
        ready = opened >= ALL && used(lost);
    }
    usleep(300000);
    if (!go) {
        printf("connections: %d\n", opened);
        NEED(opened > 2);
        CHECK(shutdown(lost, SHUT_RDWR));
        int code = up ? cuMemcpyHtoD_v2(memory, from, size) : cuMemcpyDtoH_v2(to, memory, size);
        printf("error %d, then %d\n", code, cuCtxSynchronize());
        return code != 0;
    }
    turns(memory, from, to, size, rounds);
    NEED(memcmp(from, to, size) == 0);
    for (int at = 0; at < 3; at++) {  // both ways at once, and behind each other
        fill(pinned, size / 4, (uint32_t)at + 7);
        CHECK(cuMemcpyHtoDAsync_v2(memory, pinned, size, stream));
        CHECK(cuMemcpyDtoHAsync_v2(to, memory, size, stream));
        CHECK(cuMemcpyHtoDAsync_v2(memory, from, size, stream));
        CHECK(cuStreamSynchronize(stream));
        NEED(memcmp(pinned, to, size & ~(size_t)3) == 0);
    }
    CHECK(cuMemcpyDtoH_v2(to, memory, size));
    NEED(memcmp(from, to, size) == 0);
    printf("results right\n");
    return 0;
}
