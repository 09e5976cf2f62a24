// Frames of a client, as the worker's launcher reads them, above a driver that looks at all it is given.
//
// The worker's Python is played, too: it tells of objects and ends them, goes on behind what was not issued,
// and takes downloads and turns. Objects of the driver are pieces of memory, so a sanitizer sees each use of
// one that has ended; time and the client's socket are the input's.
#define _GNU_SOURCE  // C11 alone has no clock_gettime
#include "input.h"
#include "turns.c"

#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "generated_layouts.h"

// What Python calls, by its name in the library.
int gpupool_launcher_abi(void);
struct launcher *gpupool_launcher_new(void *const *called);
int gpupool_launcher_function(struct launcher *launcher, uint64_t id, uint64_t handle, unsigned char *bytes,
                              void **pointers, uint32_t length, int kernel);
int gpupool_launcher_keep(struct launcher *launcher, int kind, uint64_t id, uint64_t handle);
void gpupool_launcher_end(struct launcher *launcher, int kind, uint64_t id);
uint64_t gpupool_launcher_event(const struct launcher *launcher, uint64_t id);
void gpupool_launcher_select(struct launcher *launcher, uint64_t device, int plain);
void gpupool_launcher_share(struct launcher *launcher, struct shared *shared, int connection);
void gpupool_launcher_gate(struct launcher *launcher, struct gate *gates);
void gpupool_launcher_tell(struct launcher *launcher, struct turns *turns);
int gpupool_launcher_idle(const struct launcher *launcher, const uint64_t *streams, size_t count);
size_t gpupool_launcher_run(struct launcher *launcher, const unsigned char *frame, size_t at, size_t end,
                            int alone, struct outcome *outcome);
int gpupool_downloads_begin(struct launcher *launcher, uint64_t device, unsigned char *bytes,
                            const uint64_t *events);
size_t gpupool_downloads_take(const struct launcher *launcher, unsigned char *into, uint32_t *count,
                              int *status);
void gpupool_downloads_sent(const struct launcher *launcher, uint32_t count);
int gpupool_downloads_await(const struct launcher *launcher);

#define KINDS 6
#define NUMBERS 96
#define PENDING 64
#define FRAME_MAX 8192
#define WORDS_MAX 64
#define ZEROS_MAX 512
#define SLOT_SIZE 4096
#define SLOTS 64
#define ANSWER_SIZE 32
#define PARAMS_SIZE 256
#define ATTRIBUTE_SIZE 72
#define NOT_READY 600
#define ASKED 1
#define DEVICES 2

static const char kinds[KINDS] = {'s', 'e', 'x', 'n', 'c', 'f'};
static const uint16_t ops[] = {
    GP_LAUNCH, GP_LAUNCH_EX, GP_COPY_IN, GP_DOWNLOAD, GP_RECORD_EVENT, GP_WAIT_EVENT, GP_GRAPH_SET,
    GP_GRAPH_LAUNCH, GP_HOST_CALL, GP_CALL_cuMemcpyDtoDAsync_v2, GP_CALL_cuMemsetD8Async,
    GP_CALL_cuMemsetD32Async, GP_CALL_cuEventCreate, GP_CALL_cuEventDestroy_v2, GP_SYNC_STREAM,
    GP_SYNC_DEVICE, GP_SYNC_EVENT, GP_END_EVENT, GP_ALLOCATE,
};
enum { OPS = sizeof ops / sizeof ops[0] };

struct object {
    char kind;
    uint32_t length;
    unsigned char *bytes;
    void *pointers[1];
};

// What the driver is told to do with a stream's callback.
struct callback {
    void (*call)(void *, int, void *);
    void *data;
};

static struct {
    struct input input;
    struct object *objects[KINDS][NUMBERS];
    struct callback pending[PENDING];
    unsigned pending_count;
    size_t added, put, got, lost;  // turns
    int64_t now_ns;
} world;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    world.now_ns += 1000 * (int64_t)(1 + 4 * take_byte(&world.input));
    *time = (struct timespec){world.now_ns / 1000000000, world.now_ns % 1000000000};
    return 0;
}

int __wrap_poll(struct pollfd *entries, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *entries, nfds_t count, int timeout) {
    if (count != 1 || timeout != 0 || entries->fd < 0) abort();
    return take_byte(&world.input) & 1;
}

// --- the driver ------------------------------------------------------------------------------------------------

static struct object *make_object(char kind, uint32_t length) {
    struct object *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    made->kind = kind;
    made->length = length;
    made->bytes = malloc(length);  // exact
    made->pointers[0] = made->bytes;
    return made;
}

