// What comes by TLS, above an OpenSSL that is played: both ends of the handshake, the worker's end of a line,
// and its lanes from the handshake to the copies.
//
// Lanes are threads of the library. Here each is a call of who waits for a copy, and ends where it would wait.
#define _GNU_SOURCE
#include "input.h"
#include "lanes.h"
#include "openssl.h"

#include <setjmp.h>

#undef GP_LANE_CHUNK
#undef GP_SMALL_CHUNK
#undef GP_SMALL_STRIPE
#define GP_LANE_CHUNK 64
#define GP_SMALL_CHUNK 16
#define GP_SMALL_STRIPE 128
#define recv play_recv
#define send play_send
#define sendmsg play_sendmsg
#define fcntl play_fcntl
#define close play_close
#define poll wait_for_socket
#define shutdown(fd, how) ((void)(fd))
#define getsockopt play_getsockopt
#define clock_gettime play_clock
#define dlopen play_library
#define dlsym play_symbol
static int wait_for_socket(struct pollfd *entry, nfds_t count, int wait_ms);
#include "base/hash.c"
#include "wire/tls.c"
#include "wire/lanes.c"
#include "line_tls.c"
#include "lanes.c"
#include "chunk.h"

#define AHEAD_MAX 256
#define LINE_STEP 257  // bytes of what is sent and received by the line, for each of a byte's values
#define PARTS_MAX 4
#define ADDED_MAX 8

static const uint8_t ticket[32] = {7, 6, 5, 4, 3, 2, 1};
static const unsigned char key[3] = {1, 2, 3};
static const struct gp_identity identity = {play_certificate_bytes, key, sizeof play_certificate_bytes, sizeof key};

static struct {
    bool proven;  // the ticket came, or the byte that accepts
    // What the line receives, or what is sent by it: where, how much of it, how much so far.
    unsigned char *memory;
    size_t size, done;
    struct gp_lanes *lanes;
    void *(*run)(void *lane);
    bool ended[GP_LANES_MAX], in_lane;
    jmp_buf left;
    size_t sent;  // by lanes
} world;

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until);

// --- the other end ---------------------------------------------------------------------------------------------

static size_t says_ticket(unsigned char *bytes, size_t size) {
    if (size != sizeof ticket) abort();
    unsigned byte = take_byte(&play.input);
    memcpy(bytes, ticket, size);
    if (byte >= 240) return byte % sizeof ticket;
    if (byte >= 224) bytes[take_byte(&play.input) % sizeof ticket] ^= 1 + byte % 16;
    world.proven = byte < 224;
    return size;
}

static size_t says_accepted(unsigned char *bytes, size_t size) {
    if (size != 1) abort();
    unsigned byte = take_byte(&play.input);
    *bytes = byte < 224 ? 1 : (unsigned char)byte;
    world.proven = *bytes == 1 && play.shown;
    return 1;
}

static size_t says_line(unsigned char *bytes, size_t size) {
    if (bytes != world.memory + world.done || size > world.size - world.done) abort();
    unsigned byte = take_byte(&play.input);
    size_t part = byte < 128 ? size : byte & 1 ? 1 : 1 + byte;
    if (part > size) part = size;
    memset(bytes, (int)byte, part);
    world.done += part;
    return part;
}

static void hears_line(const unsigned char *bytes, size_t size) {
    if (bytes != world.memory + world.done || size > world.size - world.done) abort();
    world.done += size;
}

static size_t says_chunk(unsigned char *bytes, size_t size) {
    struct chunk head = {0};
    if (size == sizeof head) {
        head = take_chunk(&play.input, world.lanes);
        memcpy(bytes, &head, sizeof head);
        return sizeof head;
    }
    size_t part = take_byte(&play.input) & 1 ? size : 1 + size / 2;
    memset(bytes, 0x5a, part);
    return part;
}

static void hears_lane(const unsigned char *bytes, size_t size) {
    (void)bytes;
    world.sent += size;
}

static bool goes_on(struct gp_handshake *handshake) {
    (void)handshake;
    return take_byte(&play.input) < 240;
}

// --- the client's end of a handshake ---------------------------------------------------------------------------

static void start_client(void) {
    uint8_t fingerprint[32];
    struct gp_link link = {.socket = SOCKET};
    struct gp_handshake handshake = {.goes_on = goes_on};
    gp_sha256(play_certificate_bytes, sizeof play_certificate_bytes, fingerprint);
    gp_link_moved(&link);
    play.says = says_accepted;
    bool good = gp_tls_start(&link, "0.session.gpupool", fingerprint, ticket, &handshake);
    if (good != world.proven || good != (link.connection != NULL)) abort();
    pthread_mutex_destroy(&link.lock);
}

// --- the worker's end of a line --------------------------------------------------------------------------------

static void receive_line(struct gp_link *link, bool awake) {
    int32_t in_vain = 7;
    int64_t awake_ns = awake ? 1 + 16 * (int64_t)take_byte(&play.input) : 0;
    play.says = says_line;
    play.waits = 0;
    int64_t got = gpupool_line_receive(link, world.memory, world.size, awake_ns, &in_vain);
    if (got != (int64_t)world.done || (got == 0 && world.size > 0 && !play.over)) abort();
    if (in_vain != (awake && play.waits > 0)) abort();
}

static void send_line(struct gp_link *link) {
    memset(world.memory, (int)world.size, world.size);
    play.hears = hears_line;
    int failed = gpupool_line_send(link, world.memory, world.size);
    if (failed ? !play.over : world.done != world.size) abort();
}

