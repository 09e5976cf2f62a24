// The worker's end of a line that is encrypted. Python's ssl reads one record of 16 KiB at a call, with two
// system calls, and waits with the interpreter's lock. Who may connect is Python's matter; lanes.c has
// further connections.
#define _GNU_SOURCE  // C11 alone has no clock_gettime
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define RECORD_SIZE (16 * 1024)

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static bool is_ready(const struct gp_link *link, short events, int wait_ms) {
    struct pollfd entry = {.fd = link->socket, .events = events};
    return poll(&entry, 1, wait_ms) > 0;
}

// Do the handshake, and check the ticket; all that is left is the byte that accepts. NULL where it fails.
// The socket stays the caller's.
API struct gp_link *gpupool_line_accept(int socket, const struct gp_identity *identity, const uint8_t ticket[32]);
struct gp_link *gpupool_line_accept(int socket, const struct gp_identity *identity, const uint8_t ticket[32]) {
    struct gp_link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->socket = socket;
    gp_link_moved(link);
    if (gp_tls_accept(link, identity, ticket)) return link;
    free(link);
    return NULL;
}

// Receive some bytes, several records where they are there; 0 at the end. It waits awake for awake_ns
// first, and says whether that was in vain.
API int64_t gpupool_line_receive(struct gp_link *link, unsigned char *target, uint64_t size, int64_t awake_ns,
                                 int32_t *in_vain);
int64_t gpupool_line_receive(struct gp_link *link, unsigned char *target, uint64_t size, int64_t awake_ns,
                             int32_t *in_vain) {
    uint64_t count = 0;
    int64_t until = awake_ns > 0 ? now_ns() + awake_ns : 0;
    *in_vain = 0;
    while (count < size) {
        ssize_t got = gp_receive(link, target + count, size - count);
        if (got > 0) {
            count += (uint64_t)got;
            if (got < RECORD_SIZE) break;  // the end of a message, mostly
        } else if (got == 0 || count > 0) {
            break;
        } else if (until == 0 || now_ns() >= until) {
            if (until != 0) *in_vain = 1;
            until = 0;
            is_ready(link, POLLIN, -1);
        }
    }
    return (int64_t)count;
}

// Send everything; 0, or -1 where the other end has gone.
API int gpupool_line_send(struct gp_link *link, const unsigned char *bytes, uint64_t size);
int gpupool_line_send(struct gp_link *link, const unsigned char *bytes, uint64_t size) {
    while (size > 0) {
        struct iovec part = {(void *)(uintptr_t)bytes, size};
        ssize_t sent = gp_send(link, &part, 1);
        if (sent > 0) {
            bytes += sent;
            size -= (uint64_t)sent;
        } else if (errno == EAGAIN) {
            is_ready(link, POLLOUT, -1);
        } else {
            return -1;
        }
    }
    return 0;
}
