// What a plain socket does on this machine, to compare with; and a proxy that delays.
//
//     peer measure unix|tcp            RESULT lines: 256 MiB each way, ping-pong of 4 bytes
//     peer measure proxied MICROSECONDS   the ping-pong through the proxy
//     peer proxy PORT MICROSECONDS     prints its own port; passes connections on to PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 256 << 20, ROUNDS = 5, PINGS = 2001, CHUNKS = 4096, CHUNK = 64 << 10 };
enum { PROXIED = 501, AWAKE_US = 20000 };

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void need(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(1);
}

static void all(int fd, char *bytes, size_t size, int receive) {
    while (size > 0) {
        ssize_t part = receive ? recv(fd, bytes, size, 0) : send(fd, bytes, size, MSG_NOSIGNAL);
        if (part <= 0) exit(0);
        bytes += part;
        size -= (size_t)part;
    }
}

static int listen_tcp(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(fd, (void *)&address, size) == 0 && listen(fd, 4) == 0, "listen");
    getsockname(fd, (void *)&address, &size);
    *port = ntohs(address.sin_port);
    return fd;
}

static int connect_tcp(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(fd, (void *)&address, sizeof address) == 0, "connect");
    return fd;
}

static void prepare(int fd) {
    const int on = 1, size = 4 << 20;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *kind) {
    int ends[2];
    if (strcmp(kind, "unix") == 0) {
        need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    } else {
        int port, listener = listen_tcp(&port);
        ends[0] = connect_tcp(port);
        ends[1] = accept(listener, NULL, NULL);
    }
    prepare(ends[0]);
    prepare(ends[1]);
    char *bytes = malloc(SIZE);
    memset(bytes, 1, SIZE);
    if (fork() == 0) {
        close(ends[0]);
        for (;;) {
            uint32_t order;
            all(ends[1], (char *)&order, 4, 1);
            if (order == 1) all(ends[1], bytes, SIZE, 1);
            if (order == 2) all(ends[1], bytes, SIZE, 0);
            all(ends[1], (char *)&order, 4, 0);
        }
    }
    close(ends[1]);
    double times[PINGS];
    uint32_t order;
    for (uint32_t way = 1; way <= 2; way++) {
        for (int at = 0; at < ROUNDS; at++) {
            double start = now_us();
            order = way;
            all(ends[0], (char *)&order, 4, 0);
            all(ends[0], bytes, SIZE, way == 2);
            all(ends[0], (char *)&order, 4, 1);
            times[at] = now_us() - start;
        }
        qsort(times, ROUNDS, sizeof *times, by_value);
        printf("RESULT %s_%s_GBps %.3f\n", kind, way == 1 ? "out" : "in", SIZE / times[2] / 1e3);
    }
    for (int at = 0; at < PINGS; at++) {
        double start = now_us();
        order = 0;
        all(ends[0], (char *)&order, 4, 0);
        all(ends[0], (char *)&order, 4, 1);
        times[at] = now_us() - start;
    }
    qsort(times, PINGS, sizeof *times, by_value);
    printf("RESULT %s_pingpong_us %.2f\n", kind, times[PINGS / 2]);
}

// One direction: a thread that reads, notes when, and writes so much later. It is awake while there is
// traffic, as to wake up may take as long as a part of the delay.
struct direction {
    int from, to, delay_us;
    struct {
        double due;
        size_t size;
        char bytes[CHUNK];
    } *chunks;
};

