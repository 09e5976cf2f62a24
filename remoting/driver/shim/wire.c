// The line to the worker: calls in one total order, replies to whoever waits, downloads.
//
// A frame to the worker is a header of 16 bytes, a body of records and bulk bytes that belong to
// its last record. Records are appended to a buffer, which leaves when somebody waits, when it
// holds FLUSH_SIZE bytes, or FLUSH_DELAY_NS after its first record. There is no thread that
// reads: whoever waits reads, for itself and for the others.
#define _GNU_SOURCE
#include "core.h"
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAGIC 0x47504331U  // "1CPG"
#define BUFFER_SIZE (512 * 1024)
#define FLUSH_SIZE (32 * 1024)
#define FLUSH_DELAY_NS 50000
#define SPIN_NS 30000
#define LOOK_MS 1000       // between looks whether the server is still there
#define LAST_WORDS_MS 300  // for gpupool run to say why the connection broke
#define READ_SIZE (64 * 1024)
#define BODY_MAX (64u << 20)
#define DOWNLOADS_MAX 65536

enum { REPLY = 1, DATA = 2, NOTICE = 3, MIRROR = 4, PRINTED = 5, HOST = 6 };

struct frame {
    uint32_t magic, body;
    uint64_t bulk;
};

struct record {
    uint16_t op, flags;
    uint32_t size;
};

struct answer {
    uint32_t kind;
    int32_t status;
    uint64_t request;
    uint32_t body;
    int32_t failed_op;  // whose error this is, when an earlier call's
    uint64_t bulk;
};

struct buffer {
    size_t used;  // behind the frame's header
    unsigned char bytes[BUFFER_SIZE];
};

struct download {
    uint64_t id;
    unsigned char *target;
    size_t size;
    uint64_t stream;
    struct download *next;
};

static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;  // the open buffer
static pthread_mutex_t send_lock = PTHREAD_MUTEX_INITIALIZER;  // taken before line_lock
static pthread_cond_t dirty = PTHREAD_COND_INITIALIZER;
static struct buffer *open_buffer, *spare_buffer;
static int line_device;  // that the worker will have when it reaches the end of the buffer
static uint64_t position;
static bool flusher_waits;

static pthread_mutex_t read_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static bool reading;
static struct gp_request *waiting;
static struct download *downloads;
static unsigned download_count;
static unsigned char read_buffer[READ_SIZE];
static size_t read_start, read_end;
static int lost;
static struct gp_request announced;  // done: a host function's turn has come
unsigned long gp_waits[GP_WAITS];

bool gp_is_lost(void) { return __atomic_load_n(&lost, __ATOMIC_RELAXED) != 0; }

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void lose(const char *why) {
    if (__atomic_exchange_n(&lost, 1, __ATOMIC_RELAXED)) return;
    shutdown(gp_socket, SHUT_RDWR);
    const char *reason = gp_ask_agent(LAST_WORDS_MS);
    if (reason == NULL) gp_tell_agent(why);
    gp_say("the GPU is lost: %s", reason != NULL ? reason : why);
}

void gp_wire_forked(void) {
    // Only this thread is left, and the locks may be held by threads that are not.
    __atomic_store_n(&lost, 1, __ATOMIC_RELAXED);
    if (gp_socket >= 0) close(gp_socket);
    if (gp_agent_socket >= 0) close(gp_agent_socket);
    gp_socket = gp_agent_socket = -1;
}

// --- reading --------------------------------------------------------------------------------------

// Look for what ends a session without a word on its connection.
static bool still_there(void) {
    const char *reason = gp_ask_agent(0);
    if (reason == NULL && gp_peer_is_dead()) reason = "the server does not answer any more";
    if (reason != NULL) lose(reason);
    return reason == NULL;
}