static void end_object(struct object *object) {
    free(object->bytes);
    free(object);
}

static struct object *known(void *handle, char kind) {
    struct object *object = handle;
    if (object == NULL || object->kind != kind) abort();
    return object;
}

static int status(void) {
    unsigned byte = take_byte(&world.input);
    return byte < 240 ? 0 : (int)byte;
}

static int readiness(void) {
    unsigned byte = take_byte(&world.input);
    return byte < 160 ? 0 : byte < 240 ? NOT_READY : (int)byte;
}

static void use_values(void *function, void **parameters) {
    struct object *object = known(function, 'f');
    if (parameters != object->pointers) abort();
    use_bytes(parameters[0], object->length);
}

static int launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                  void **extra) {
    (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared;
    if (extra != NULL) abort();
    known(stream, 's');
    use_values(function, parameters);
    return status();
}

static int launch_together(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                           void *stream, void **parameters) {
    return launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters,
                  NULL);
}

static int launch_ex(const struct config *config, void *function, void **parameters, void **extra) {
    if (config->count == 0 || extra != NULL) abort();
    use_bytes(config->attributes, (size_t)config->count * ATTRIBUTE_SIZE);
    known(config->stream, 's');
    use_values(function, parameters);
    return status();
}

static int record(void *event, void *stream) {
    known(event, 'e');
    known(stream, 's');
    return status();
}

static int wait_event(void *stream, void *event, unsigned flags) {
    (void)flags;
    return record(event, stream);
}

static int copy_in(uint64_t target, const void *source, size_t size, void *stream) {
    (void)target;
    if (size == 0) abort();
    use_bytes(source, size);
    known(stream, 's');
    return status();
}

static int copy(uint64_t target, uint64_t source, size_t size, void *stream) {
    (void)target, (void)source, (void)size;
    known(stream, 's');
    return status();
}

static int fill8(uint64_t target, unsigned char value, size_t count, void *stream) {
    (void)value;
    return copy(target, 0, count, stream);
}

static int fill32(uint64_t target, unsigned value, size_t count, void *stream) {
    (void)value;
    return copy(target, 0, count, stream);
}

static int query(void *stream) {
    known(stream, 's');
    return readiness();
}

static int set_node(void *executable, void *node, const void *params) {
    uint64_t words[PARAMS_SIZE / 8];
    known(executable, 'x');
    known(node, 'n');
    memcpy(words, params, sizeof words);
    struct object *function = (struct object *)(uintptr_t)(words[2] != 0 ? words[2] : words[9]);
    known((void *)(uintptr_t)words[10], 'c');
    if (words[8] != 0) abort();
    use_values(function, (void **)(uintptr_t)words[7]);
    return status();
}

static int launch_graph(void *executable, void *stream) {
    known(executable, 'x');
    known(stream, 's');
    return status();
}

static int add_callback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
    known(stream, 's');
    int found = status();
    if (flags != 0) abort();
    if (world.pending_count == PENDING) return 2;
    if (found != 0) return found;
    world.pending[world.pending_count++] = (struct callback){call, data};
    world.added++;
    return 0;
}

static int copy_out(void *target, uint64_t source, size_t size, void *stream) {
    (void)source;
    if (size == 0) abort();
    memset(target, (int)size, size);
    known(stream, 's');
    return status();
}

static int synchronize_stream(void *stream) {
    known(stream, 's');
    return status();
}

static int synchronize(void) { return status(); }

static int query_event(void *event) {
    known(event, 'e');
    return readiness();
}

static int synchronize_event(void *event) {
    known(event, 'e');
    return status();
}

static int elapsed(float *milliseconds, void *start, void *end) {
    known(start, 'e');
    known(end, 'e');
    *milliseconds = 1;
    return status();
}

static int create_event(void **event, unsigned flags) {
    (void)flags;
    int found = status();
    if (found == 0) *event = make_object('e', 1);
    return found;
}

static int destroy_event(void *event) {
    known(event, 'e');
    int found = status();
    if (found == 0) end_object(event);
    return found;
}

// All there is, or without the calls that the bits name: an older driver.
static struct driver driver_without(uint32_t absent) {
    struct driver made = {launch, launch_together, launch_ex, record, wait_event, copy_in, copy, fill8, fill32,
                          query, set_node, launch_graph, add_callback, copy_out, synchronize_stream,
                          synchronize, query_event, synchronize_event, elapsed, create_event, destroy_event};
    void *calls[sizeof made / sizeof(void *)];
    memcpy(calls, &made, sizeof made);
    for (size_t at = 1; at < sizeof made / sizeof(void *); at++) {
        if (absent >> at & 1) calls[at] = NULL;
    }
    memcpy(&made, calls, sizeof made);
    return made;
}