static void run_line(void) {
    play.says = says_ticket;
    struct gp_link *link = gpupool_line_accept(SOCKET, &identity, ticket);
    if ((link != NULL) != world.proven || play.closed) abort();
    if (link == NULL) return;
    while (!is_over()) {
        unsigned what = take_byte(&play.input);
        world.size = take_byte(&play.input) * (what % 32 / 4 == 1 ? LINE_STEP : 1);
        world.done = 0;
        world.memory = malloc(world.size ? world.size : 1);
        if (world.memory == NULL) abort();
        if (what & 1) receive_line(link, what & 2);
        else send_line(link);
        free(world.memory);
    }
    play_free(link->connection);  // of the library, a line's stays
    pthread_mutex_destroy(&link->lock);
    free(link);
}

// --- the worker's end of lanes ---------------------------------------------------------------------------------

int gp_start_thread(void *(*run)(void *), void *argument, int signal_taken) {
    (void)argument, (void)signal_taken;
    if (take_byte(&play.input) >= 240) return EAGAIN;
    world.run = run;
    return 0;
}

static bool add_lane(void) {
    bool encrypted = take_byte(&play.input) & 1;
    unsigned objects = count_objects();
    play.closed = world.proven = false;
    play.blocks = true;
    play.says = says_ticket;
    bool good = gpupool_lanes_add(world.lanes, SOCKET, encrypted ? &identity : NULL, ticket);
    if (good == play.closed || (good && encrypted && (!world.proven || play.blocks))) abort();
    if (!good && count_objects() != objects) abort();
    play.closed = play.blocks = false;  // the others' are open, and do not block
    return good;
}

// Whether a lane that receives has nothing to do, and no chunk in its hands.
static bool is_idle(const struct gp_lanes *lanes) {
    uint64_t bytes = 0;
    for (const struct kept *one = lanes->kept; one != NULL; one = one->next) bytes += one->head.size;
    return lanes->done == lanes->end - lanes->start && bytes == lanes->kept_bytes;
}

static int wait_for_socket(struct pollfd *entry, nfds_t count, int wait_ms) {
    int found = play_poll(entry, count, wait_ms);
    if (world.in_lane && !world.lanes->sends && is_idle(world.lanes)) longjmp(world.left, 1);
    return found;
}

static void run_lane(void) {
    struct gp_lanes *lanes = world.lanes;
    volatile unsigned at = take_byte(&play.input) % (unsigned)lanes->count;
    if (is_over() || world.ended[at]) {
        gp_lanes_end(lanes);
        return;
    }
    world.in_lane = true;
    if (setjmp(world.left) == 0) {
        world.run(&lanes->lane[at]);
        if (!lanes->lost) abort();  // a lane goes on until then
        world.ended[at] = true;
    }
    world.in_lane = false;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    (void)condition;
    if (!world.in_lane) abort();
    pthread_mutex_unlock(lock);
    if (world.lanes->sends) longjmp(world.left, 1);
    gp_lanes_end(world.lanes);  // a chunk that there is no room for
    pthread_mutex_lock(lock);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until) {
    (void)condition, (void)until;
    if (world.in_lane) return ETIMEDOUT;
    pthread_mutex_unlock(lock);
    run_lane();
    pthread_mutex_lock(lock);
    return take_byte(&play.input) & 1 ? ETIMEDOUT : 0;
}

static void copy_stripe(void) {
    unsigned byte = take_byte(&play.input);
    uint64_t size = (1 + byte % PARTS_MAX) * GP_LANE_CHUNK - (byte >> 2 & 15);
    unsigned char *memory = malloc(size);
    if (memory == NULL) abort();
    memset(memory, 1, size);
    world.sent = 0;
    play.says = says_chunk;
    play.hears = hears_lane;
    if (world.lanes->sends) {
        uint64_t chunk = size < GP_SMALL_STRIPE ? GP_SMALL_CHUNK : GP_LANE_CHUNK;
        uint64_t heads = (size + chunk - 1) / chunk;
        int over = gpupool_lanes_send(world.lanes, memory, size);
        if (over > 0 && world.sent != size + heads * sizeof(struct chunk)) abort();
    } else {
        gpupool_lanes_receive(world.lanes, memory, 0, size);
    }
    free(memory);
}

static void end_lanes(void) {
    struct gp_lanes *lanes = world.lanes;
    gpupool_lanes_end(lanes);
    if (lanes->busy != 0) abort();
    for (int at = 0; at < lanes->count; at++) {
        struct gp_link *link = &lanes->lane[at].link;
        if (link->connection != NULL) play_free(link->connection);
        pthread_mutex_destroy(&link->lock);
    }
    for (struct kept *one = lanes->kept, *next; one != NULL; one = next) {
        next = one->next;
        free(one);
    }
    pthread_cond_destroy(&lanes->changed);
    pthread_cond_destroy(&lanes->finished);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
}

static void run_lanes(void) {
    unsigned what = take_byte(&play.input);
    world.lanes = gpupool_lanes_new(what & 1, 1 + (what >> 1 & 3), AHEAD_MAX);
    if (world.lanes == NULL || !gpupool_lanes_encrypt()) abort();
    for (unsigned left = 1 + (what >> 3) % ADDED_MAX; left > 0; left--) add_lane();
    while (!is_over() && !world.lanes->lost && world.lanes->count > 0) copy_stripe();
    gpupool_lanes_end(world.lanes);
    if (add_lane()) abort();
    end_lanes();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    memset(&play, 0, sizeof play);
    memset(&world, 0, sizeof world);
    play.input = (struct input){bytes, size};
    play.blocks = true;
    if (!gp_tls_possible()) abort();
    unsigned what = take_byte(&play.input) % 4;
    if (what == 0) {
        start_client();
    } else {
        if (what == 1) run_lanes();
        else run_line();
        if (count_objects() != 0) abort();
    }
    drop_all();
    return 0;
}