static bool wait_readable(int64_t deadline_spin) {
    struct pollfd entries[2] = {{.fd = gp_socket, .events = POLLIN}};
    do {
        if (poll(entries, 1, 0) > 0) return true;
    } while (now_ns() < deadline_spin);
    for (;;) {
        // A negative descriptor is left out.
        entries[1] = (struct pollfd){.fd = gp_agent_socket, .events = POLLIN};
        int found = poll(entries, 2, LOOK_MS);
        if (found < 0 && errno != EINTR) return false;
        if (found > 0 && entries[0].revents) return true;
        if (!still_there()) return false;
    }
}

static bool read_some(void *target, size_t size, size_t *count) {
    int64_t spin = now_ns() + SPIN_NS;
    for (;;) {
        ssize_t got = gp_receive(target, size);
        if (got > 0) {
            *count = (size_t)got;
            return true;
        }
        if (got == 0) return false;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (!wait_readable(spin)) return false;
    }
}

static bool read_exactly(void *target, size_t size) {
    unsigned char *at = target;
    while (size > 0) {
        size_t have = read_end - read_start;
        if (have == 0 && size >= READ_SIZE) {
            size_t count;
            if (!read_some(at, size, &count)) return false;
            at += count;
            size -= count;
            continue;
        }
        if (have == 0) {
            read_start = 0;
            if (!read_some(read_buffer, READ_SIZE, &read_end)) {
                read_end = 0;
                return false;
            }
            have = read_end;
        }
        size_t part = have < size ? have : size;
        memcpy(at, read_buffer + read_start, part);
        read_start += part;
        at += part;
        size -= part;
    }
    return true;
}

static struct download *take_download(uint64_t id) {
    for (struct download **at = &downloads; *at != NULL; at = &(*at)->next) {
        if ((*at)->id == id) {
            struct download *found = *at;
            *at = found->next;
            download_count--;
            return found;
        }
    }
    return NULL;
}

// Read one answer and give it to whom it belongs. Called by the one thread that reads, with
// read_lock free while it waits; returns false when the connection is of no use any more.
static bool read_answer(void) {
    struct answer head;
    if (!read_exactly(&head, sizeof head)) return false;
    if (head.body > BODY_MAX) return false;
    if (head.kind == NOTICE) {
        char text[1024];
        size_t part = head.body < sizeof text - 1 ? head.body : sizeof text - 1;
        if (head.body > part || !read_exactly(text, part)) return false;
        text[part] = '\0';
        gp_say("%s", text);
        return true;
    }
    if (head.kind == PRINTED) {
        // As the driver does: by the C library's stream, in turn with what the program prints.
        for (char text[1024]; head.body > 0;) {
            size_t part = head.body < sizeof text ? head.body : sizeof text;
            if (!read_exactly(text, part)) return false;
            fwrite(text, 1, part, stdout);
            head.body -= (uint32_t)part;
        }
        return true;
    }
    if (head.kind == DATA) {
        pthread_mutex_lock(&read_lock);
        struct download *found = take_download(head.request);
        pthread_mutex_unlock(&read_lock);
        bool fits = found != NULL && found->size == head.bulk && head.body == 0;
        bool good = fits && read_exactly(found->target, found->size);
        free(found);
        return good;
    }
    if (head.kind == MIRROR) {
        uint64_t offset;
        if (head.body != sizeof offset || !read_exactly(&offset, sizeof offset)) return false;
        unsigned char *target = gp_mapped_target(head.request, offset, head.bulk, false);
        if (target == NULL || !read_exactly(target, head.bulk)) return false;
        return gp_mapped_target(head.request, offset, head.bulk, true) != NULL;
    }
    if (head.kind == HOST) {
        uint64_t ticket;
        if (head.body != sizeof ticket || !read_exactly(&ticket, sizeof ticket)) return false;
        gp_host_arrived(head.request, head.status, ticket);
        pthread_mutex_lock(&read_lock);
        announced.done = true;
        pthread_mutex_unlock(&read_lock);
        return true;
    }
    pthread_mutex_lock(&read_lock);
    struct gp_request **at = &waiting;
    while (*at != NULL && (*at)->id != head.request) at = &(*at)->next;
    struct gp_request *request = *at;
    if (request != NULL) *at = request->next;
    pthread_mutex_unlock(&read_lock);
    if (head.kind != REPLY || request == NULL) return false;
    bool good = head.bulk == 0 || head.bulk == request->bulk_size;
    if (good && request->grows && head.body > 0) {
        request->body = malloc(head.body);
        request->capacity = request->body == NULL ? 0 : head.body;
    }
    good = good && head.body <= request->capacity;
    good = good && read_exactly(request->body, head.body);
    good = good && (head.bulk == 0 || read_exactly(request->bulk, head.bulk));
    if (good && head.failed_op != 0 && gp_verbose()) {
        gp_say("error %d of an earlier asynchronous call, record %d", head.status, head.failed_op);
    }
    pthread_mutex_lock(&read_lock);
    request->length = head.body;
    request->status = good ? head.status : GP_DEVICE_UNAVAILABLE;
    request->done = true;
    pthread_mutex_unlock(&read_lock);
    return good;
}