// --- the client's frame ----------------------------------------------------------------------------------------

// A word is a byte, or any eight after 255; so is the size of a record in bytes that `form` says is a lie.
static uint64_t take_word(struct input *input) {
    uint64_t word = take_byte(input);
    if (word == UINT8_MAX) take_bytes(input, &word, sizeof word);
    return word;
}

static size_t add_record(unsigned char *frame, size_t at, struct input *input) {
    uint64_t words[1 + WORDS_MAX + ZEROS_MAX] = {0};
    unsigned kind = take_byte(input), form = take_byte(input), count = take_byte(input) % WORDS_MAX;
    unsigned zeros = form & 32 ? 2 * take_byte(input) : 0;
    count += zeros;
    struct head head = {.op = ops[kind % OPS], .flags = form & 3, .size = 8 + 8 * count};
    if (at + head.size > FRAME_MAX) return at;
    if (form & 4) head.op = (uint16_t)take_word(input);
    if (form & 8) head.size = (uint32_t)take_word(input);
    for (unsigned word = 0; word < count - zeros; word++) words[1 + word] = take_word(input);
    // The bytes of a function's values, in the upper half of a word that is a byte in the input.
    if (count > 5 && (head.op == GP_LAUNCH || head.op == GP_LAUNCH_EX)) words[6] <<= form & 16 ? 0 : 32;
    memcpy(words, &head, sizeof head);
    memcpy(frame + at, words, 8 + 8 * count);
    return at + 8 + 8 * count;
}

static struct head head_at(const unsigned char *frame, size_t at) {
    struct head head;
    memcpy(&head, frame + at, sizeof head);
    return head;
}

// How many records lie between two places, each of which is whole.
static unsigned records_between(const unsigned char *frame, size_t at, size_t end) {
    unsigned count = 0;
    for (; at < end; count++) {
        struct head head = head_at(frame, at);
        if (head.size < sizeof head || head.size % 8 != 0 || head.size > end - at) abort();
        at += head.size;
    }
    return count;
}

static void run_frame(struct launcher *launcher) {
    static unsigned char built[FRAME_MAX];
    size_t end = 0;
    for (unsigned left = 1 + take_byte(&world.input) % 8; left > 0; left--) {
        end = add_record(built, end, &world.input);
    }
    if (end > 0) end -= take_byte(&world.input) == 1;  // cut
    unsigned char *frame = (unsigned char *)exact_text(built, end);
    for (size_t at = 0; at < end;) {
        struct outcome outcome;
        size_t next = gpupool_launcher_run(launcher, frame, at, end, take_byte(&world.input) & 1, &outcome);
        if (next < at || next > end) abort();
        bool failed = outcome.status != 0 && outcome.ended != OVER;
        if (records_between(frame, at, next) + failed != outcome.issued) abort();
        if (outcome.ended > GAVE_UP || outcome.body_size > sizeof outcome.body) abort();
        if (end - next < sizeof(struct head)) break;
        struct head head = head_at(frame, next);  // which Python reads
        if (outcome.ended == OVER) {
            at = next;
            continue;
        }
        if (head.size < sizeof head || head.size % 8 != 0 || head.size > end - next) break;
        at = next + head.size;
    }
    free(frame);
}

// --- the worker's Python ---------------------------------------------------------------------------------------

static void tell(struct launcher *launcher) {
    unsigned kind = take_byte(&world.input) % KINDS, number = take_byte(&world.input) % NUMBERS;
    struct object **place = &world.objects[kind][number];
    if (kinds[kind] == 'f') {
        if (*place != NULL) return;  // functions stay
        unsigned length = 8 * (number % 5);
        *place = make_object('f', length);
        if (!gpupool_launcher_function(launcher, number, (uintptr_t)*place, (*place)->bytes, (*place)->pointers,
                                       length, number & 1) != (number == 0)) abort();
        return;
    }
    if (*place != NULL) {
        gpupool_launcher_end(launcher, kinds[kind], number);
        end_object(*place);
        *place = NULL;
        return;
    }
    // An event that was made without Python: it knows that from the handle.
    if (kinds[kind] == 'e' && gpupool_launcher_event(launcher, number) != 0) return;
    struct object *made = make_object(kinds[kind], 1);
    if (gpupool_launcher_keep(launcher, kinds[kind], number, (uintptr_t)made)) *place = made;
    else end_object(made);
}

