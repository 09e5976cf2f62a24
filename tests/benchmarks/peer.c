// What a plain socket does on this machine, to compare with; and a proxy that delays.
//
//     peer measure unix|tcp            RESULT lines: 256 MiB each way, ping-pong of 4 bytes
//     peer proxy PORT MICROSECONDS     prints its own port; passes one connection on to PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 256 << 20, ROUNDS = 5, PINGS = 2001, CHUNKS = 4096, CHUNK = 64 << 10 };

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

// One direction: a thread that reads and notes when, and one that writes so much later.
struct direction {
    int from, to, delay_us;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned read, written;
    int ended;
    struct {
        double due;
        ssize_t size;
        char bytes[CHUNK];
    } *chunks;
};

static void *reader(void *argument) {
    struct direction *d = argument;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (d->read - d->written == CHUNKS) pthread_cond_wait(&d->changed, &d->lock);
        unsigned at = d->read % CHUNKS;
        pthread_mutex_unlock(&d->lock);
        ssize_t size = recv(d->from, d->chunks[at].bytes, CHUNK, 0);
        d->chunks[at].size = size;
        d->chunks[at].due = now_us() + d->delay_us;
        pthread_mutex_lock(&d->lock);
        d->read++;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        if (size <= 0) return NULL;
    }
}

static void *writer(void *argument) {
    struct direction *d = argument;
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (;;) {
        pthread_mutex_lock(&d->lock);
        while (d->read == d->written) pthread_cond_wait(&d->changed, &d->lock);
        unsigned at = d->written % CHUNKS;
        pthread_mutex_unlock(&d->lock);
        double left;
        while ((left = d->chunks[at].due - now_us()) > 0) {
            if (left > 80) usleep((useconds_t)left - 70);
        }
        if (d->chunks[at].size <= 0) {
            shutdown(d->to, SHUT_RDWR);
            shutdown(d->from, SHUT_RDWR);
            return NULL;
        }
        all(d->to, d->chunks[at].bytes, (size_t)d->chunks[at].size, 0);
        pthread_mutex_lock(&d->lock);
        d->written++;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
    }
}

static void start(struct direction *d, int from, int to, int delay_us, pthread_t *threads) {
    *d = (struct direction){.from = from, .to = to, .delay_us = delay_us};
    d->chunks = malloc(CHUNKS * sizeof *d->chunks);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    pthread_create(&threads[0], NULL, reader, d);
    pthread_create(&threads[1], NULL, writer, d);
}

static void proxy(int target, int delay_us) {
    int port, listener = listen_tcp(&port);
    printf("%d\n", port);
    fflush(stdout);
    int near = accept(listener, NULL, NULL), far = connect_tcp(target);
    prepare(near);
    prepare(far);
    static struct direction there, back;
    pthread_t threads[4];
    start(&there, near, far, delay_us / 2, threads);
    start(&back, far, near, delay_us / 2, threads + 2);
    for (int at = 0; at < 4; at++) pthread_join(threads[at], NULL);
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "measure") == 0) {
        measure(words[2]);
    } else if (count == 4 && strcmp(words[1], "proxy") == 0) {
        proxy(atoi(words[2]), atoi(words[3]));
    } else {
        return 2;
    }
    return 0;
}