static void fail_waiting(void) {
    for (struct gp_request *at = waiting; at != NULL; at = at->next) {
        at->status = GP_DEVICE_UNAVAILABLE;
        at->done = true;
    }
    waiting = NULL;
}

// Wait until request is done, or, without one, read one answer if nobody else reads.
static void await(struct gp_request *request) {
    pthread_mutex_lock(&read_lock);
    while (request == NULL || !request->done) {
        if (gp_is_lost()) {
            fail_waiting();
            break;
        }
        if (reading) {
            if (request == NULL) break;
            pthread_cond_wait(&answered, &read_lock);
            continue;
        }
        reading = true;
        pthread_mutex_unlock(&read_lock);
        bool good = read_answer();
        if (!good) lose("the connection to the server broke");
        pthread_mutex_lock(&read_lock);
        reading = false;
        if (!good) fail_waiting();
        pthread_cond_broadcast(&answered);
        if (request == NULL) break;
    }
    pthread_mutex_unlock(&read_lock);
}

void gp_await_host(void) {
    await(&announced);
    // What is announced from now on is seen by the next call; the rest is queued already.
    pthread_mutex_lock(&read_lock);
    announced.done = false;
    pthread_mutex_unlock(&read_lock);
}

// --- sending --------------------------------------------------------------------------------------

static bool somebody_reads(void) {
    pthread_mutex_lock(&read_lock);
    bool found = reading;
    pthread_mutex_unlock(&read_lock);
    return found;
}

// Read what the worker said before it closed its end, such as why; then the session is lost.
static void hear_last_words(void) {
    while (!gp_is_lost()) {
        pthread_mutex_lock(&read_lock);
        while (reading && !gp_is_lost()) pthread_cond_wait(&answered, &read_lock);
        pthread_mutex_unlock(&read_lock);
        await(NULL);
    }
}

// Send everything; reads answers meanwhile, so that two full socket buffers cannot block each
// other for ever.
static void send_all(struct iovec *parts, int count) {
    int64_t looked = now_ns();
    while (count > 0 && !gp_is_lost()) {
        ssize_t sent = gp_send(parts, count);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno == EPIPE || errno == ECONNRESET) {
                hear_last_words();
                return;
            }
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                lose("the connection to the server broke");
                return;
            }
            bool others = somebody_reads();
            struct pollfd entry = {.fd = gp_socket};
            entry.events = others ? POLLOUT : POLLIN | POLLOUT;
            // A reader that ends meanwhile leaves the reading to us, so the wait has an end.
            if (poll(&entry, 1, 20) == 0 && now_ns() - looked > LOOK_MS * 1000000LL) {
                looked = now_ns();
                if (!still_there()) return;
            }
            if (!others && (entry.revents & POLLIN)) await(NULL);
            continue;
        }
        size_t left = (size_t)sent;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (unsigned char *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
}