static void *pass_on(void *argument) {
    struct direction *d = argument;
    unsigned read = 0, written = 0;
    size_t sent = 0;
    double active = now_us();
    bool ended = false;
    while (!ended || read != written) {
        double now = now_us();
        if (!ended && read - written < CHUNKS) {
            ssize_t size = recv(d->from, d->chunks[read % CHUNKS].bytes, CHUNK, MSG_DONTWAIT);
            if (size > 0) {
                d->chunks[read % CHUNKS].size = (size_t)size;
                d->chunks[read++ % CHUNKS].due = now + d->delay_us;
                active = now;
            }
            ended = size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR);
        }
        if (read != written && d->chunks[written % CHUNKS].due <= now) {
            size_t left = d->chunks[written % CHUNKS].size - sent;
            ssize_t part = send(d->to, d->chunks[written % CHUNKS].bytes + sent, left,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
            if (part < 0 && errno != EAGAIN && errno != EINTR) break;
            if (part > 0) sent += (size_t)part;
            if (part == (ssize_t)left) {
                written++;
                sent = 0;
            }
        }
        if (!ended && read == written && now - active > AWAKE_US) {
            struct pollfd entry = {.fd = d->from, .events = POLLIN};
            poll(&entry, 1, -1);
            active = now_us();
        }
    }
    shutdown(d->to, SHUT_RDWR);
    shutdown(d->from, SHUT_RDWR);
    return NULL;
}

static void start(struct direction *d, int from, int to, int delay_us, pthread_t *thread) {
    *d = (struct direction){.from = from, .to = to, .delay_us = delay_us};
    d->chunks = malloc(CHUNKS * sizeof *d->chunks);
    need(d->chunks != NULL, "malloc");
    pthread_create(thread, NULL, pass_on, d);
}

// Between two connections, until one ends.
static void pass_both_ways(int near, int far, int delay_us) {
    prepare(near);
    prepare(far);
    struct direction there, back;
    pthread_t threads[2];
    start(&there, near, far, delay_us / 2, &threads[0]);
    start(&back, far, near, delay_us / 2, &threads[1]);
    for (int at = 0; at < 2; at++) pthread_join(threads[at], NULL);
    free(there.chunks);
    free(back.chunks);
    close(near);
    close(far);
}

struct pair {
    int near, target, delay_us;
};

static void *pass_pair(void *argument) {
    struct pair pair = *(struct pair *)argument;
    free(argument);
    pass_both_ways(pair.near, connect_tcp(pair.target), pair.delay_us);
    return NULL;
}

static void proxy(int target, int delay_us) {
    int port, listener = listen_tcp(&port);
    printf("%d\n", port);
    fflush(stdout);
    for (;;) {
        struct pair *pair = malloc(sizeof *pair);
        pthread_t thread;
        need(pair != NULL, "malloc");
        *pair = (struct pair){accept(listener, NULL, NULL), target, delay_us};
        need(pair->near >= 0, "accept");
        need(pthread_create(&thread, NULL, pass_pair, pair) == 0, "thread");
        pthread_detach(thread);
    }
}

// What a ping-pong takes through the proxy, between ends that are awake.
static void measure_proxied(int delay_us) {
    int target_port, port, target = listen_tcp(&target_port), listener = listen_tcp(&port);
    if (fork() == 0) {
        int near = accept(listener, NULL, NULL);
        pass_both_ways(near, connect_tcp(target_port), delay_us);
        exit(0);
    }
    if (fork() == 0) {
        int fd = accept(target, NULL, NULL);
        prepare(fd);
        for (;;) {
            char order[4];
            ssize_t got = recv(fd, order, 4, MSG_DONTWAIT);
            if (got == 0) exit(0);
            if (got > 0) all(fd, order, 4, 0);
        }
    }
    int fd = connect_tcp(port);
    prepare(fd);
    double times[PROXIED];
    for (int at = 0; at < PROXIED; at++) {
        char order[4] = {0};
        double start = now_us();
        all(fd, order, 4, 0);
        while (recv(fd, order, 4, MSG_DONTWAIT) <= 0) {
        }
        times[at] = now_us() - start;
    }
    qsort(times, PROXIED, sizeof *times, by_value);
    printf("RESULT proxied_pingpong_us %.2f\n", times[PROXIED / 2]);
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "measure") == 0) {
        measure(words[2]);
    } else if (count == 4 && strcmp(words[1], "measure") == 0) {
        measure_proxied(atoi(words[3]));
    } else if (count == 4 && strcmp(words[1], "proxy") == 0) {
        proxy(atoi(words[2]), atoi(words[3]));
    } else {
        return 2;
    }
    return 0;
}
