// The frames of a worker: replies, downloads, parts, mirrors, host functions, notices, prints.
//
// The input begins with what the program waits for; the rest is what the worker sends.
#include "input.h"
#include "wire/line.h"
#include "hostmem/mapped.h"

#define REQUESTS 3
#define DOWNLOADS 3
#define MAPPED 2

static struct input sent;
static unsigned piece;  // bytes that the socket gives at most

ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    (void)link;
    size_t part = size < piece ? size : piece;
    part = part < sent.left ? part : sent.left;
    take_bytes(&sent, target, part);
    return (ssize_t)part;
}

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    (void)link;
    ssize_t all = 0;
    for (int at = 0; at < count; at++) all += (ssize_t)parts[at].iov_len;
    return all;
}

bool gp_tls_possible(void) { return false; }
bool gp_tls_start(struct gp_link *link, const char *server_name, const uint8_t fingerprint[32],
                  const uint8_t ticket[32], struct gp_handshake *handshake) {
    (void)link, (void)server_name, (void)fingerprint, (void)ticket, (void)handshake;
    return false;
}

static struct line *prepare(void) {
    static struct line *line;
    if (line == NULL) {
        line = calloc(1, sizeof *line);
        if (line == NULL) abort();
        line->link = &gp_links[0];
        gp_links[0].socket = -1;
        pthread_mutex_init(&line->line_lock, NULL);
        pthread_mutex_init(&line->send_lock, NULL);
        pthread_mutex_init(&line->read_lock, NULL);
        pthread_cond_init(&line->answered, NULL);
        gp_only_line = gp_lines[0] = line;
        gp_line_count = 1;
    }
    line->waiting = NULL;
    line->downloads = NULL;
    line->downloads_end = &line->downloads;
    line->download_count = 0;
    line->download_bytes = 0;
    line->read_start = line->read_end = 0;
    gp_reached[0] = true;
    gp_servers_left = 1;
    return line;
}

static void *room(size_t size) {
    void *made = malloc(size ? size : 1);
    if (made == NULL) abort();
    return made;
}

// Numbers are small, so that the input finds them.
static void wait_for(struct line *line, struct gp_request *request, unsigned id,
                     struct input *input) {
    unsigned flags = take_byte(input);
    request->id = id;
    request->grows = flags & 1;
    request->capacity = flags & 1 ? 0 : take_byte(input);
    request->body = flags & 1 ? NULL : room(request->capacity);
    request->bulk_size = flags & 2 ? take_byte(input) * 17u : 0;
    request->bulk = room(request->bulk_size);
    request->next = line->waiting;
    line->waiting = request;
}

static struct gp_mapped *map(unsigned id, size_t size) {
    struct gp_mapped *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    made->id = id;
    made->size = size;
    made->host = room(size);
    made->shadow = room(size);
    memset(made->host, 0, size);
    memset(made->shadow, 0, size);
    gp_mapped_enter(made);
    return made;
}

static void end_mapped(struct gp_mapped *made) {
    unsigned char *host = made->host;
    if (gp_mapped_take(host) != made) abort();
    gp_mapped_discard(made);
    free(host);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static struct gp_request requests[REQUESTS];
    struct input input = {bytes, size};
    struct line *line = prepare();
    struct gp_mapped *mapped[MAPPED];
    unsigned char *targets[DOWNLOADS];
    piece = 1 + take_byte(&input) * 3;
    memset(requests, 0, sizeof requests);
    for (unsigned at = 0; at < REQUESTS; at++) wait_for(line, &requests[at], at + 1, &input);
    for (unsigned at = 0; at < MAPPED; at++) mapped[at] = map(at + 1, 1 + take_byte(&input) * 5u);
    for (unsigned at = 0; at < DOWNLOADS; at++) {
        size_t wanted = take_byte(&input);
        targets[at] = room(wanted);
        if (gp_expect_download(targets[at], wanted, 0) == 0) abort();
    }
    uint64_t number = 1;
    for (struct download *at = line->downloads; at != NULL; at = at->next) at->id = number++;
    sent = input;
    while (!gp_line_is_lost(line)) gp_line_await(line, NULL);
    gp_line_await(line, &requests[0]);
    for (unsigned at = 0; at < REQUESTS; at++) {
        if (!requests[at].done) abort();
        if (requests[at].status == GP_SUCCESS && requests[at].body != NULL) {
            use_bytes(requests[at].body, requests[at].length);
        }
        free(requests[at].body);
        free(requests[at].bulk);
    }
    while (line->downloads != NULL) {
        struct download *next = line->downloads->next;
        free(line->downloads);
        line->downloads = next;
    }
    for (unsigned at = 0; at < DOWNLOADS; at++) free(targets[at]);
    for (unsigned at = 0; at < MAPPED; at++) end_mapped(mapped[at]);
    return 0;
}