// Send the buffer and bulk bytes behind it; send_lock and line_lock are held, and line_lock is
// released before anything is sent.
static void send_buffer(const void *bulk, size_t bulk_size) {
    struct buffer *full = open_buffer;
    open_buffer = spare_buffer;
    open_buffer->used = sizeof(struct frame);
    pthread_mutex_unlock(&line_lock);
    struct frame head = {FRAME_MAGIC, (uint32_t)(full->used - sizeof head), bulk_size};
    memcpy(full->bytes, &head, sizeof head);
    struct iovec parts[2] = {
        {full->bytes, full->used},
        {(void *)(uintptr_t)bulk, bulk_size},
    };
    send_all(parts, bulk_size ? 2 : 1);
    spare_buffer = full;
}

void gp_flush(void) {
    pthread_mutex_lock(&send_lock);
    pthread_mutex_lock(&line_lock);
    if (open_buffer != NULL && open_buffer->used > sizeof(struct frame)) {
        send_buffer(NULL, 0);
    } else {
        pthread_mutex_unlock(&line_lock);
    }
    pthread_mutex_unlock(&send_lock);
}

static void *flush_late(void *unused) {
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1UL);
    const struct timespec pause = {.tv_nsec = FLUSH_DELAY_NS};
    while (!gp_is_lost()) {
        pthread_mutex_lock(&line_lock);
        while (open_buffer->used <= sizeof(struct frame)) {
            flusher_waits = true;
            pthread_cond_wait(&dirty, &line_lock);
        }
        flusher_waits = false;
        pthread_mutex_unlock(&line_lock);
        nanosleep(&pause, NULL);
        gp_flush();
    }
    return NULL;
}

// Append a record; line_lock is held, and full buffers are sent first.
static unsigned char *append(int op, int flags, size_t size, int device) {
    size = (size + 7) & ~(size_t)7;
    while (open_buffer->used + size + 16 > BUFFER_SIZE) {
        pthread_mutex_unlock(&line_lock);
        gp_flush();
        pthread_mutex_lock(&line_lock);
    }
    unsigned char *at = open_buffer->bytes + open_buffer->used;
    if (device >= 0 && device != line_device) {
        struct record select = {GP_SET_DEVICE, 0, 16};
        uint64_t value = (uint64_t)device;
        memcpy(at, &select, sizeof select);
        memcpy(at + 8, &value, sizeof value);
        line_device = device;
        open_buffer->used += 16;
        at += 16;
    }
    struct record head = {(uint16_t)op, (uint16_t)flags, (uint32_t)size};
    memcpy(at, &head, sizeof head);
    memset(at + size - 8, 0, size > sizeof head ? 8 : 0);  // the padding
    open_buffer->used += size;
    position++;
    return at + sizeof head;
}

// Host functions that are pending must not get behind what waits for them; see host.c.
static void gate(int op, uint64_t size) {
    if (__builtin_expect(__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0, 0)) {
        gp_host_gate(op, size);
    }
}

static int wanted_device(void) {
    int ordinal = gp_current_device();
    return ordinal < 0 ? -1 : gp_server_device(ordinal);
}

unsigned char *gp_open(int op, int flags, size_t size) {
    if (sizeof(struct record) + size > BUFFER_SIZE - 64) return NULL;
    gate(op, 0);
    int device = wanted_device();
    pthread_mutex_lock(&line_lock);
    return append(op, flags, sizeof(struct record) + size, device);
}

void gp_close(void) {
    bool full = open_buffer->used >= FLUSH_SIZE;
    if (!full && flusher_waits) {
        flusher_waits = false;
        pthread_cond_signal(&dirty);
    }
    pthread_mutex_unlock(&line_lock);
    if (full) gp_flush();
}

uint64_t gp_position(void) {
    pthread_mutex_lock(&line_lock);
    uint64_t found = position;
    pthread_mutex_unlock(&line_lock);
    return found;
}

int gp_post(int op, const uint64_t *values, int count) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    unsigned char *at = gp_open(op, 0, (size_t)count * 8);
    memcpy(at, values, (size_t)count * 8);
    gp_close();
    return GP_SUCCESS;
}