static void take_downloads(struct launcher *launcher) {
    uint32_t count;
    int found;
    unsigned char *taken = malloc(SLOTS * (SLOT_SIZE + ANSWER_SIZE));
    if (taken == NULL) abort();
    size_t size = gpupool_downloads_take(launcher, taken, &count, &found);
    if (count > SLOTS || (found != 0 && count + size != 0)) abort();
    use_bytes(taken, size);
    gpupool_downloads_sent(launcher, count);
    free(taken);
}

static void do_turns(struct launcher *launcher, unsigned what) {
    struct turn found[4];
    uint64_t lost[4];
    if (what == 0 && launcher->turns->count > 0) world.got += gpupool_turns_get(launcher->turns, found, 4);
    if (what == 1) world.lost += gpupool_turns_lose(launcher->turns, lost, 4);
    if (what == 2) world.put += (size_t)gpupool_turns_put(launcher->turns, take_word(&world.input), 0, 1);
    if (what == 3 && world.pending_count > 0) {
        unsigned which = take_byte(&world.input) % world.pending_count;
        struct callback one = world.pending[which];
        world.pending[which] = world.pending[--world.pending_count];
        one.call(NULL, status(), one.data);
    }
}

static void act(struct launcher *launcher, struct shared *shared) {
    unsigned what = take_byte(&world.input);
    switch (what % 8) {
        case 0: tell(launcher); break;
        case 1: gpupool_launcher_select(launcher, what / 8 % DEVICES, what < 240); break;
        case 2: if (launcher->downloads != NULL) take_downloads(launcher); break;
        case 3: if (launcher->downloads != NULL) gpupool_downloads_await(launcher); break;
        case 4: do_turns(launcher, what / 8 % 4); break;
        case 5: {
            uint32_t *const words[] = {&shared->keeping, &shared->failed, &shared->capturing, &shared->large};
            *words[what / 8 % 4] ^= 1;
            break;
        }
        default: run_frame(launcher);
    }
}

// Each entry is found by its number; events that the client has made are ended.
static void end_table(struct table *table) {
    size_t used = 0;
    for (size_t at = 0; at < table->room; at++) {
        struct entry *entry = &table->entries[at];
        if (entry->id == 0) continue;
        if (find(table, entry->id) != entry) abort();
        if (entry->own) end_object((struct object *)(uintptr_t)entry->handle);
        used++;
    }
    if (used != table->used) abort();
    free(table->entries);
}

static void end(struct launcher *launcher) {
    while (world.pending_count > 0) {
        struct callback one = world.pending[--world.pending_count];
        one.call(NULL, 0, one.data);
    }
    // Of each function the client has heard once: that its turn has come, or that it was lost.
    if (launcher->turns->expected != NULL) abort();
    if (launcher->turns->count + world.got != world.put + world.added - world.lost) abort();
    free(launcher->turns->items);
    free(launcher->turns);
    struct table *const tables[] = {&launcher->functions, &launcher->streams, &launcher->events,
                                    &launcher->nodes, &launcher->executables, &launcher->contexts};
    for (unsigned at = 0; at < sizeof tables / sizeof tables[0]; at++) end_table(tables[at]);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (unsigned number = 0; number < NUMBERS; number++) {
            if (world.objects[kind][number] != NULL) end_object(world.objects[kind][number]);
        }
    }
    free(launcher->downloads);
    free(launcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static struct gate gates[DEVICES];
    static unsigned char *pinned;
    static struct object *events[SLOTS];
    struct shared shared = {0};
    memset(&world, 0, sizeof world);
    world.input = (struct input){bytes, size};
    uint32_t absent = 0;
    unsigned form = take_byte(&world.input);
    if (form & 1) take_bytes(&world.input, &absent, sizeof absent);
    struct driver driver = driver_without(absent);
    void *called[sizeof driver / sizeof(void *)];
    memcpy(called, &driver, sizeof driver);
    struct launcher *launcher = gpupool_launcher_new(called);
    if (launcher == NULL || gpupool_launcher_abi() == 0) abort();
    if (form & 2) gpupool_launcher_gate(launcher, gates);
    gates[1].closed = form >> 2 & 1;
    gpupool_launcher_share(launcher, &shared, form & 8 ? -1 : 0);
    gpupool_launcher_tell(launcher, gpupool_turns_new());
    if (pinned == NULL) pinned = malloc(SLOTS * SLOT_SIZE);
    uint64_t handles[SLOTS];
    for (unsigned at = 0; at < SLOTS; at++) {
        if (events[at] == NULL) events[at] = make_object('e', 1);
        handles[at] = (uintptr_t)events[at];
    }
    if (form & 16) gpupool_downloads_begin(launcher, 0, pinned, handles);
    while (world.input.left > 0) act(launcher, &shared);
    end(launcher);
    return 0;
}
