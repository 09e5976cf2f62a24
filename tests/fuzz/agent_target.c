// What gpupool run answers and pushes: sessions, lists of devices, which servers are wanted, losses.
// The sockets give the input's bytes.
#define _GNU_SOURCE
#include "input.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FD 1000

static struct input input;
static struct addrinfo found;

static ssize_t fake_recv(int fd, void *target, size_t size, int flags) {
    (void)fd, (void)flags;
    size_t part = size < input.left ? size : input.left;
    take_bytes(&input, target, part);
    return (ssize_t)part;
}

static ssize_t fake_send(int fd, const void *bytes, size_t size, int flags) {
    (void)fd, (void)flags;
    use_bytes(bytes, size);
    return (ssize_t)size;
}

static int fake_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                            struct addrinfo **made) {
    (void)hints;
    use_bytes(host, strlen(host));
    use_bytes(port, strlen(port));
    *made = &found;
    return 0;
}

static int fake_poll(struct pollfd *entries, nfds_t count, int wait_ms) {
    (void)entries, (void)count, (void)wait_ms;
    return 1;
}

#define recv fake_recv
#define send fake_send
#define getaddrinfo fake_getaddrinfo
#define freeaddrinfo(list) ((void)(list))
#define socket(family, type, protocol) ((void)(family), (void)(type), (void)(protocol), FD)
#define connect(fd, address, size) ((void)(fd), (void)(address), (void)(size), 0)
#define setsockopt(fd, level, name, value, size) ((void)(fd), (void)(value), 0)
#define fcntl(fd, ...) ((void)(fd), 0)
#define close(fd) ((void)(fd))
#define poll fake_poll
#include "../../remoting/driver_api/shim/wire/link.c"

bool gp_tls_possible(void) { return input.left & 1; }

bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake) {
    (void)link, (void)handshake;
    use_bytes(server_name, strlen(server_name));
    use_bytes(fingerprint, 32);
    use_bytes(ticket, 32);
    return true;
}

ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    (void)link, (void)target, (void)size;
    return 0;
}

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    (void)link, (void)parts, (void)count;
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static char visible[256] = "CUDA_VISIBLE_DEVICES=";
    static char order[] = "CUDA_DEVICE_ORDER=FASTEST_FIRST";
    const size_t name = strlen("CUDA_VISIBLE_DEVICES=");
    static int prepared;
    if (!prepared++) {
        putenv("GPUPOOL_AGENT=/agent");
        putenv(order);
    }
    input = (struct input){bytes, size};
    unsigned flags = take_byte(&input), listed = take_byte(&input) % (sizeof visible - name - 1);
    take_bytes(&input, visible + name, listed);
    visible[name + listed] = '\0';
    order[0] = flags & 1 ? 'C' : 'X';
    if (flags & 2) {
        putenv(visible);
    } else {
        unsetenv("CUDA_VISIBLE_DEVICES");
    }
    memset(&gp, 0, sizeof gp);
    memset(gp_links, 0, sizeof(struct gp_link) * GP_SERVERS_MAX);
    memset(gp_named, 0, sizeof(struct gp_names) * GP_DEVICES_MAX);
    gp_named_count = 0;
    gp_connect();
    if (gp_named_count > GP_DEVICES_MAX || gp.server_count > GP_SERVERS_MAX) abort();
    int chosen[GP_DEVICES_MAX], many = gp_choose_visible(gp_named, gp_named_count, chosen);
    for (int at = 0; at < many; at++) {
        if (chosen[at] < 0 || chosen[at] >= gp_named_count) abort();
    }
    gp_agent_socket = FD;
    for (int turn = 0; turn < 64 && gp_agent_socket >= 0; turn++) {
        const char *lost = gp_ask_agent(0);
        if (lost != NULL) use_bytes(lost, strlen(lost));
    }
    gp_agent_socket = -1;
    return 0;
}