int gp_post_bulk(int op, const uint64_t *values, int count, const void *bulk, size_t size) {
    gate(op, size);
    int device = wanted_device();
    pthread_mutex_lock(&send_lock);
    pthread_mutex_lock(&line_lock);
    // append() would take send_lock again, so room is made here.
    if (open_buffer->used + (size_t)count * 8 + 64 > BUFFER_SIZE) {
        send_buffer(NULL, 0);
        pthread_mutex_lock(&line_lock);
    }
    unsigned char *at = append(op, 0, sizeof(struct record) + (size_t)count * 8, device);
    memcpy(at, values, (size_t)count * 8);
    send_buffer(bulk, size);
    pthread_mutex_unlock(&send_lock);
    return gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

int gp_exchange(struct gp_request *request, int op, const uint64_t *values, int count,
                const void *text, size_t text_size, const void *bulk, size_t bulk_size) {
    static uint64_t next_request = 1;
    gate(op, 0);
    if (op < GP_WAITS) __atomic_fetch_add(&gp_waits[op], 1, __ATOMIC_RELAXED);
    request->id = __atomic_fetch_add(&next_request, 1, __ATOMIC_RELAXED);
    request->done = false;
    request->length = 0;
    pthread_mutex_lock(&read_lock);
    request->next = waiting;
    waiting = request;
    pthread_mutex_unlock(&read_lock);
    int device = wanted_device();
    size_t size = sizeof(struct record) + 8 + (size_t)count * 8 + text_size;
    pthread_mutex_lock(&send_lock);
    pthread_mutex_lock(&line_lock);
    if (open_buffer->used + size + 64 > BUFFER_SIZE) {
        send_buffer(NULL, 0);
        pthread_mutex_lock(&line_lock);
    }
    unsigned char *at = append(op, 1, size, device);
    memcpy(at, &request->id, 8);
    memcpy(at + 8, values, (size_t)count * 8);
    if (text_size) memcpy(at + 8 + (size_t)count * 8, text, text_size);
    send_buffer(bulk, bulk_size);
    pthread_mutex_unlock(&send_lock);
    await(request);
    return request->status;
}

int gp_call(int op, const uint64_t *values, int count, void *reply, size_t capacity) {
    struct gp_request request = {.body = reply, .capacity = capacity};
    return gp_exchange(&request, op, values, count, NULL, 0, NULL, 0);
}

// --- downloads ------------------------------------------------------------------------------------

uint64_t gp_expect_download(void *target, size_t size, uint64_t stream) {
    struct download *entry = malloc(sizeof *entry);
    if (entry == NULL) return 0;
    *entry = (struct download){gp_new_id(), target, size, stream, NULL};
    uint64_t id = entry->id;
    pthread_mutex_lock(&read_lock);
    bool room = download_count < DOWNLOADS_MAX;
    if (room) {
        entry->next = downloads;
        downloads = entry;
        download_count++;
    }
    pthread_mutex_unlock(&read_lock);
    if (!room) free(entry);
    return room ? id : 0;
}

bool gp_awaits_download(const void *start, size_t size) {
    const unsigned char *first = start, *last = first + size;
    bool found = false;
    pthread_mutex_lock(&read_lock);
    for (struct download *at = downloads; at != NULL && !found; at = at->next) {
        found = at->target < last && first < at->target + at->size;
    }
    pthread_mutex_unlock(&read_lock);
    return found;
}

// --- the start ------------------------------------------------------------------------------------

int gp_wire_start(void) {
    open_buffer = malloc(sizeof *open_buffer);
    spare_buffer = malloc(sizeof *spare_buffer);
    if (open_buffer == NULL || spare_buffer == NULL) return GP_OUT_OF_MEMORY;
    open_buffer->used = spare_buffer->used = sizeof(struct frame);
    struct gp_request request = {.grows = true};
    uint64_t values[2] = {1, GP_CUDA_HEADER_VERSION};
    int status = gp_exchange(&request, GP_HELLO, values, 2, NULL, 0, NULL, 0);
    if (status == GP_SUCCESS) status = gp_read_snapshot(request.body, request.length);
    free(request.body);
    if (status != GP_SUCCESS) return status;
    return gp_start_thread(flush_late, 0) ? GP_OUT_OF_MEMORY : GP_SUCCESS;
}
